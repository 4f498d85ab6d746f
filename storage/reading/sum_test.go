package reading

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// piece is a range of a file.
type piece struct{ begin, end int64 }

// drawPieces divides a record into pieces in any order. Some of them overlap.
func drawPieces(t *rapid.T, offset int64, n int) []piece {
	var out []piece
	for at := 0; at < n; {
		next := rapid.IntRange(at+1, n).Draw(t, "end")
		from := rapid.IntRange(max(0, at-5), at).Draw(t, "begin")
		out = append(out, piece{offset + int64(from), offset + int64(next)})
		at = next
	}
	return rapid.Permutation(out).Draw(t, "order")
}

// In any order of reads, the read that completes a damaged record returns an error, and no
// earlier read does.
func TestSumsOfPiecesInAnyOrder(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		data := rapid.SliceOfN(rapid.Byte(), 30, 200).Draw(t, "file")
		begin := rapid.IntRange(0, 10).Draw(t, "record")
		end := rapid.IntRange(begin+1, len(data)).Draw(t, "end of the record")
		sum := &Sum{Record: "r", Offset: int64(begin), End: int64(end), CRC: crc32.ChecksumIEEE(data[begin:end])}
		bad := rapid.Bool().Draw(t, "damaged")
		if bad {
			data[rapid.IntRange(begin, end-1).Draw(t, "damage")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		}
		s := newSums()
		left := map[int64]bool{}
		for i := begin; i < end; i++ {
			left[int64(i)] = true
		}
		for _, p := range drawPieces(t, int64(begin), end-begin) {
			for i := p.begin; i < p.end; i++ {
				delete(left, i)
			}
			err := s.add("f", sum, p.begin, data[p.begin:p.end], nil)
			switch {
			case bad && len(left) == 0:
				if !errors.Is(err, storage.ErrCorrupt) {
					t.Fatalf("see %v, all of it seen = %v; want %v", p, err, storage.ErrCorrupt)
				}
			case err != nil:
				t.Fatalf("see %v, %d bytes left = %v", p, len(left), err)
			case len(left) == 0 && !bad:
				return // later bytes belong to a new read
			}
		}
	})
}

func TestSumsForgetCompleteRecords(t *testing.T) {
	s, data := newSums(), noise(1000)
	sum := &Sum{Offset: 0, End: 1000, CRC: crc32.ChecksumIEEE(data)}
	for range 3 {
		for _, p := range []piece{{500, 1000}, {0, 500}} {
			must.Do(t, s.add("f", sum, p.begin, data[p.begin:p.end], nil))
		}
		if len(s.records) != 0 || s.runs != 0 || len(s.good) != 1 {
			t.Fatalf("%d records, %d runs, %d good records; want one good record", len(s.records), s.runs, len(s.good))
		}
	}
}

// All reads that complete a damaged record return an error.
func TestSumsReportDamageToEveryReader(t *testing.T) {
	s, data := newSums(), noise(1000)
	sum := &Sum{Offset: 0, End: 1000, CRC: crc32.ChecksumIEEE(data) ^ 1}
	for range 2 { // both readers see the first half
		must.Do(t, s.add("f", sum, 0, data[:500], nil))
	}
	for range 2 {
		if err := s.add("f", sum, 500, data[500:], nil); !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("see = %v; want %v", err, storage.ErrCorrupt)
		}
	}
}

// The number of runs is bounded. A record with too many is read again.
func TestSumsAreBounded(t *testing.T) {
	s, data := newSums(), noise(1000)
	s.limit, s.each = 10, 4
	sum := &Sum{Offset: 0, End: 1000, CRC: crc32.ChecksumIEEE(data)}
	for i := range int64(100) { // single bytes of one record
		must.Do(t, s.add("many", sum, 2*i, data[2*i:2*i+1], nil))
	}
	for i := range 100 { // one byte of many records
		must.Do(t, s.add(fmt.Sprint(i), sum, 0, data[:1], nil))
		if s.runs > s.limit {
			t.Fatalf("%d runs; want at most %d", s.runs, s.limit)
		}
	}
	for _, name := range []string{"many", "0", "99"} {
		mine, others, bad := s.claim([]recordID{{name, *sum}}, 300)
		if len(mine) != 1 || len(others) != 0 || bad != nil {
			t.Fatalf("claim %q = %d to read, %d that others read, %v; want one to read", name, len(mine), len(others), bad)
		}
		for _, gap := range mine[0].gaps {
			must.Do(t, gap.Take(data[gap.begin:gap.end]))
		}
		if bad := s.release(mine, true); bad != nil {
			t.Errorf("release %q = %v; want a good record", name, bad)
		}
	}
}

