//go:build !nomemfd

package stage

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapPrivate maps memory. Pages cost no memory before they are used.
func mapPrivate(size int64) ([]byte, *os.File, error) {
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // only makes it faster
	return mem, nil, nil
}

// mapShared maps a memory file that cannot shrink: a process that maps it can read all
// of it at any time.
func mapShared(size int64) ([]byte, *os.File, error) {
	fd, err := unix.MemfdCreate("cairn-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "cairn-arena")
	mem, err := func() ([]byte, error) {
		if err := f.Truncate(size); err != nil {
			return nil, err
		}
		if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
			return nil, os.NewSyscallError("fcntl F_ADD_SEALS", err)
		}
		return mapFile(f, size)
	}()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return mem, f, nil
}

func mapFile(f *os.File, size int64) ([]byte, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // only makes it faster
	return mem, nil
}

// allocate makes sure that there is memory for a part of a memory file.
func allocate(f *os.File, off, n int64) error {
	err := unix.EINTR
	for err == unix.EINTR { // a signal undoes the allocation
		err, _ = unix.Fallocate(int(f.Fd()), 0, off, n).(unix.Errno)
	}
	if err != 0 {
		return os.NewSyscallError("fallocate", err)
	}
	return nil
}

// MapFile maps the file of a shared arena that another process made. It refuses a file
// that could shrink, because reading beyond its end would kill this process.
func MapFile(f *os.File) ([]byte, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: the file is not a memory file with the seal F_SEAL_SHRINK", ErrArena)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArena, err)
	}
	if err := checkFileSize(info.Size()); err != nil {
		return nil, err
	}
	mem, err := mapFile(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%w: a file of %d bytes: %w", ErrArena, info.Size(), err)
	}
	return mem, nil
}

// Unmap ends the use of the memory that MapFile returned.
func Unmap(mem []byte) error { return unmap(mem) }

func unmap(mem []byte) error { return os.NewSyscallError("munmap", unix.Munmap(mem)) }

// MachineMemory returns how many bytes of memory the machine has.
func MachineMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return fallbackMemory
	}
	return int64(info.Totalram) * int64(info.Unit)
}
