package segment

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

var widths = []int{1, 2, 4, 8, 16}

// random returns a source of random numbers whose seed is in the test's log.
func random(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// diff returns the code of a difference after it has checked that Patch undoes it.
func diff(t testing.TB, src, base []byte, width int) []byte {
	t.Helper()
	code, ok := AppendDiff([]byte("before"), src, base, width, 20*len(src)+100)
	if !ok || !bytes.HasPrefix(code, []byte("before")) {
		t.Fatalf("width %d, %d bytes: no code", width, len(src))
	}
	code = code[len("before"):]
	p := bytes.Clone(base)
	if err := Patch(p, code, width); err != nil {
		t.Fatalf("width %d, %d bytes: %v", width, len(src), err)
	}
	if !bytes.Equal(p, src) {
		t.Fatalf("width %d, %d bytes: the patched base is not the segment", width, len(src))
	}
	return code
}

// pack returns the packed form of src after it has checked that Unpack undoes it.
func pack(t testing.TB, src []byte, width int) []byte {
	t.Helper()
	code, ok := AppendPacked([]byte("before"), src, width, 2*len(src)+100)
	if !ok || !bytes.HasPrefix(code, []byte("before")) {
		t.Fatalf("width %d, %d bytes: no code", width, len(src))
	}
	code = code[len("before"):]
	p := bytes.Repeat([]byte{0xa5}, len(src))
	if err := Unpack(p, code, width); err != nil {
		t.Fatalf("width %d, %d bytes: %v", width, len(src), err)
	}
	if !bytes.Equal(p, src) {
		t.Fatalf("width %d, %d bytes: the unpacked bytes are not the segment", width, len(src))
	}
	return code
}

func TestRoundTripAtAllLengths(t *testing.T) {
	r := random(t)
	lengths := []int{MaxLen, MaxLen - 7, 64<<10 + 1, 2*sampleBytes - 1, 2 * sampleBytes}
	for n := range 131 {
		lengths = append(lengths, n)
	}
	for _, width := range widths {
		for _, n := range lengths {
			base := noise(r, n)
			for _, share := range []float64{0, 0.01, 0.5, 1} {
				src := step(r, base, width, share)
				if rest := n % width; rest > 0 && share > 0 {
					src[n-1] ^= 0x80
				}
				diff(t, src, base, width)
			}
			pack(t, base, width)
			pack(t, make([]byte, n), width)
		}
	}
}

// The bytes of a property come from a few models of data, in pieces.
func model(r *rand.Rand, n int) []byte {
	p := make([]byte, 0, n)
	for len(p) < n {
		k := 1 + r.IntN(n-len(p))
		switch r.IntN(5) {
		case 0:
			p = append(p, noise(r, k)...)
		case 1:
			p = append(p, bytes.Repeat([]byte{byte(r.IntN(256))}, k)...)
		case 2:
			p = append(p, bf16(r, (k+1)/2, 0.02)[:k]...)
		case 3:
			p = append(p, fp32(r, (k+3)/4, 0.02)[:k]...)
		case 4:
			for range k {
				p = append(p, byte(r.IntN(3)))
			}
		}
	}
	return p
}

func TestRoundTripOfAnything(t *testing.T) {
	r := random(t)
	for i := range 300 {
		n := 1 + r.IntN(1<<(1+r.IntN(20)))
		width := widths[r.IntN(len(widths))]
		base := model(r, n)
		src := bytes.Clone(base)
		for range r.IntN(6) { // change pieces, with long equal stretches between them
			at := r.IntN(n)
			part := src[at : at+r.IntN(min(n-at, 1<<r.IntN(20))+1)]
			if r.IntN(2) == 0 {
				copy(part, step(r, part, width, r.Float64()))
			} else if len(part) > 0 {
				copy(part, model(r, len(part)))
			}
		}
		if t.Failed() {
			t.Fatalf("case %d", i)
		}
		diff(t, src, base, width)
		pack(t, src, width)
	}
}

// Every gap between two changes, around the lengths at which the code of gaps changes.
func TestGaps(t *testing.T) {
	for _, width := range widths {
		for _, gap := range []int{0, 1, escape1 - 1, escape1, escape1 + 255, escape1 + 256, escape3 - 1, escape3, escape3 + 1, 0xffff, 0x10000, MaxLen/width - 2} {
			if (gap+2)*width > MaxLen {
				continue
			}
			base := make([]byte, (gap+2)*width)
			src := bytes.Clone(base)
			src[0], src[len(src)-1] = 1, 2
			diff(t, src, base, width)
		}
	}
}

func TestLimitOfDiff(t *testing.T) {
	r := random(t)
	for _, n := range []int{0, 5, 1000, 1 << 16} {
		base := bf16(r, n, 0.02)
		src := step(r, base, 2, 0.05)
		code := diff(t, src, base, 2)
		if got, ok := AppendDiff([]byte{7}, src, base, 2, len(code)); !ok || len(got) != 1+len(code) {
			t.Errorf("%d elements: a limit of %d bytes refuses a code of %d bytes", n, len(code), len(code))
		}
		for _, limit := range []int{0, 1, len(code) / 2, len(code) - 1} {
			if got, ok := AppendDiff([]byte{7}, src, base, 2, limit); ok || !bytes.Equal(got, []byte{7}) {
				t.Errorf("%d elements: a limit of %d bytes allows a code of %d bytes", n, limit, len(code))
			}
		}
	}
}

func TestLimitOfPacked(t *testing.T) {
	r := random(t)
	for _, n := range []int{0, 5, 1000, 1 << 16} {
		src := bf16(r, n, 0.02)
		code := pack(t, src, 2)
		for _, limit := range []int{0, 1, len(code) / 2, len(code) - 1} {
			if got, ok := AppendPacked([]byte{7}, src, 2, limit); ok || !bytes.Equal(got, []byte{7}) {
				t.Errorf("%d elements: a limit of %d bytes allows a code of %d bytes", n, limit, len(code))
			}
		}
	}
}

// The sizes that the package promises for the data it is made for.
func TestSizes(t *testing.T) {
	r := random(t)
	half, single := bf16(r, MaxLen/2, 0.02), fp32(r, MaxLen/4, 0.02)
	row := bytes.Clone(half)
	copy(row[8192:], bf16(r, 4096, 0.02))
	share := func(code []byte) float64 { return float64(len(code)) / MaxLen }
	for _, c := range []struct {
		name       string
		got, limit float64
	}{
		{"equal", share(diff(t, half, half, 2)), 0.00001},
		{"bf16 with 1.5 % changed", share(diff(t, step(r, half, 2, 0.015), half, 2)), 0.013},
		{"bf16 with 2 % changed", share(diff(t, step(r, half, 2, 0.02), half, 2)), 0.017},
		{"fp32 with 1.5 % changed", share(diff(t, step(r, single, 4, 0.015), single, 4)), 0.008},
		{"a row changed", share(diff(t, row, half, 2)), 0.009},
		{"bf16", share(pack(t, half, 2)), 0.68},
		{"bf16, scales by layer", share(pack(t, bf16Layers(r, MaxLen/2), 2)), 0.69},
		{"bf16, scales by row", share(pack(t, bf16Channels(r, MaxLen/2), 2)), 0.72},
		{"fp32", share(pack(t, single, 4)), 0.85},
		{"zeros", share(pack(t, make([]byte, MaxLen), 2)), 0.0001},
	} {
		if c.got > c.limit {
			t.Errorf("%s: the code is %.4f of the segment, over %.4f", c.name, c.got, c.limit)
		}
	}
}

// A segment of which nearly everything changed gets no code.
func TestDenseDifferenceIsRefused(t *testing.T) {
	r := random(t)
	for _, width := range widths {
		base, src := noise(r, MaxLen), noise(r, MaxLen)
		if _, ok := AppendDiff(nil, src, base, width, MaxLen/4); ok {
			t.Errorf("width %d: noise has a code of a quarter", width)
		}
		if _, ok := AppendPacked(nil, src, width, MaxLen-1); ok {
			t.Errorf("width %d: noise is compressible", width)
		}
	}
}

// mustRefuse checks that a code is refused with a named error.
func mustRefuse(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, ErrCode) {
		t.Errorf("%s: the error is %v, want ErrCode", what, err)
	}
}

