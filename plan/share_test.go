package plan_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

const mib = 1 << 20

// described adds a tensor of bytes to md, in one file, as chunks of the given rows
// each (zero: one chunk), with checksums if sums is set.
func described(md *meta.Metadata, fqn string, shape []int64, rows int64, sums bool) {
	if rows == 0 || len(shape) == 0 {
		rows = 1 << 40
	}
	t := &meta.Tensor{Properties: meta.Properties{DType: tensor.Uint8}, Shape: shape}
	for at := int64(0); ; at += rows {
		box := tensor.Whole(shape)
		if len(shape) > 0 {
			box.Offsets, box.Sizes = slices.Clone(box.Offsets), slices.Clone(shape)
			box.Offsets[0], box.Sizes[0] = at, min(rows, shape[0]-at)
		}
		loc := meta.Location{File: "f", Offset: int64(len(md.Entries))<<40 + at, Length: box.Volume()}
		if sums {
			loc.Sums = make([]uint32, 1+box.Volume()/mib)
		}
		t.Chunks, t.Locs = append(t.Chunks, box), append(t.Locs, loc)
		if len(shape) == 0 || at+rows >= shape[0] {
			break
		}
	}
	md.Entries = append(md.Entries, meta.Entry{FQN: fqn, Tensor: t})
}

