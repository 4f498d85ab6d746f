//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package convert

import "golang.org/x/sys/unix"

// inode returns the inode of the file at path and the time at which it was last
// changed, which no program can set. The number of the device is left out: many file
// systems have another one after each mount.
func inode(path string) []int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return nil
	}
	sec, nsec := st.Ctim.Unix()
	return []int64{int64(st.Ino), sec, nsec}
}
