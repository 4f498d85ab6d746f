//go:build unix && (!linux || nomemfd)

package stage

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// MapFile maps the file of a shared arena that another process made. Systems without
// memory files share a file without a name. MapFile refuses a file with a name: any process
// could shrink it, and reading beyond its end would kill this process.
//
// The tag nomemfd compiles this for Linux, so that tests can run it.
func MapFile(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArena, err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.Mode().IsRegular() || stat.Nlink != 0 {
		return nil, fmt.Errorf("%w: the file has a name: remove the name before you share the file", ErrArena)
	}
	if err := checkFileSize(info.Size()); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: a file of %d bytes: %w", ErrArena, info.Size(), os.NewSyscallError("mmap", err))
	}
	return mem, nil
}

// Unmap ends the use of the memory that MapFile returned.
func Unmap(mem []byte) error { return os.NewSyscallError("munmap", unix.Munmap(mem)) }
