package orbax

import "syscall"

// freeBytes returns how many bytes of the file system at a path are free.
func freeBytes(path string) int64 {
	var fs syscall.Statfs_t
	if syscall.Statfs(path, &fs) != nil {
		return 0
	}
	return int64(fs.Bavail) * int64(fs.Bsize)
}
