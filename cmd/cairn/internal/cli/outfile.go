package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn"
)

// errDangling reports an output that is a dangling symbolic link.
var errDangling = errors.New("it is a symbolic link to a file that does not exist")

// writeOutput writes an output file of a command that reads the checkpoint c at
// the address src. A regular file appears complete or not at all, also behind a
// symbolic link, and replaces an existing file, unless that is part of the
// checkpoint. An existing device or FIFO stays, and writeOutput writes into it.
// Errors are about the file, unless write returns one about a checkpoint.
func writeOutput(ctx context.Context, c *cairn.Checkpoint, src, name string, write func(w io.Writer) error) error {
	if err := outside(c, src, name); err != nil {
		return err
	}
	return writeFile(ctx, name, write)
}

// writeFile is writeOutput for a file that is known not to be part of a checkpoint.
func writeFile(ctx context.Context, name string, write func(w io.Writer) error) error {
	err := writeTo(ctx, name, write)
	if e, ok := errors.AsType[*cairn.Error](err); ok {
		return e
	}
	if err != nil {
		return fmt.Errorf("write %s: %s", name, reason(err))
	}
	return nil
}

func writeTo(ctx context.Context, name string, write func(w io.Writer) error) error {
	fi, err := os.Stat(name)
	switch {
	case err == nil && fi.IsDir():
		return syscall.EISDIR
	case err == nil && !fi.Mode().IsRegular():
		return writeInto(ctx, name, fi.Mode(), write)
	case err == nil:
		return replaceFile(behindLink(name), fi.Mode().Perm(), write)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, err := os.Lstat(name); err == nil {
		return errDangling
	}
	return replaceFile(name, 0, write)
}

// replaceFile writes a regular file so that it appears complete or not at all. If
// perm is zero, the umask determines its permissions.
func replaceFile(name string, perm fs.FileMode, write func(w io.Writer) error) error {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(name), ".cairn-"+rand.Text()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once the file was renamed
	defer f.Close()
	if perm != 0 {
		if err := f.Chmod(perm); err != nil {
			return err
		}
	}
	if err := cmp.Or(write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// writeInto writes into a file that is not regular. It waits for the reader of a
// FIFO until ctx ends.
func writeInto(ctx context.Context, name string, mode fs.FileMode, write func(w io.Writer) error) error {
	flags := os.O_WRONLY
	if mode&fs.ModeNamedPipe != 0 {
		flags |= syscall.O_NONBLOCK // otherwise the call could not be interrupted
	}
	f, err := os.OpenFile(name, flags, 0)
	for flags != os.O_WRONLY && errors.Is(err, syscall.ENXIO) {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
		f, err = os.OpenFile(name, flags, 0)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = f.SetWriteDeadline(time.Now()) // a device without deadlines does not block
	})
	defer stop()
	return cmp.Or(write(f), f.Close())
}

// reason returns the text of a file system error without its operation and file.
func reason(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		err = e.Err
	}
	return err.Error()
}
