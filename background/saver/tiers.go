package saver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cairn-ckpt/cairn/background/upload"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Tiers says how a checkpoint gets from the store of its save, which is the local one, to
// the remote one. SaveRequest.OpenTiers returns it.
type Tiers struct {
	upload.Pair
	// Group is the group of the uploads. It has the ranks of the save.
	Group group.Group
	// Uploaded receives the outcome of the upload after Over has returned: the error of the save, if it
	// failed.
	Uploaded func(*upload.Report, error)

	format string
	room   *upload.Room // nil: no bound on the local checkpoints
	broken error        // why Remote cannot be opened
	// direct returns a writer to the remote store.
	direct func() (storage.Writer, error)
}

// maxUploadMemory bounds the buffers of an upload. More of them do not make it faster.
const maxUploadMemory = 256 << 20

// CheckTiers returns an error that wraps storage.ErrOptions if a save to the local store
// cannot be uploaded to Remote, or if LocalBytes cannot bound it. It opens no store.
func (v *SaveRequest) CheckTiers(local blob.Store) error {
	_, err := v.folder(local)
	return err
}

// folder checks the stores. It returns the folder of the local one, or "" if the local
// store is not a folder.
func (v *SaveRequest) folder(local blob.Store) (string, error) {
	if v.LocalBytes < 0 {
		return "", storage.RefuseIf(true, "the ceiling of local checkpoints is negative")
	}
	if v.Base != nil {
		return "", storage.RefuseIf(true, "a checkpoint that is uploaded must stand alone: it cannot have a base")
	}
	dir, err := folderOf(local)
	if err != nil && v.LocalBytes == 0 {
		return "", nil // without a ceiling, the local store may be any other one
	}
	if err == nil {
		err = refuseSame(dir, v.Remote)
	}
	if err == nil && v.LocalBytes > 0 {
		err = refuseCeiling(filepath.Base(dir), v.Remote, v.Format)
	}
	return dir, err
}

// OpenTiers checks the stores as CheckTiers does, and opens the remote one. open opens an
// address, and writer returns a writer of the save to a store. If the remote store cannot
// be opened, saves take place all the same, and their uploads fail; Err returns why.
func (v *SaveRequest) OpenTiers(local blob.Store, open func(address string) (blob.Store, error), writer func(blob.Store) (storage.Writer, error)) (*Tiers, error) {
	dir, err := v.folder(local)
	if err != nil {
		return nil, err
	}
	t := &Tiers{Pair: upload.Pair{Local: local, Overwrite: !v.FailIfExists, Only: v.ReplacesRemote, Memory: min(v.BufferBytes, maxUploadMemory)}, format: v.Format}
	t.direct = func() (storage.Writer, error) { return writer(t.Remote) }
	var run blob.Store
	t.Remote, run, t.broken = upload.Open(open, v.Remote)
	if v.LocalBytes > 0 {
		t.room = &upload.Room{Ceiling: v.LocalBytes, Dir: filepath.Dir(dir), Name: filepath.Base(dir), Remote: run, Copies: v.Owner == plan.EveryHolder}
	}
	return t, nil
}

const noCeiling = "the bytes of local checkpoints cannot be bounded: "

// folderOf returns the absolute path of a store that is a folder.
func folderOf(s blob.Store) (string, error) {
	f, ok := blob.As[*file.Store](s)
	_, sub := blob.As[*blob.Sub](s)
	_, single := blob.As[*blob.Single](s)
	if !ok || sub || single {
		return "", fmt.Errorf("%w: %sthe local store %s is not a folder", storage.ErrOptions, noCeiling, s)
	}
	return filepath.Abs(f.Dir())
}

// refuseSame returns an error that wraps storage.ErrOptions if a folder and an address are
// the same place.
func refuseSame(dir, address string) error {
	path, local, err := file.LocalPath(address)
	if err != nil || !local {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	above, err := file.Open(filepath.Dir(path), nil)
	if err != nil {
		return nil // another place, at which the upload fails
	}
	return storage.RefuseIf(upload.SameFolder(dir, above, filepath.Base(path)), "the remote store %s is the local one", path)
}

// refuseCeiling returns an error that wraps storage.ErrOptions if copies of a checkpoint
// of that name and format cannot be recognised.
func refuseCeiling(name, remote, format string) error {
	_, there := blob.SplitAddress(remote)
	return errors.Join(
		storage.RefuseIf(name != there, "%sthe checkpoint is called %q in the local run and %q in the remote one", noCeiling, name, there),
		storage.RefuseIf(format == formats.Torch, "%sfiles of the format %s do not say of which save they are", noCeiling, format),
	)
}

// Err returns why the remote store cannot be opened, or nil.
func (t *Tiers) Err() error { return t.broken }

// SameRanks returns another group of the ranks of g, so that work in both does not mix. All
// ranks call it.
func SameRanks(ctx context.Context, g group.Group) (group.Group, error) {
	all := make([]int, g.Size())
	for i := range all {
		all[i] = i
	}
	return g.Sub(ctx, all)
}
