//go:build unix

package cache

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// errOwner reports a folder in which other users could put blocks.
var errOwner = errors.New("a cache needs a folder that only its user can write to")

// checkOwner returns an error unless only this user can write to dir: the checksums of
// blocks protect against damage, not against a block that another user has made.
func checkOwner(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to another user", errOwner, dir)
	case fi.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%w: %s has the permissions %v; 'chmod 700' changes them", errOwner, dir, fi.Mode().Perm())
	}
	return nil
}
