//go:build !linux

package file

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
)

func reserve(*os.File, int64, int64) error { return nil }

// keepBlocks returns nil: only Linux frees the blocks of large files in the background.
func keepBlocks(*os.Root, string) (*os.File, int64) { return nil, 0 }

func roomAt(string) int64 { return -1 }

func nameless(*os.File) bool { return false }

func links(fs.FileInfo) int { return 0 }

func allocatedBytes(fs.FileInfo) int64 { return 0 }

func onlyOpen(*os.File) bool { return false }

func openDirect(*os.Root, string) *os.File { return nil }

func writeBack(*os.File, int64, int64) {}

func refused(error) bool { return false }

func renameNoReplace(*os.File, string, string) error { return errors.ErrUnsupported }

// Exchange returns errors.ErrUnsupported: only Linux swaps two paths in one step.
func Exchange(_, _ string) error { return errors.ErrUnsupported }

func reopenDirect(*os.File) *os.File { return nil }

func pread(f *os.File, p []byte, off int64) (int, error) { return f.ReadAt(p, off) }

func cachedBytes(*os.File, int64, int64) (int64, bool) { return 0, false }

// hostTag returns "": these systems cannot distinguish runs of a host.
func hostTag(*os.Root) string { return "" }

func dropCache(*os.File) error { return errors.ErrUnsupported }

// syncDir makes the entries of a directory durable. Windows has no such call.
func syncDir(d *os.File) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	return d.Sync()
}
