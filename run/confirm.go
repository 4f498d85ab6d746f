package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage"
)

// confirmedFile is the name of the file in the folder of this user's configuration that lists the
// remote places that the user, or a job of the user, has named.
const confirmedFile = "remotes.json"

// confirmation says that a user or a program has named the remote place of a run.
type confirmation struct {
	ID     string `json:"id"`
	Run    string `json:"run"`
	Remote string `json:"remote"`
}

type confirmedDocument struct {
	Version int            `json:"version"`
	Remotes []confirmation `json:"remotes"`
}

// configStore opens the folder of this user's configuration. Only the user may write to it:
// otherwise a note there is not the word of the user.
func configStore() (*file.Store, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, "cairn")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if fi, err := os.Stat(dir); err != nil {
		return nil, err
	} else if fi.Mode().Perm()&0o022 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%s: %w: others may write to it: 'chmod 700 %s'", dir, fs.ErrPermission, dir)
	}
	return file.Open(dir, nil)
}

// Confirm notes that this user allows this run to remove and replace checkpoints of its remote
// place. The note has the address of the run, its id and the address of the remote place, so it does
// not count for a folder with the same settings elsewhere.
func (r *Run) Confirm(ctx context.Context) error {
	s, err := ReadSettings(ctx, r.Local.Store)
	if err != nil || r.Remote == nil {
		return err
	}
	store, err := configStore()
	if err != nil {
		return err
	}

	c := r.confirmation(s.ID)
	return changeDocument(ctx, store, confirmedFile, func(old []byte) ([]byte, error) {
		d, err := decodeConfirmed(old)
		if errors.Is(err, storage.ErrVersion) { // it may have more than this program can write
			return nil, fmt.Errorf("%s of %s: %w", confirmedFile, store, err)
		}
		if slices.Contains(d.Remotes, c) {
			return old, nil
		}
		d.Version, d.Remotes = documentVersion, append(d.Remotes, c)
		return d.encode()
	})
}

// encode returns the file. The oldest entries go if it would be too large to be read.
func (d *confirmedDocument) encode() ([]byte, error) {
	for {
		b, err := json.MarshalIndent(d, "", "  ")
		if err != nil || len(b) < maxDocument || len(d.Remotes) <= 1 {
			return append(b, '\n'), err
		}
		d.Remotes = d.Remotes[(len(d.Remotes)+1)/2:]
	}
}

// confirmed reports whether this user has confirmed the remote place for the run with this id.
func (r *Run) confirmed(ctx context.Context, id string) bool {
	if id == "" {
		return false
	}
	store, err := configStore()
	if err != nil {
		return false
	}
	data, _, err := readDocument(ctx, store, confirmedFile)
	if err != nil {
		return false
	}
	d, _ := decodeConfirmed(data)
	return slices.Contains(d.Remotes, r.confirmation(id))
}

// decodeConfirmed returns the list in a file. It is empty if there is an error, or no file.
func decodeConfirmed(data []byte) (d confirmedDocument, err error) {
	if len(data) > 0 {
		err = decodeDocument(data, documentVersion, &d)
	}
	if err != nil {
		return confirmedDocument{}, err
	}
	return d, nil
}

func (r *Run) confirmation(id string) confirmation {
	return confirmation{ID: id, Run: withoutSecrets(r.Local.real()), Remote: withoutSecrets(r.Remote.real())}
}
