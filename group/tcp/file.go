package tcp

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
)

// File is the [Rendezvous] by a file that all ranks can reach: rank 0 writes its
// address there, and removes it once the ranks have met. Ranks and size come from
// the configuration.
type File struct {
	// Path is the file. Its folder must be there.
	Path string

	wrote string // what this rank has written
}

var _ Rendezvous = (*File)(nil)

// Seat returns an error: a file gives no ranks.
func (f *File) Seat(context.Context) (rank, size int, err error) {
	return 0, 0, fmt.Errorf("rank and size are not set, which a file does not know: %w", group.ErrInvalid)
}

// Place returns "": any address will do.
func (f *File) Place() (string, error) { return "", nil }

// Announce writes the address to the file, in one step.
func (f *File) Announce(_ context.Context, addr string) error {
	tmp, err := os.CreateTemp(filepath.Dir(f.Path), "."+filepath.Base(f.Path)+"-*")
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	defer os.Remove(tmp.Name()) // not there any more where all went well
	_, err = tmp.WriteString(addr + "\n")
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp.Name(), f.Path)
	}
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	f.wrote = addr
	return nil
}

// Find returns the address in the file.
func (f *File) Find(context.Context) (string, error) {
	b, err := f.read()
	if err != nil {
		return "", fmt.Errorf("find rank 0: %w", err)
	}
	addr, whole := strings.CutSuffix(string(b), "\n")
	if !whole {
		return "", fmt.Errorf("find rank 0: %s holds no address: %w", f.Path, group.ErrInvalid)
	}
	if err := CheckAddress(addr); err != nil {
		return "", fmt.Errorf("find rank 0: %s: %w", f.Path, err)
	}
	return addr, nil
}

// read returns what is in the file, or the first of it. Reading anything else,
// such as a pipe, could last for ever.
func (f *File) read() ([]byte, error) {
	fi, err := os.Stat(f.Path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file: %w", f.Path, group.ErrInvalid)
	}
	r, err := os.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, MaxAddress+2))
}

// Close removes the file, where it still holds what this rank has written.
func (f *File) Close() error {
	if f.wrote == "" {
		return nil
	}
	if addr, err := f.Find(context.Background()); err != nil || addr != f.wrote {
		return nil // of another meeting
	}
	return os.Remove(f.Path)
}
