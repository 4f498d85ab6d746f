//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package convert

import "golang.org/x/sys/unix"

// inode returns what the file system says of the file at path beside size and
// time: which file it is, and when anything about it was changed, which no
// program can set. The number of the device is not among it: many file systems
// have another one after each mount.
func inode(path string) []int64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return nil
	}
	sec, nsec := st.Ctim.Unix()
	return []int64{int64(st.Ino), sec, nsec}
}
