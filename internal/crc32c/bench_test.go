package crc32c

import (
	"hash/crc32"
	"testing"
)

func BenchmarkChecksum(b *testing.B) {
	for _, c := range []struct {
		name string
		size int
	}{
		{"256B", 256}, {"1KiB", 1 << 10}, {"4KiB", 4 << 10}, {"16KiB", 16 << 10},
		{"256KiB", 256 << 10}, {"1MiB", 1 << 20}, {"8MiB", 8 << 20},
	} {
		p := noise(c.size)
		b.Run(c.name+"/crc32c", func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				Checksum(p)
			}
		})
		b.Run(c.name+"/hash-crc32", func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			for b.Loop() {
				crc32.Checksum(p, table)
			}
		})
	}
}

func BenchmarkJoin(b *testing.B) {
	for b.Loop() {
		Join(1, 2, 1<<20)
	}
}
