package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cairn-ckpt/cairn/blob"
)

// kinds are the names of file systems by their numbers.
var kinds = map[int64]string{
	0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs", 0x6969: "nfs", 0x0BD00BD0: "lustre", 0xFF534D42: "smb",
	0xFE534D42: "smb", 0x517B: "smb", 0x65735546: "fuse", 0x794C7630: "overlayfs", 0x2FC12FC1: "zfs", 0x47504653: "gpfs", 0x00C36400: "ceph",
	0x19830326: "beegfs", 0x01021997: "9p",
}

// statFolder returns the kind of the file system of a folder and its free bytes.
func statFolder(dir string) (kind string, free int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return "", 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	kind, ok := kinds[int64(uint32(s.Type))]
	if !ok {
		kind = fmt.Sprintf("of the kind %#x", uint32(s.Type))
	}
	return kind, int64(s.Bavail) * int64(s.Bsize), nil
}

func direct(_ context.Context, e *exam) (string, error) {
	return e.dir(func(dir string) (string, error) {
		f, err := os.OpenFile(filepath.Join(dir, "direct"), os.O_RDWR|os.O_CREATE|syscall.O_DIRECT, 0o666)
		if err == nil {
			defer f.Close()
			_, err = f.WriteAt(blob.AlignedBytes(1<<20), 0)
		}
		if errors.Is(err, syscall.EINVAL) {
			return "", warn("the file system has no direct I/O")
		}
		return "files can be written past the page cache", err
	})
}
