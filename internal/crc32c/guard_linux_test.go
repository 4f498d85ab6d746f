package crc32c

import (
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// No byte before or after the slice is read: it lies between two pages that
// cannot be.
func TestUpdateReadsNothingElse(t *testing.T) {
	page := syscall.Getpagesize()
	m := must.Get(syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE))(t)
	defer syscall.Munmap(m)
	p := m[page : 2*page]
	copy(p, noise(page))
	for _, guard := range [][]byte{m[:page], m[2*page:]} {
		must.Do(t, syscall.Mprotect(guard, syscall.PROT_NONE))
	}
	eachPath(t, func(t *testing.T) {
		for n := range page + 1 {
			check(t, 0, p[:n])
			check(t, 0, p[page-n:])
		}
	})
}
