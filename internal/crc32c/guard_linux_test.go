package crc32c

import (
	"syscall"
	"testing"
)

// No byte before or after the slice is read: it lies between two pages that
// cannot be.
func TestUpdateReadsNothingElse(t *testing.T) {
	page := syscall.Getpagesize()
	m, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(m)
	p := m[page : 2*page]
	copy(p, noise(page))
	for _, guard := range [][]byte{m[:page], m[2*page:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	eachPath(t, func(t *testing.T) {
		for n := range page + 1 {
			check(t, 0, p[:n])
			check(t, 0, p[page-n:])
		}
	})
}
