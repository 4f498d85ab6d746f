package file

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/windows"

	"github.com/cairn-ckpt/cairn/blob"
)

// lockFile makes the file at path and opens it so that no other process can open
// it too. The system closes and removes it when the process ends.
func lockFile(path string, text []byte) (*os.File, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	const shared = 0 // no other process may open it
	h, err := windows.CreateFile(name, windows.GENERIC_READ|windows.GENERIC_WRITE|windows.DELETE, shared, nil,
		windows.OPEN_ALWAYS, windows.FILE_ATTRIBUTE_NORMAL|windows.FILE_FLAG_DELETE_ON_CLOSE, 0)
	switch {
	case errors.Is(err, windows.ERROR_SHARING_VIOLATION), errors.Is(err, windows.ERROR_DELETE_PENDING):
		return nil, blob.ErrLocked
	case err != nil:
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(h), path)
	if err := writeText(f, text); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// unlockFile releases the lock. The system then removes the file.
func unlockFile(f *os.File, _ string) error { return f.Close() }

// leaveFile releases the lock. The system then removes the file, so no process finds it.
func leaveFile(f *os.File) error { return f.Close() }

func lock(*os.File) error { return errors.ErrUnsupported }

func probe(*os.File) error { return errors.ErrUnsupported }
