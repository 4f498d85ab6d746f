package bench

import "golang.org/x/sys/unix"

// roomAt returns how many bytes of the file system at a path are free.
func roomAt(path string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}