func TestCodeOfAnotherSegmentIsRefused(t *testing.T) {
	r := random(t)
	base := bf16(r, 1000, 0.02)
	d, p := diff(t, step(r, base, 2, 0.1), base, 2), pack(t, base, 2)
	equal := diff(t, base, base, 2)
	for _, n := range []int{0, 1, 1999, 2001, 4000, MaxLen} {
		mustRefuse(t, fmt.Sprint("Patch of ", n), Patch(make([]byte, n), d, 2))
		mustRefuse(t, fmt.Sprint("Patch without changes of ", n), Patch(make([]byte, n), equal, 2))
		mustRefuse(t, fmt.Sprint("Unpack of ", n), Unpack(make([]byte, n), p, 2))
	}
	for _, width := range []int{1, 4, 8, 16} {
		mustRefuse(t, "Patch of another width", Patch(make([]byte, 2000), d, width))
		mustRefuse(t, "Unpack of another width", Unpack(make([]byte, 2000), p, width))
	}
	mustRefuse(t, "Patch of a packed segment", Patch(make([]byte, 2000), p, 2))
	mustRefuse(t, "Unpack of a difference", Unpack(make([]byte, 2000), d, 2))
	d[0], p[0] = 200, 200
	mustRefuse(t, "Patch of an unknown kind", Patch(make([]byte, 2000), d, 2))
	mustRefuse(t, "Unpack of an unknown kind", Unpack(make([]byte, 2000), p, 2))
}

