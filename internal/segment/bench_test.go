package segment

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// tileElems makes a tile of 1 MiB.
func tileElems(width int) int { return MaxLen / width }

func BenchmarkDiff(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	half := bf16(r, tileElems(2), 0.02)
	single := fp32(r, tileElems(4), 0.02)
	stretch := append([]byte(nil), half...)
	copy(stretch[MaxLen/4:], step(r, half[MaxLen/4:MaxLen/4+4096], 2, 1))
	for _, c := range []struct {
		name      string
		src, base []byte
		width     int
	}{
		{"equal", half, bytes.Clone(half), 2},
		{"bf16/0.1%", step(r, half, 2, 0.001), half, 2},
		{"bf16/1%", step(r, half, 2, 0.01), half, 2},
		{"bf16/1.5%", step(r, half, 2, 0.015), half, 2},
		{"bf16/2%", step(r, half, 2, 0.02), half, 2},
		{"bf16/10%", step(r, half, 2, 0.1), half, 2},
		{"bf16/one stretch", stretch, half, 2},
		{"fp32/1.5%", step(r, single, 4, 0.015), single, 4},
	} {
		b.Run(c.name+"/small", func(b *testing.B) { benchmarkDiff(b, c.src, c.base, c.width, Small) })
		b.Run(c.name+"/quick", func(b *testing.B) { benchmarkDiff(b, c.src, c.base, c.width, Quick) })
	}
}

func benchmarkDiff(b *testing.B, src, base []byte, width int, form Form) {
	code, ok := AppendDiff(nil, src, base, width, len(src), form)
	if !ok {
		b.Fatal("no code")
	}
	ratio := float64(len(code)) / float64(len(src))
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(src)))
		b.ReportAllocs()
		for b.Loop() {
			code, ok = AppendDiff(code[:0], src, base, width, len(src)/4, form)
			if !ok {
				b.Fatal("no code")
			}
		}
		b.ReportMetric(ratio, "ratio")
	})
	b.Run("patch", func(b *testing.B) {
		p := append([]byte(nil), base...)
		b.SetBytes(int64(len(src)))
		b.ReportAllocs()
		for b.Loop() {
			if err := Patch(p, code, width); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(ratio, "ratio")
	})
}

// BenchmarkAbandon has tiles that differ in nearly every element, as in pre-training.
func BenchmarkAbandon(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	half := bf16(r, tileElems(2), 0.02)
	single := fp32(r, tileElems(4), 0.02)
	for _, c := range []struct {
		name      string
		src, base []byte
		width     int
	}{
		{"bf16/90%", step(r, half, 2, 0.9), half, 2},
		{"bf16/other", bf16(r, tileElems(2), 0.02), half, 2},
		{"fp32/other", fp32(r, tileElems(4), 0.02), single, 4},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.src)))
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := AppendDiff(nil, c.src, c.base, c.width, len(c.src)/4, Quick); ok {
					b.Fatal("the code is short")
				}
			}
		})
	}
}
