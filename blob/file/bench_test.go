package file_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

const (
	benchSize  = 256 << 20
	benchPiece = 8 << 20
)

// BenchmarkWrite writes and syncs the same bytes by several ways, of which "raw" is a plain
// file. "x2" is with two writers at once.
func BenchmarkWrite(b *testing.B) {
	b.Run("raw", benchRaw)
	for _, c := range []struct {
		name    string
		opts    file.Options
		align   bool
		writers int
	}{
		{"buffered", file.Options{NoDirect: true}, true, 1},
		{"bufferedX2", file.Options{NoDirect: true}, true, 2},
		{"unaligned", file.Options{}, false, 1},
		{"direct", file.Options{}, true, 1},
		{"directX2", file.Options{}, true, 2},
		{"bufferedNoSync", file.Options{NoDirect: true, NoSync: true}, true, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, err := file.Open(b.TempDir(), &c.opts)
			if err != nil {
				b.Fatal(err)
			}
			p := blob.AlignedBytes(benchPiece + 1)
			if !c.align {
				p = p[1:]
			}
			benchStore(b, s, p[:benchPiece], c.writers)
		})
	}
}

func benchRaw(b *testing.B) {
	p := blob.AlignedBytes(benchPiece)
	dir := b.TempDir()
	b.SetBytes(benchSize)
	for b.Loop() {
		path := filepath.Join(dir, "raw")
		f, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		for range benchSize / benchPiece {
			if _, err := f.Write(p); err != nil {
				b.Fatal(err)
			}
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		f.Close()
		os.Remove(path)
	}
}

func benchStore(b *testing.B, s blob.Store, p []byte, writers int) {
	ctx := context.Background()
	b.SetBytes(benchSize)
	for b.Loop() {
		w, err := s.Create(ctx, "x", &blob.CreateOptions{Size: benchSize, Piece: benchPiece})
		if err != nil {
			b.Fatal(err)
		}
		var wg sync.WaitGroup
		for g := range writers {
			wg.Go(func() {
				for off := g * benchPiece; off < benchSize; off += writers * benchPiece {
					if err := w.WriteAt(ctx, p, int64(off)); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if _, err := w.Commit(ctx); err != nil {
			b.Fatal(err)
		}
		if err := s.Remove(ctx, "x"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRead reads the same object as a file and through the store, from
// memory and, after Cool, from the disk.
func BenchmarkRead(b *testing.B) {
	ctx := context.Background()
	dir := b.TempDir()
	s, err := file.Open(dir, nil)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := blob.WriteAll(ctx, s, "x", blob.AlignedBytes(benchSize), &blob.CreateOptions{Piece: benchPiece}); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "x"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	r, err := s.Open(ctx, "x")
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for name, read := range map[string]func(p []byte, off int64) error{
		"raw":   func(p []byte, off int64) error { _, err := f.ReadAt(p, off); return err },
		"store": func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) },
	} {
		b.Run(name+"Warm", func(b *testing.B) { benchRead(b, read, func() error { return nil }) })
		b.Run(name+"Cold", func(b *testing.B) { benchRead(b, read, func() error { return s.Cool(ctx, "x") }) })
	}
}

func benchRead(b *testing.B, read func(p []byte, off int64) error, before func() error) {
	p := make([]byte, benchPiece)
	b.SetBytes(benchSize)
	for b.Loop() {
		b.StopTimer()
		if err := before(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		for off := int64(0); off < benchSize; off += benchPiece {
			if err := read(p, off); err != nil {
				b.Fatal(err)
			}
		}
	}
}