// Every code that is cut off or continued is refused, and a changed byte never panics.
func TestDamagedCodes(t *testing.T) {
	r := random(t)
	for _, width := range widths {
		base := bf16(r, 1500, 0.02)
		d, p := diff(t, step(r, base, width, 0.5), base, width), pack(t, base, width)
		for n := range d {
			mustRefuse(t, "Patch of a part", Patch(make([]byte, len(base)), d[:n], width))
		}
		for n := range p {
			mustRefuse(t, "Unpack of a part", Unpack(make([]byte, len(base)), p[:n], width))
		}
		mustRefuse(t, "Patch of more", Patch(make([]byte, len(base)), append(bytes.Clone(d), 0), width))
		mustRefuse(t, "Unpack of more", Unpack(make([]byte, len(base)), append(bytes.Clone(p), 0), width))
		for range 500 {
			d, p := bytes.Clone(d), bytes.Clone(p)
			for range 1 + r.IntN(3) {
				d[r.IntN(len(d))] = byte(r.Uint32())
				p[r.IntN(len(p))] = byte(r.Uint32())
			}
			if err := Patch(make([]byte, len(base)), d, width); err != nil {
				mustRefuse(t, "Patch of a damaged code", err)
			}
			if err := Unpack(make([]byte, len(base)), p, width); err != nil {
				mustRefuse(t, "Unpack of a damaged code", err)
			}
		}
	}
}