// wants returns the plans of ranks with those states.
func wants(t failer, md *meta.Metadata, states ...plan.State) []*plan.LoadPlan {
	t.Helper()
	out := make([]*plan.LoadPlan, len(states))
	for r, s := range states {
		d := new(plan.DefaultLoad)
		must.Do(t, d.SetUp(plan.LoadSetup{State: s, Metadata: md}))
		var err error
		if out[r], err = d.LocalPlan(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// hollow returns a tensor with all elements in one byte of memory.
func hollow(t failer, shape ...int64) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.FromStrided(tensor.Uint8, shape, make([]int64, len(shape)), 0, []byte{0}))(t)
	return x
}

// boxed returns boxes of a tensor of bytes without memory.
func boxed(shape []int64, boxes ...tensor.Box) *ramp {
	return &ramp{shape: shape, boxes: boxes, dtype: tensor.Uint8}
}

func all(n int) []bool { return slices.Repeat([]bool{true}, n) }

// toRead returns the bytes that each rank reads, for itself and for others.
func toRead(plans []*plan.LoadPlan, shares []*plan.SharedReads) []int64 {
	out := make([]int64, len(plans))
	for r, p := range plans {
		pieced := map[int]bool{}
		if s := shares[r]; s != nil {
			for i := range s.Pieces {
				c := &s.Pieces[i]
				pieced[c.Item] = true
				if c.Reader == r {
					it := c.Of(p.Items[c.Item])
					out[r] += it.SourceBox().Volume()
				}
			}
		}
		for i := range p.Items {
			if !pieced[i] {
				out[r] += p.Items[i].SourceBox().Volume()
			}
		}
	}
	return out
}

// checkShares fails unless every piece has one reader, which sends it to all
// others that want it, and is of the same bytes on all of them.
func checkShares(t failer, plans []*plan.LoadPlan, takes []bool, shares []*plan.SharedReads) {
	t.Helper()
	type known struct {
		it   plan.ReadItem
		want plan.Piece // of the reader
		to   []int
	}
	byID := map[int64]*known{}
	for r, s := range shares {
		if s == nil {
			continue
		}
		if !takes[r] {
			t.Fatalf("rank %d does not take part and has a share", r)
		}
		if err := s.Check(plans[r], r, len(plans)); err != nil {
			t.Fatalf("share of rank %d: %v", r, err)
		}
		for _, c := range s.Pieces {
			it := c.Of(plans[r].Items[c.Item])
			k := byID[c.ID]
			if k == nil {
				k = &known{it: it}
				byID[c.ID] = k
			}
			if d := cmp.Diff(k.it.SourceBox(), it.SourceBox()); d != "" || k.it.Source.FQN != it.Source.FQN || !slices.Equal(k.it.Source.Offset, it.Source.Offset) {
				t.Fatalf("piece %d is not the same bytes on all ranks:\n%s", c.ID, d)
			}
			if c.Reader == r {
				k.want = c
			} else {
				k.to = append(k.to, r)
			}
		}
	}
	for id, k := range byID {
		if !slices.Equal(k.want.To, k.to) || len(k.to) == 0 || len(k.to) > 63 {
			t.Fatalf("piece %d: its reader sends it to %v; want %v", id, k.want.To, k.to)
		}
	}
}

func TestAssignReadersBalancesReplicas(t *testing.T) {
	md := &meta.Metadata{}
	state := plan.State{}
	for i := range 40 {
		name := fmt.Sprintf("t%02d", i)
		described(md, name, []int64{int64(1+i) * mib}, 0, i%2 == 0)
		state[name] = hollow(t, int64(1+i)*mib)
	}
	plans := wants(t, md, slices.Repeat([]plan.State{state}, 8)...)
	shares := plan.AssignReaders(md, plans, all(8))
	checkShares(t, plans, all(8), shares)
	var sum int64
	got := toRead(plans, shares)
	for _, n := range got {
		sum += n
	}
	if want := int64(40 * 41 / 2 * mib); sum != want {
		t.Errorf("%d bytes are read in all; want %d", sum, want)
	}
	if slices.Max(got)-slices.Min(got) > 2*mib {
		t.Errorf("ranks read %v; want about the same", got)
	}
}

// One large tensor is cut where blocks end, if parts of it can be checked.
func TestAssignReadersCutsLargeTensors(t *testing.T) {
	for name, c := range map[string]struct {
		shape []int64
		sums  bool
		ranks int
		most  int64 // bytes that a rank reads
	}{
		"an embedding":               {[]int64{128 << 10, 8 << 10}, true, 8, 128 * mib},
		"by ranks that do not fit":   {[]int64{128 << 10, 8 << 10}, true, 7, 148 * mib},
		"of one dimension":           {[]int64{1 << 30}, true, 8, 128 * mib},
		"without checksums of parts": {[]int64{1 << 30}, false, 8, 1 << 30},
		"of few rows":                {[]int64{3, 64 * mib}, true, 8, 64 * mib},
		"of a single row":            {[]int64{1, 64 * mib}, true, 8, 64 * mib},
		"not so large":               {[]int64{31 * mib}, true, 8, 31 * mib},
		"just large enough":          {[]int64{32 * mib}, true, 8, 16 * mib},
		"rows of an odd length":      {[]int64{100_000, 3000}, true, 4, 76 * mib},
	} {
		md := &meta.Metadata{}
		described(md, "x", c.shape, 0, c.sums)
		plans := wants(t, md, slices.Repeat([]plan.State{{"x": hollow(t, c.shape...)}}, c.ranks)...)
		shares := plan.AssignReaders(md, plans, all(c.ranks))
		checkShares(t, plans, all(c.ranks), shares)
		got := toRead(plans, shares)
		if slices.Max(got) > c.most || slices.Max(got) < c.most*9/10 {
			t.Errorf("%s: the ranks read %v; want at most %d", name, got, c.most)
		}
		row := tensor.Box{Sizes: c.shape[1:]}.Volume()
		for _, p := range shares[0].Pieces {
			if at := p.Rows[0]; row*(mib/row) == mib && at*row%mib != 0 {
				t.Errorf("%s: a piece begins at row %d, inside of a block", name, at)
			}
		}
	}
}

// Who has much to read for itself reads less for others.
func TestAssignReadersCountsOwnReads(t *testing.T) {
	md := &meta.Metadata{}
	described(md, "own", []int64{10 * mib}, 0, true)
	described(md, "s1", []int64{2 * mib}, 0, true)
	described(md, "s2", []int64{2 * mib}, 0, true)
	both := func() plan.State { return plan.State{"s1": hollow(t, 2*mib), "s2": hollow(t, 2*mib)} }
	first := both()
	first["own"] = hollow(t, 10*mib)
	plans := wants(t, md, first, both())
	if got := toRead(plans, plan.AssignReaders(md, plans, all(2))); !slices.Equal(got, []int64{10 * mib, 4 * mib}) {
		t.Errorf("the ranks read %v; want the second to read what both want", got)
	}
}

func TestAssignReadersNotShared(t *testing.T) {
	md := &meta.Metadata{}
	described(md, "a", []int64{8, 4}, 0, true)
	described(md, "b", []int64{8, 4}, 0, false)
	described(md, "e", []int64{0, 4}, 0, true)
	md.Entries = append(md.Entries, meta.Entry{FQN: "v", Bytes: &meta.Bytes{Size: 100}})
	rows := func(at, n int64) tensor.Box { return tensor.Box{Offsets: []int64{at, 0}, Sizes: []int64{n, 4}} }
	shape := []int64{8, 4}
	for name, c := range map[string]struct {
		states []plan.State
		takes  []bool
		want   int // pieces of rank 0
	}{
		"the same box":                           {[]plan.State{{"a": hollow(t, 8, 4)}, {"a": hollow(t, 8, 4)}}, all(2), 1},
		"a rank alone":                           {[]plan.State{{"a": hollow(t, 8, 4)}}, all(1), 0},
		"another rank does not take part":        {[]plan.State{{"a": hollow(t, 8, 4)}, {"a": hollow(t, 8, 4)}}, []bool{true, false}, 0},
		"no rank takes part":                     {[]plan.State{{"a": hollow(t, 8, 4)}, {"a": hollow(t, 8, 4)}}, []bool{false, false}, 0},
		"another box":                            {[]plan.State{{"a": hollow(t, 8, 4)}, {"a": boxed(shape, rows(0, 4))}}, all(2), 0},
		"the same box twice on one rank":         {[]plan.State{{"a": boxed(shape, rows(0, 4), rows(0, 4))}, {"a": boxed(shape, rows(0, 4))}}, all(2), 1},
		"twice on one rank, and nowhere else":    {[]plan.State{{"a": boxed(shape, rows(0, 4), rows(0, 4))}, {}}, all(2), 0},
		"nothing":                                {[]plan.State{{"e": hollow(t, 0, 4)}, {"e": hollow(t, 0, 4)}}, all(2), 0},
		"a value":                                {[]plan.State{{"v": 1}, {"v": 1}}, all(2), 0},
		"one of two boxes":                       {[]plan.State{{"a": boxed(shape, rows(0, 4), rows(4, 4))}, {"a": boxed(shape, rows(4, 4))}}, all(2), 1},
		"one of two boxes, without sums":         {[]plan.State{{"b": boxed(shape, rows(0, 4), rows(4, 4))}, {"b": boxed(shape, rows(4, 4))}}, all(2), 0},
		"both of two boxes, without sums":        {[]plan.State{{"b": boxed(shape, rows(0, 4), rows(4, 4))}, {"b": boxed(shape, rows(0, 4), rows(4, 4))}}, all(2), 2},
		"two boxes in another order, sums or no": {[]plan.State{{"b": boxed(shape, rows(4, 4), rows(0, 4))}, {"b": boxed(shape, rows(0, 4), rows(4, 4))}}, all(2), 0},
	} {
		plans := wants(t, md, c.states...)
		shares := plan.AssignReaders(md, plans, c.takes)
		checkShares(t, plans, c.takes, shares)
		got := 0
		if shares[0] != nil {
			got = len(shares[0].Pieces)
		}
		if got != c.want {
			t.Errorf("%s: %d pieces; want %d", name, got, c.want)
		}
	}
}

// If only a reader of the whole chunk can check it, its boxes have one reader.
func TestAssignReadersKeepsChunkTogether(t *testing.T) {
	md := &meta.Metadata{}
	described(md, "b", []int64{8, mib}, 0, false)
	rows := func(at int64) tensor.Box { return tensor.Box{Offsets: []int64{at, 0}, Sizes: []int64{4, mib}} }
	s := func() plan.State { return plan.State{"b": boxed([]int64{8, mib}, rows(0), rows(4))} }
	plans := wants(t, md, s(), s())
	if got := toRead(plans, plan.AssignReaders(md, plans, all(2))); !slices.Equal(got, []int64{8 * mib, 0}) {
		t.Errorf("the ranks read %v; want one to read all", got)
	}
}

// However many want it, a rank has to do with few others.
func TestAssignReadersManyRanks(t *testing.T) {
	md := &meta.Metadata{}
	described(md, "x", []int64{mib}, 0, true)
	const n = 1000
	plans := wants(t, md, slices.Repeat([]plan.State{{"x": hollow(t, mib)}}, n)...)
	shares := plan.AssignReaders(md, plans, all(n))
	checkShares(t, plans, all(n), shares)
	var sum int64
	for _, b := range toRead(plans, shares) {
		sum += b
	}
	if sum != 16*mib {
		t.Errorf("%d bytes are read; want 16 times %d", sum, mib)
	}
}

// Small neighbours are read together.
func TestAssignReadersBundlesSmallTensors(t *testing.T) {
	md := &meta.Metadata{}
	state := plan.State{}
	for i := range 4000 {
		name := fmt.Sprintf("t%04d", i)
		described(md, name, []int64{4096}, 0, true)
		state[name] = hollow(t, 4096)
	}
	plans := wants(t, md, state, state)
	shares := plan.AssignReaders(md, plans, all(2))
	checkShares(t, plans, all(2), shares)
	slices.SortFunc(shares[0].Pieces, func(a, b plan.Piece) int { return a.Item - b.Item })
	changes := 0
	for i := range shares[0].Pieces[1:] {
		if shares[0].Pieces[i].Reader != shares[0].Pieces[i+1].Reader {
			changes++
		}
	}
	if changes < 1 || changes > 8 {
		t.Errorf("the reader changes %d times among 4000 tensors of 16 MiB in all", changes)
	}
}

// property: whatever the ranks want, every byte comes to them from one reader
// that wants it too, however often it is asked.
func TestAssignReadersInvariants(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		md, plans, takes := drawWants(t)
		shares := plan.AssignReaders(md, plans, takes)
		checkShares(t, plans, takes, shares)
		if d := cmp.Diff(shares, plan.AssignReaders(md, plans, takes)); d != "" {
			t.Fatalf("a second election differs:\n%s", d)
		}
		alone := make([]*plan.SharedReads, len(plans))
		before, after := toRead(plans, alone), toRead(plans, shares)
		var was, is int64
		for r := range before {
			was, is = was+before[r], is+after[r]
			if !takes[r] && before[r] != after[r] {
				t.Fatalf("rank %d reads %d bytes instead of %d and does not take part", r, after[r], before[r])
			}
		}
		if is > was {
			t.Fatalf("%d bytes are read instead of %d", is, was)
		}
	})
}

