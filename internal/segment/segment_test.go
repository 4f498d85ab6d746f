package segment

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
)

var widths = []int{1, 2, 4, 8, 16}

// random returns a source of random numbers, with its seed in the test's log.
func random(t testing.TB) *rand.Rand {
	return rand.New(rand.NewPCG(deep.Seed(t), 0))
}

// diff returns the small code of a difference after it has checked both codes, and that
// AppendPlaces and Count find the elements that differ.
func diff(t testing.TB, src, base []byte, width int) []byte {
	t.Helper()
	small, quick := diffAs(t, src, base, width, Small), diffAs(t, src, base, width, Quick)
	if most := len(small) + len(src)/quickShare + 100; len(quick) > most {
		t.Fatalf("width %d, %d bytes: the quick code has %d bytes, over %d", width, len(src), len(quick), most)
	}
	checkPlaces(t, src, base, width)
	return small
}

// diffAs returns a code of a difference after it has checked that Patch undoes it, and that
// Advance returns it, too.
func diffAs(t testing.TB, src, base []byte, width int, form Form) []byte {
	t.Helper()
	code, ok := AppendDiff([]byte("before"), src, base, width, 20*len(src)+100, form)
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
	for _, limit := range []int{len(code), len(code) - 1} {
		p := bytes.Clone(base)
		got, ok := Advance(nil, src, p, width, limit, form)
		if !bytes.Equal(p, src) || ok && !bytes.Equal(got, code) || ok && limit < len(code) {
			t.Fatalf("width %d, %d bytes, at most %d: Advance = %d bytes, %v, and the base has changed: %v", width, len(src), limit, len(got), ok, !bytes.Equal(p, base))
		}
	}
	return code
}

// checkPlaces checks that AppendPlaces and Count find the differences.
func checkPlaces(t testing.TB, src, base []byte, width int) {
	t.Helper()
	n := len(src) / width * width
	places := AppendPlaces([]uint32{77}, src[:n], base[:n], width)
	var want []uint32
	for i := 0; i < n; i += width {
		if !bytes.Equal(src[i:i+width], base[i:i+width]) {
			want = append(want, uint32(i))
		}
	}
	if places[0] != 77 || !slices.Equal(places[1:], want) {
		t.Fatalf("width %d, %d bytes: AppendPlaces = %d places, want %d", width, len(src), len(places)-1, len(want))
	}
	if got := Count(src[:n], base[:n], width); got != len(want) {
		t.Fatalf("width %d, %d bytes: Count = %d, want %d", width, len(src), got, len(want))
	}
}

