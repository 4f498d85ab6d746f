//go:build unix

package ram

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// checkOwner returns an error if fi is not a folder of this user that nobody else can enter.
func checkOwner(fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.IsDir():
		return errors.New("is not a folder")
	case ok && int(st.Uid) != os.Getuid():
		return errors.New("belongs to another user")
	case fi.Mode().Perm()&0o077 != 0:
		return errors.New("can be entered by other users: 'chmod 700' it")
	}
	return nil
}