// The format is stable: codes of old versions are read, and new codes are equal to them.
func TestGoldenCodes(t *testing.T) {
	seq := func(n, mod int) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(i % mod)
		}
		return p
	}
	skewed := make([]byte, 200)
	for i := range skewed {
		skewed[i] = byte(i * i % 7 * (i % 3))
	}
	flip := func(p []byte, at ...int) []byte {
		p = bytes.Clone(p)
		for _, i := range at {
			p[i] ^= 3
		}
		return p
	}
	for _, c := range []struct {
		name  string
		src   []byte
		base  []byte // nil: packed
		width int
		code  string
	}{
		{"equal", seq(40, 256), seq(40, 256), 4, "01042800"},
		{"no bytes", []byte{}, []byte{}, 1, "01010000"},
		{"two elements and the rest", flip(seq(21, 256), 2, 3, 8, 20), seq(21, 256), 2, "01021503000102050001030003000000"},
		{"long gaps", flip(make([]byte, 10000), 300, 9000), make([]byte, 10000), 1, "0101904e0200f0ff04003cfb2100010300"},
		{"dense", skewed, make([]byte, 200), 1, "0101c8017202190000811223491949ca4852469232929491a48c24652429234919190002220000870110100075938a75938a75938a75938a75938a75938a75938a75938a75938a751300"},
		{"packed nothing", []byte{}, nil, 2, "020200"},
		{"packed raw", seq(9, 256), nil, 4, "02040900000400010500020600030708"},
		{"packed fill", bytes.Repeat([]byte{1, 2}, 20), nil, 2, "02022801010102"},
		{"packed planes of 2", seq(46, 256), nil, 2, "02022e000008020a040c060e1018121a141c161e20222426282a2c000109030b050d070f1119131b151d171f21232527292b2d"},
		{"packed planes of 4", seq(71, 251), nil, 4, "0204470000081018040c141c20283038242c343c400001091119050d151d21293139252d353d4100020a121a060e161e222a323a262e363e4200030b131b070f171f232b333b272f373f43444546"},
		{"packed planes of 8", seq(100, 99), nil, 8, "020864000008101820283038404850580001091119212931394149515900020a121a222a323a424a525a00030b131b232b333b434b535b00040c141c242c343c444c545c00050d151d252d353d454d555d00060e161e262e363e464e565e00070f171f272f373f474f575f60616200"},
		{"packed in four parts", bytes.Repeat(skewed[:10], 110), nil, 1, "0201cc080305010087311000003f003e003f0019ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c86017319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c19ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c86017319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c867319ce653897e15c"},
		{"packed skewed", skewed, nil, 1, "0201c801023b000087311010009997c3a8342af372189546655e0ea3d2a8cccb61541a9579398c4aa3322f87516954e6e5302a8dcabc1c46a5519997c3a8342af37218"},
	} {
		var code []byte
		if c.base == nil {
			code = pack(t, c.src, c.width)
		} else {
			code = diff(t, c.src, c.base, c.width)
		}
		if got := hex.EncodeToString(code); got != c.code {
			t.Errorf("%s: the code is\n%s, want\n%s", c.name, got, c.code)
		}
		if err := readGolden(c.src, c.base, c.width, c.code); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// readGolden checks that code is still read as src.
func readGolden(src, base []byte, width int, code string) error {
	b, err := hex.DecodeString(code)
	if err != nil {
		return err
	}
	p := make([]byte, len(src))
	if base == nil {
		err = Unpack(p, b, width)
	} else {
		copy(p, base)
		err = Patch(p, b, width)
	}
	if err == nil && !bytes.Equal(p, src) {
		err = errors.New("the code is read as another segment")
	}
	return err
}

// Coding a segment again takes no new memory. Garbage collection empties the pool of coders,
// and the race detector makes it drop some at random, so one of many runs must do.
func TestAllocations(t *testing.T) {
	r := random(t)
	base := bf16(r, 1<<15, 0.02)
	src := step(r, base, 2, 0.015)
	d, p := make([]byte, 0, MaxLen), make([]byte, 0, MaxLen)
	q := bytes.Clone(base)
	least := 1e9
	for try := 0; try < 100 && least > 0; try++ {
		least = min(least, testing.AllocsPerRun(1, func() {
			d, _ = AppendDiff(d[:0], src, base, 2, len(src))
			p, _ = AppendPacked(p[:0], src, 2, len(src))
			if err := errors.Join(Patch(q, d, 2), Unpack(q, p, 2)); err != nil {
				t.Fatal(err)
			}
		}))
	}
	if least > 0 {
		t.Errorf("coding a segment again takes %v allocations", least)
	}
}

// Many goroutines code segments at a time.
func TestConcurrentUse(t *testing.T) {
	r := random(t)
	base := bf16(r, 1<<15, 0.02)
	src := step(r, base, 2, 0.1)
	d, p := diff(t, src, base, 2), pack(t, src, 2)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				a, _ := AppendDiff(nil, src, base, 2, len(src))
				b, _ := AppendPacked(nil, src, 2, len(src))
				q := bytes.Clone(base)
				if err := Patch(q, d, 2); err != nil || !bytes.Equal(q, src) || !bytes.Equal(a, d) {
					t.Errorf("the difference of a goroutine differs: %v", err)
				}
				clear(q)
				if err := Unpack(q, p, 2); err != nil || !bytes.Equal(q, src) || !bytes.Equal(b, p) {
					t.Errorf("the packed form of a goroutine differs: %v", err)
				}
			}
		})
	}
	wg.Wait()
}