func TestRoundTripAtAllLengths(t *testing.T) {
	r := random(t)
	lengths := []int{MaxLen, MaxLen - 7, 64<<10 + 1, 8*sampleLen - 1, 8 * sampleLen, blockLen + 1}
	for n := range 131 {
		if deep.On() || r.IntN(5) == 0 {
			lengths = append(lengths, n, 2*rowLen-64+n)
		}
	}
	// Whole segments take long: one of each length, with some width. TestGaps has all widths.
	long := map[int]int{MaxLen: widths[r.IntN(len(widths))], MaxLen - 7: widths[r.IntN(len(widths))]}
	for _, width := range widths {
		for _, n := range lengths {
			if only, ok := long[n]; ok && only != width && !deep.On() {
				continue
			}
			base, shares := noise(r, n), []float64{0, 0.01, 0.5, 1}
			if !deep.On() {
				shares = shares[r.IntN(len(shares)):][:1]
			}
			for _, share := range shares {
				src := step(r, base, width, share)
				if rest := n % width; rest > 0 && share > 0 {
					src[n-1] ^= 0x80
				}
				diff(t, src, base, width)
			}
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
	for i := range deep.Rounds(20, 300) {
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
	}
}

// Every gap between two changes, around the lengths at which the code of gaps changes.
func TestGaps(t *testing.T) {
	for _, width := range widths {
		for _, gap := range []int{0, 1, 127, 128, 129, 16383, 16384, 16385, blockLen/width - 2, blockLen/width - 1, MaxLen/width - 2} {
			if (gap+2)*width > MaxLen {
				continue
			}
			last := (gap+2)*width - 1
			base := make([]byte, (last/rowLen+1)*rowLen)
			src := bytes.Clone(base)
			src[0], src[last] = 1, 2
			diff(t, src, base, width)
		}
	}
}

func TestLimitOfDiff(t *testing.T) {
	r := random(t)
	for _, n := range []int{0, 5, 1000, 1 << 18} {
		base := bf16(r, n, 0.02)
		src := step(r, base, 2, 0.05)
		code := diff(t, src, base, 2)
		enough := len(code)
		if len(src) >= 8*sampleLen {
			enough += enough / 4 // a sample decides, and may differ from the segment
		}
		if got, ok := AppendDiff([]byte{7}, src, base, 2, enough, Small); !ok || len(got) != 1+len(code) {
			t.Errorf("%d elements: a limit of %d bytes refuses a code of %d bytes", n, enough, len(code))
		}
		for _, limit := range []int{0, 1, len(code) / 2, len(code) - 1} {
			if got, ok := AppendDiff([]byte{7}, src, base, 2, limit, Small); ok || !bytes.Equal(got, []byte{7}) {
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
		{"bf16 with 1.5 % changed, quick", share(diffAs(t, step(r, half, 2, 0.015), half, 2, Quick)), 0.025},
		{"bf16 with 5 % changed, quick", share(diffAs(t, step(r, half, 2, 0.05), half, 2, Quick)), 0.035},
		{"fp32 with 1.5 % changed, quick", share(diffAs(t, step(r, single, 4, 0.015), single, 4, Quick)), 0.022},
		{"bf16 with 2 % changed", share(diff(t, step(r, half, 2, 0.02), half, 2)), 0.017},
		{"fp32 with 1.5 % changed", share(diff(t, step(r, single, 4, 0.015), single, 4)), 0.008},
		{"a row changed", share(diff(t, row, half, 2)), 0.009},
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
		if _, ok := AppendDiff(nil, src, base, width, MaxLen/4, Quick); ok {
			t.Errorf("width %d: noise has a code of a quarter", width)
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
	d := diff(t, step(r, base, 2, 0.1), base, 2)
	equal := diff(t, base, base, 2)
	for _, n := range []int{0, 1, 1999, 2001, 4000, MaxLen} {
		mustRefuse(t, fmt.Sprint("Patch of ", n), Patch(make([]byte, n), d, 2))
		mustRefuse(t, fmt.Sprint("Patch without changes of ", n), Patch(make([]byte, n), equal, 2))
	}
	for _, width := range []int{1, 4, 8, 16} {
		mustRefuse(t, "Patch of another width", Patch(make([]byte, 2000), d, width))
	}
}

// Every code that is cut off or continued is refused, and a changed byte never panics.
func TestDamagedCodes(t *testing.T) {
	r := random(t)
	for _, width := range widths {
		base := bf16(r, 1500, 0.02)
		d := diff(t, step(r, base, width, 0.5), base, width)
		for n := range d {
			if deep.On() || n < 10 || n > len(d)-10 || r.IntN(5) == 0 {
				mustRefuse(t, "Patch of a part", Patch(make([]byte, len(base)), d[:n], width))
			}
		}
		mustRefuse(t, "Patch of more", Patch(make([]byte, len(base)), append(bytes.Clone(d), 0), width))
		for range deep.Rounds(100, 500) {
			d := bytes.Clone(d)
			for range 1 + r.IntN(3) {
				d[r.IntN(len(d))] = byte(r.Uint32())
			}
			if err := Patch(make([]byte, len(base)), d, width); err != nil {
				mustRefuse(t, "Patch of a damaged code", err)
			}
		}
	}
}

// The format is stable: codes of old versions are read, and new codes are equal to them.
func TestGoldenCodes(t *testing.T) {
	dense := make([]byte, 2048)
	for i := range dense {
		dense[i] = byte(i * i % 7 * (i % 3))
	}
	flip := func(n int, at ...int) []byte {
		p := make([]byte, n)
		for _, i := range at {
			p[i] ^= 3
		}
		return p
	}
	for _, c := range []struct {
		name  string
		src   []byte // the base is zero
		width int
		code  string
	}{
		{"no bytes", nil, 1, "0100"},
		{"a rest", flip(5, 1, 2), 4, "04050003030000"},
		{"equal", make([]byte, 1024), 4, "04800800"},
		{"three elements and a rest", flip(515, 2, 3, 8, 511, 514), 2, "02830404040102fa010303030003030003000003"},
		{"elements of 16 bytes", flip(1024, 0, 8, 40, 41), 16, "1080080303000003010303000003010001000100010001000100"},
		{"long gaps", flip(40448, 300, 20300), 1, "0180bc020505ac029f9c010103"},
		{"two blocks", flip(blockLen+512, 300, blockLen+500), 1, "018084200202ac0201030202f4030103"},
		{"dense", dense[:1024], 1, "018008c8047c81121d001d001d002465242923491949ca4852469232929491a48c2465242923491949cac8242923491949ca4852469232929491a48c2465242923491949ca4852c623491949ca4852469232929491a48c2465242923491949ca48524692b21949ca4852469232929491a48c2465242923491949ca485246923292949f018701101000250025002500938a75938a75938a75938a75938a75938a75938a75938a75938a75938a75938a75938a751337a95837a95837a95837a95837a95837a95837a95837a95837a95837a95837a95837a9581775938a75938a75938a75938a75938a75938a75938a75938a75938a75938a75938a75938a155837a95837a95837a95837a95837a95837a95837a95837a95837a95837a95837a95837a918"},
		{"dense planes", dense, 4, "04801080040100970187413020002300230023000d0cb891b9ac81013732973530e046e6b20606dcc85cd6c0801b99cb1a1870237359036b60c08dcc650d0cb891b9ac81013732973530e046e6b20606dcc85cd6c0801b99cb02650d0cb891b9ac81013732973530e046e6b20606dcc85cd6c0801b99cb1a1870237309973530e046e6b20606dcc85cd6c0801b99cb1a187023735903036e642e6b60c08dcc0197018731101000230023002300c339d5d1a47038a73a9a140ee7544793c2e19cea6852389c531d4d0a8773aaa349e110389c531d4d0a8773aaa349e1704e7534291ccea98e2685c339d5d1a47038a73a9a140685c339d5d1a47038a73a9a140ee7544793c2e19cea6852389c531d4d0a8773aaa3490549e1704e7534291ccea98e2685c339d5d1a47038a73a9a140ee7544793c2e19cea681297018731101000230023002300a73a9a140ee7544793c2e19cea6852389c531d4d0a8773aaa349e1704e7534291cce0573aaa349e1704e7534291ccea98e2685c339d5d1a47038a73a9a140ee7544793c2e10438a73a9a140ee7544793c2e19cea6852389c531d4d0a8773aaa349e1704e7534291c068773aaa349e1704e7534291ccea98e2685c339d5d1a47038a73a9a140ee7544793c20597018741203000230023002300a7c960c019ed34190c38a39d26830167b4d36430e08c769a0c069cd14e93c18033da013b4d0603ce68a7c960c019ed34190c38a39d26830167b4d36430e08c769a0c069cd102d14e93c18033da69321870463b4d0603ce68a7c960c019ed34190c38a39d268301671419ed34190c38a39d26830167b4d36430e08c769a0c069cd14e93c18033da6932187006"},
	} {
		base := make([]byte, len(c.src))
		if got := hex.EncodeToString(diff(t, c.src, base, c.width)); got != c.code {
			t.Errorf("%s: the code is\n%s, want\n%s", c.name, got, c.code)
		}
		p := bytes.Clone(base)
		code := must.Get(hex.DecodeString(c.code))(t)
		if err := Patch(p, code, c.width); err != nil || !bytes.Equal(p, c.src) {
			t.Errorf("%s: the code is read as another segment: %v", c.name, err)
		}
	}
}

// Coding a segment again takes no new memory. Garbage collection empties the pool of coders,
// and the race detector makes it drop some at random, so one of many runs must do.
func TestAllocations(t *testing.T) {
	r := random(t)
	base := bf16(r, 1<<15, 0.02)
	src := step(r, base, 2, 0.015)
	d := make([]byte, 0, MaxLen)
	q := bytes.Clone(base)
	least := 1e9
	for try := 0; try < 100 && least > 0; try++ {
		least = min(least, testing.AllocsPerRun(1, func() {
			d, _ = AppendDiff(d[:0], src, base, 2, len(src), Quick)
			if err := Patch(q, d, 2); err != nil {
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
	d := diff(t, src, base, 2)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				a, _ := AppendDiff(nil, src, base, 2, len(src), Small)
				q := bytes.Clone(base)
				if err := Patch(q, d, 2); err != nil || !bytes.Equal(q, src) || !bytes.Equal(a, d) {
					t.Errorf("the difference of a goroutine differs: %v", err)
				}
			}
		})
	}
	wg.Wait()
}