// Several goroutines may read the same bytes at the same time.
func TestSumsOfSeveralReaders(t *testing.T) {
	s, data := newSums(), noise(64<<10)
	sum := &Sum{Offset: 0, End: int64(len(data)), CRC: crc32.ChecksumIEEE(data)}
	var wg sync.WaitGroup
	for step := range 8 {
		wg.Go(func() {
			n := 100 + 37*step
			for at := 0; at < len(data); at += n {
				if err := s.add("f", sum, int64(at), data[at:min(at+n, len(data))], nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// checkedTensor is a tensor of a record with a checksum, and its bytes.
func checkedTensor(t testing.TB, shape, strides []int64, resolve func([]byte)) (*Checkpoint, func()) {
	data := noise(int(shape[0]*shape[1])*4 + 100)
	end := int64(len(data) - 50)
	sum := &Sum{Record: "data/7", Offset: 50, End: end, CRC: crc32.ChecksumIEEE(data[50:end])}
	ck, store := one(t, tensor.Float32, shape, Region{Offset: 50, End: end, DType: tensor.Float32, Strides: strides, Resolve: resolve, Sum: sum}, data)
	return ck, func() {
		data[len(data)/2] ^= 4
		put(t, store, "data", data)
	}
}

// readBoxes reads boxes of the tensor x, each by a reader of its own.
func readBoxes(t testing.TB, ck *Checkpoint, shape []int64, d tensor.DType, boxes ...tensor.Box) error {
	for _, b := range boxes {
		var p plan.LoadPlan
		want(&p, "x", tensor.Whole(shape), b)
		g := newTarget(t)
		g.fill(&p, d)
		if _, err := read(t, ck, &p, g, storage.ReadOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func TestReadDetectsDamage(t *testing.T) {
	shape := []int64{100, 5400}
	rows := func(n int64) (out []tensor.Box) {
		for at := int64(0); at < shape[0]; at += n {
			out = append([]tensor.Box{box([]int64{at, 0}, []int64{min(n, shape[0]-at), shape[1]})}, out...)
		}
		return out
	}
	columns := []tensor.Box{box([]int64{0, 0}, []int64{100, 2400}), box([]int64{0, 2400}, []int64{100, 3000})}
	for claim, c := range map[string]struct {
		to      tensor.DType
		strides []int64
		resolve func([]byte)
		boxes   []tensor.Box
	}{
		"the whole, into its place":   {tensor.Float32, nil, nil, rows(100)},
		"the whole, converted":        {tensor.Float64, nil, nil, rows(100)},
		"the whole, transposed":       {tensor.Float32, []int64{1, 100}, nil, rows(100)},
		"the whole, resolved":         {tensor.Float32, nil, func(p []byte) { clear(p) }, rows(100)},
		"many rows, the last first":   {tensor.Float32, nil, nil, rows(7)},
		"large parts, the last first": {tensor.Float32, nil, nil, rows(25)},
		"columns that are all":        {tensor.Float32, nil, nil, columns},
		"some columns":                {tensor.Float32, nil, nil, columns[:1]},
		"some rows":                   {tensor.Float32, nil, nil, rows(50)[:1]},
		"narrow columns":              {tensor.Float32, nil, nil, []tensor.Box{box([]int64{0, 7}, []int64{100, 2})}},
		"one element":                 {tensor.Float32, nil, nil, []tensor.Box{box([]int64{99, 5399}, []int64{1, 1})}},
	} {
		t.Run(claim, func(t *testing.T) {
			ck, damage := checkedTensor(t, shape, c.strides, c.resolve)
			if err := readBoxes(t, ck, shape, c.to, c.boxes...); err != nil {
				t.Fatalf("before the damage: ReadData = %v", err)
			}
			ck.sums = newSums() // as if it were opened again
			damage()
			err := readBoxes(t, ck, shape, c.to, c.boxes...)
			if !errors.Is(err, storage.ErrCorrupt) {
				t.Fatalf("ReadData = %v; want %v", err, storage.ErrCorrupt)
			}
			for _, word := range []string{`"x"`, `"data/7"`, " of data "} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%v does not say %s", err, word)
				}
			}
			if err := readBoxes(t, ck, shape, c.to, box([]int64{0, 0}, []int64{1, 1})); !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("a later read of the record = %v; want %v", err, storage.ErrCorrupt)
			}
		})
	}
}

// Reads of slices read the rest of a record once, also if they run at the same time. A read
// of the whole record reads no byte twice.
func TestReadComparesARecordOnce(t *testing.T) {
	shape := []int64{64, 1 << 14}
	total := shape[0] * shape[1] * 4
	row := func(i int64) tensor.Box { return box([]int64{i, 0}, []int64{1, shape[1]}) }
	bytesOf := func(t *testing.T, ck *Checkpoint, boxes ...tensor.Box) int64 {
		var p plan.LoadPlan
		for _, b := range boxes {
			want(&p, "x", tensor.Whole(shape), b)
		}
		g := newTarget(t)
		g.fill(&p, tensor.Float32)
		return must.Get(read(t, ck, &p, g, storage.ReadOptions{}))(t).Read
	}

	ck, _ := checkedTensor(t, shape, nil, nil)
	if n := bytesOf(t, ck, tensor.Whole(shape)); n != total {
		t.Errorf("the whole tensor: %d bytes were read; want %d", n, total)
	}
	if n := bytesOf(t, ck, row(3)); n != total/shape[0] {
		t.Errorf("a row after the whole tensor: %d bytes were read; want %d", n, total/shape[0])
	}

	ck, _ = checkedTensor(t, shape, nil, nil)
	if n := bytesOf(t, ck, row(3), row(5)); n != total {
		t.Errorf("the first rows: %d bytes were read; want %d", n, total)
	}
	if n := bytesOf(t, ck, row(4)); n != total/shape[0] {
		t.Errorf("another row: %d bytes were read; want %d", n, total/shape[0])
	}

	ck, _ = checkedTensor(t, shape, nil, nil)
	var all atomic.Int64
	var wg sync.WaitGroup
	for i := range shape[0] {
		wg.Go(func() { all.Add(bytesOf(t, ck, row(i))) })
	}
	wg.Wait()
	if n := all.Load(); n > 2*total {
		t.Errorf("all rows at the same time: %d bytes were read; want at most %d", n, 2*total)
	}
}

// If a read is cancelled while it compares a record, a read that waits for it compares the
// record itself.
func TestReadComparesAfterACancelledRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shape := []int64{100, 5400}
		ck, damage := checkedTensor(t, shape, nil, nil)
		damage()
		ids := []recordID{{"data", *ck.src.mustRegion(t).Sum}}
		mine, _, _ := ck.sums.claim(ids, 1<<20) // a read that is cancelled later
		done := make(chan error)
		go func() { done <- readBoxes(t, ck, shape, tensor.Float32, box([]int64{0, 0}, []int64{1, 1})) }()
		synctest.Wait()
		ck.sums.release(mine, false)
		if err := <-done; !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("ReadData = %v; want %v", err, storage.ErrCorrupt)
		}
	})
}

// mustRegion returns the region of the only tensor.
func (s *Source) mustRegion(t testing.TB) *Region {
	return must.Get(s.Place(t.Context(), &s.Metadata.Entries[0], 0))(t).Region
}
