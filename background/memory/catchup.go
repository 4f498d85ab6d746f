package memory

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/hosts"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// maxCompared bounds the size of files that a host compares when it catches up. Only small files, such as
// records, are ever replaced: the names of data files are unique.
const maxCompared = 16 << 20

// catchUp removes the files of this host that another incarnation of the job has replaced while the host was
// away, such as the record of a step that was saved again. Otherwise ranks would read different records,
// and the new checkpoint could not be loaded. A file stays if one of the other hosts has the same bytes, or if
// their checkpoint cannot be opened: then their copy may be the damaged one.
func (j *Job) catchUp(ctx context.Context, met *meeting) error {
	if slices.Contains(met.Latest, j.Host) {
		return nil
	}
	local, err := j.Root.OpenLocal(j.Run)
	if err != nil {
		return err
	}
	have := map[string]blob.Info{}
	for info, err := range local.List(ctx, "") {
		if err != nil {
			return err
		}
		have[info.Name] = info
	}
	if len(have) == 0 {
		return nil // a spare host
	}

	others, end, err := j.latest(met)
	if err != nil {
		return err
	}
	defer end()
	for info, err := range others.List(ctx, "") {
		if err != nil {
			return err
		}
		mine, ok := have[info.Name]
		if !ok || info.Size > maxCompared {
			continue
		}
		same := mine.Size == info.Size
		if same {
			same, err = held(ctx, info.Name, local, others)
		}
		if err == nil && !same && opens(ctx, others, path.Dir(info.Name)) {
			err = local.Remove(ctx, info.Name)
		}
		// Another rank of this host may have removed it, or a saver of the job before, from all hosts.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, blob.ErrChanged) {
			return err
		}
	}
	return nil
}

// opens reports whether a folder of a store has a checkpoint with a record and an index that are sound.
func opens(ctx context.Context, s blob.Store, folder string) bool {
	at, err := blob.NewSub(s, folder)
	if err != nil {
		return false // the run itself
	}
	c, err := formats.Open(ctx, at, nil)
	return err == nil && c.Close() == nil
}

// latest returns the store of the files of the hosts that were hosts of the job before, without the files of
// this host. end closes it.
func (j *Job) latest(met *meeting) (store blob.Store, end func(), err error) {
	nothing, err := (j.Root + "/.nothing").OpenLocal(j.Run) // a folder that is never made
	if err != nil {
		return nil, nil, err
	}
	c := hosts.Config{Secret: met.Members.Secret, Stall: j.stall}
	for _, h := range met.Members.Hosts {
		if slices.Contains(met.Latest, h.ID) {
			c.Peers = append(c.Peers, hosts.Peer{Host: h.Label(), Addr: h.Addresses[0]})
		}
	}
	s, err := hosts.New(nothing, c)
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

// held reports whether one of the other hosts has the same bytes of an object as this one. The error wraps
// fs.ErrNotExist or blob.ErrChanged if the object was removed meanwhile.
func held(ctx context.Context, name string, local, others blob.Store) (bool, error) {
	mine, err := blob.ReadAll(ctx, local, name, maxCompared)
	if err != nil {
		return false, err
	}
	r, err := others.Open(ctx, name)
	if err != nil {
		return false, err
	}
	defer r.Close()
	copies := r.(blob.CopyReader)
	places, err := copies.Copies(ctx)
	if err != nil {
		return false, err
	}
	theirs := make([]byte, r.Size())
	for n := range places {
		if err := copies.ReadCopy(ctx, n, theirs, 0); err != nil {
			return false, err
		}
		if bytes.Equal(mine, theirs) {
			return true, nil
		}
	}
	return false, nil
}
