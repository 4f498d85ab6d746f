package delta

import "syscall"

// mapSlab maps memory. Pages cost no memory before they are used.
func mapSlab(size int) ([]byte, error) {
	mem, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err == nil {
		_ = syscall.Madvise(mem, syscall.MADV_HUGEPAGE) // only makes it faster
	}
	return mem, err
}

func unmapSlab(mem []byte) { _ = syscall.Munmap(mem) }
