package memory

import "syscall"

// fileSystem returns how many bytes of the file system at a path are free, and its size. A size of zero
// means that it is unknown, or that the file system has no bound.
func fileSystem(path string) (free, total int64) {
	var fs syscall.Statfs_t
	if syscall.Statfs(path, &fs) != nil {
		return 0, 0
	}
	return int64(fs.Bavail) * int64(fs.Bsize), int64(fs.Blocks) * int64(fs.Bsize)
}
