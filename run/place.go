package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Place is the folder of a run, or its address in object storage. Its checkpoints are in the
// folders directly below it.
type Place struct {
	// Store holds the run. A folder that does not exist is empty.
	Store blob.Store

	address string
	local   bool // a path
	remote  bool // the second place of a run
}

// openPlace opens the place at an address.
func openPlace(ctx context.Context, address string, remote bool) (*Place, error) {
	path, local, err := file.LocalPath(address)
	if err != nil {
		return nil, err
	}
	p := &Place{address: path, local: local, remote: remote}
	if local {
		p.Store, err = file.Open(path, nil)
	} else {
		p.Store, err = blob.OpenAddress(ctx, path)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Address returns the address of the place: a path, or a URL with its query.
func (p *Place) Address() string { return p.address }

// String returns the address for messages: without the parts that may be secrets.
func (p *Place) String() string { return blob.Redact(p.address) }

// IsFolder reports whether the place is in the file system.
func (p *Place) IsFolder() bool { return p.local }

// AddressOf returns the address of a checkpoint.
func (p *Place) AddressOf(name string) string {
	if p.local {
		return filepath.Join(p.address, name)
	}
	return blob.JoinAddress(p.address, name)
}

// StoreOf returns the store of a checkpoint.
func (p *Place) StoreOf(name string) (blob.Store, error) {
	if p.local { // the names of folders need not be valid names of objects
		if name == "" || name == "." || name == ".." || strings.ContainsRune(name, filepath.Separator) {
			return nil, fmt.Errorf("%w: %q is not the name of a folder", blob.ErrName, name)
		}
		return file.Open(p.AddressOf(name), nil)
	}
	return blob.NewSub(p.Store, name)
}

// folder is a folder of a run.
type folder struct {
	place   *Place
	name    string // empty: the run itself
	address string
	store   blob.Store
	format  storage.Format   // opens the checkpoint; nil: it is detected
	options *formats.Options // for a format that is detected
}

// shown returns the address for messages.
func (f *folder) shown() string { return blob.Redact(f.address) }

// folders returns the run itself and the folders directly below it. A path that does not
// exist has no folders.
func (p *Place) folders(ctx context.Context) ([]folder, error) {
	if p.local {
		if _, err := os.Stat(p.address); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
	}
	names, err := blob.Folders(ctx, p.Store, "")
	if err != nil {
		return nil, err
	}
	out := []folder{{place: p, address: p.address, store: p.Store}}
	for _, name := range names {
		// A name that begins with a dot belongs to a file of cairn or of a conversion.
		if strings.HasPrefix(name, ".") {
			continue
		}
		store, err := p.StoreOf(name)
		if err != nil {
			return nil, err
		}
		// A link such as latest to a folder of the run is no checkpoint of its own: the policy
		// would remove it as a second checkpoint, and with it the folder that it names.
		if _, own, err := blob.Parent(store); err == nil && own != name {
			continue
		}
		out = append(out, folder{place: p, name: name, address: p.AddressOf(name), store: store})
	}
	return out, nil
}

// isLink reports whether the folder of a checkpoint is a link to another place. The
// checkpoint there may belong to another run.
func (p *Place) isLink(name string) bool {
	if !p.local {
		return false
	}
	fi, err := os.Lstat(p.AddressOf(name))
	return err == nil && fi.Mode()&fs.ModeSymlink != 0
}

// absolute returns the address of the place: of a folder, the absolute path.
func (p *Place) absolute() string {
	if !p.local {
		return p.address
	}
	if path, err := filepath.Abs(p.address); err == nil {
		return path
	}
	return p.address
}

// real is absolute without links.
func (p *Place) real() string {
	if !p.local {
		return p.address
	}
	return file.RealPath(p.address)
}

// isEmpty reports whether the place has no folders.
func (p *Place) isEmpty(ctx context.Context) bool {
	dirs, err := p.folders(ctx)
	return err == nil && len(dirs) <= 1 // the first one is the place itself
}