func drawWants(t *rapid.T) (*meta.Metadata, []*plan.LoadPlan, []bool) {
	md := &meta.Metadata{}
	var names []string
	for i := range rapid.IntRange(1, 6).Draw(t, "tensors") {
		shape := []int64{rapid.Int64Range(1, 40).Draw(t, "rows"), rapid.SampledFrom([]int64{1, 100, mib, 5 * mib}).Draw(t, "columns")}
		chunk := rapid.Int64Range(1, 40).Draw(t, "chunk")
		names = append(names, fmt.Sprint("t", i))
		described(md, names[i], shape, chunk, rapid.Bool().Draw(t, "sums"))
	}
	var states []plan.State
	var takes []bool
	for range rapid.IntRange(1, 6).Draw(t, "ranks") {
		s := plan.State{}
		for i, n := range names {
			shape := md.Entries[i].Tensor.Shape
			half := tensor.Box{Offsets: []int64{shape[0] / 2, 0}, Sizes: []int64{shape[0] - shape[0]/2, shape[1]}}
			switch rapid.IntRange(0, 3).Draw(t, "part") {
			case 0:
				s[n] = hollow(t, shape...)
			case 1:
				s[n] = boxed(shape, half)
			case 2:
				s[n] = boxed(shape, half, tensor.Whole(shape))
			}
		}
		states, takes = append(states, s), append(takes, rapid.IntRange(0, 4).Draw(t, "takes part") > 0)
	}
	return md, wants(t, md, states...), takes
}
