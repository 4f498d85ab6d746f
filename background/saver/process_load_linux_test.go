package saver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// newPair returns a saver that runs in this process, so that the race detector sees both
// sides.
func newPair(t *testing.T, arenaSize int64) *Process {
	t.Helper()
	a, err := stage.NewShared(arenaSize)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.FileConn(theirs)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		defer conn.Close()
		served <- Serve(context.Background(), conn, a.File(), nil)
	}()
	p := newProcess(ours, a, func() error { return <-served })
	t.Cleanup(func() {
		p.Kill()
		<-p.Ended()
		if now, _ := a.Used(); now != 0 {
			t.Errorf("%d bytes of the arena are in use at the end", now)
		}
		a.Close()
	})
	if err := p.greet(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// The tensors of the checkpoints: a matrix that is sharded by rows, one that is not, and
// one number.
var (
	rows   = []int64{12, 10}
	plain  = []int64{5, 3, 7}
	number = []int64{}
)

// matrix returns a tensor whose elements are their positions, times a factor.
func matrix(t *testing.T, d tensor.DType, shape []int64, factor int) *tensor.Tensor {
	t.Helper()
	x, err := tensor.New(tensor.Int64, shape)
	if err != nil {
		t.Fatal(err)
	}
	v, err := tensor.Values[int64](x)
	if err != nil {
		t.Fatal(err)
	}
	for i := range v {
		v[i] = int64(i*factor) % 251
	}
	out, err := tensor.Cast(x, d)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// writeCheckpoint saves the tensors, and the value "step" if the format can hold it.
func writeCheckpoint(t *testing.T, f storage.Format, ranks int) string {
	t.Helper()
	folder := t.TempDir()
	store, err := file.Open(folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	whole := matrix(t, tensor.Float32, rows, 1)
	save := func(g group.Group) error {
		state := plan.State{"plain": matrix(t, tensor.Int32, plain, 3), "number": matrix(t, tensor.Float64, number, 1)}
		if f.Name() != formats.HF {
			state["step"] = int64(100)
		}
		sharded, err := shard.Empty(shard.Rows(ranks), tensor.Float32, rows, g.Rank())
		if err != nil {
			return err
		}
		for i, b := range sharded.Boxes() {
			part, err := sharded.Part(i)
			if err != nil {
				return err
			}
			from, err := whole.Narrow(b)
			if err != nil {
				return err
			}
			if err := tensor.Copy(part, from); err != nil {
				return err
			}
		}
		if state["rows"] = sharded; ranks == 1 {
			state["rows"] = whole
		}
		w, err := f.NewWriter(store, storage.WriteOptions{})
		if err != nil {
			return err
		}
		_, err = protocol.Save(t.Context(), protocol.RankSave{
			Group: g, Planner: new(plan.DefaultSave), Writer: w, State: state,
			Storage: meta.Storage{SaveID: "one", Time: time.Unix(1e9, 0).UTC(), WorldSize: ranks},
		})
		return err
	}
	var wg sync.WaitGroup
	for _, g := range inproc.New(ranks) {
		wg.Go(func() {
			if err := save(g); err != nil {
				t.Errorf("rank %d: %v", g.Rank(), err)
				g.Leave(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return folder
}

// loadFormats are all formats, with the number of ranks that write.
var loadFormats = map[string]struct {
	storage.Format
	ranks int
}{
	"native":   {native.Format{}, 3},
	"torchdcp": {torchdcp.Format{}, 3},
	"hf":       {hf.Format{}, 3},
	"hf whole": {hf.Format{}, 1},
	"torch":    {torchfile.Format{File: "model.pt"}, 1},
	"hyper":    {hyper.Format{}, 3},
}

// gathered puts the pieces of a load together.
type gathered struct {
	t      *testing.T
	wants  []Want
	pieces int
	got    map[int]*tensor.Tensor // by item
	left   map[int]int64          // elements that have not come
	values map[int]any
}

func gather(t *testing.T, wants []Want) *gathered {
	return &gathered{t: t, wants: wants, got: map[int]*tensor.Tensor{}, left: map[int]int64{}, values: map[int]any{}}
}

func (g *gathered) piece(p Piece) error {
	g.pieces++
	w := g.wants[p.Item]
	if w.DType == tensor.Invalid {
		v, err := value.Decode(p.Codec, p.Data)
		g.values[p.Item] = v
		return err
	}
	box := w.Box
	if box.Sizes == nil {
		box = tensor.Whole(w.Shape)
	}
	if g.got[p.Item] == nil {
		x, err := tensor.New(w.DType, box.Sizes)
		if err != nil {
			return err
		}
		g.got[p.Item], g.left[p.Item] = x, x.NumElements()
	}
	to, err := g.got[p.Item].Narrow(p.Box.Relative(box.Offsets))
	if err != nil {
		return err
	}
	g.left[p.Item] -= to.NumElements()
	return tensor.Copy(to, p.Tensor)
}

// check compares an item with a part of a tensor.
func (g *gathered) check(item int, whole *tensor.Tensor) {
	g.t.Helper()
	w := g.wants[item]
	part := whole
	if w.Box.Sizes != nil {
		var err error
		if part, err = whole.Narrow(w.Box); err != nil {
			g.t.Fatal(err)
		}
	}
	got := g.got[item]
	if got == nil || g.left[item] != 0 {
		g.t.Errorf("item %d, %+v: %d elements have not come, of %v", item, w, g.left[item], got)
		return
	}
	if !bytes.Equal(got.Contents(), part.Contents()) {
		g.t.Errorf("item %d, %+v: got other elements", item, w)
	}
}

func TestLoadOfEveryFormat(t *testing.T) {
	seen := map[string]bool{}
	for name, f := range loadFormats {
		seen[f.Name()] = true
		t.Run(name, func(t *testing.T) {
			folder := writeCheckpoint(t, f.Format, f.ranks)
			wants := []Want{
				{Name: "rows", DType: tensor.Float32, Shape: rows, Box: tensor.Box{Offsets: []int64{0, 2}, Sizes: []int64{12, 3}}}, // columns
				{Name: "rows", DType: tensor.Float32, Shape: rows},
				{Name: "rows", DType: tensor.Float32, Shape: rows, Box: tensor.Box{Offsets: []int64{12, 0}, Sizes: []int64{0, 10}}},
				{Name: "plain", DType: tensor.Int64, Shape: plain}, // converted
				{Name: "number", DType: tensor.Float64, Shape: number},
			}
			if f.Name() != formats.HF {
				wants = append(wants, Want{Name: "step"})
			}
			for _, size := range []int64{16 << 10, 1 << 20} {
				for _, format := range []storage.Format{nil, f.Format} {
					p := newPair(t, size)
					g := gather(t, wants)
					l := Load{Store: folder, Items: wants}
					var planned, moved int64
					var mu sync.Mutex
					l.Observer = &protocol.Observer{
						Planned: func(n int64) { mu.Lock(); defer mu.Unlock(); planned += n },
						Moved:   func(n int64) { mu.Lock(); defer mu.Unlock(); moved += n },
					}
					if format != nil {
						var err error
						l.Format = format.Name()
						if l.FormatOptions, err = FormatOptions(format); err != nil {
							t.Fatal(err)
						}
					}
					r, err := p.Load(t.Context(), l, g.piece)
					if err != nil {
						t.Fatal(err)
					}
					g.check(0, matrix(t, tensor.Float32, rows, 1))
					g.check(1, matrix(t, tensor.Float32, rows, 1))
					g.check(2, matrix(t, tensor.Float32, rows, 1))
					g.check(3, matrix(t, tensor.Int64, plain, 3))
					g.check(4, matrix(t, tensor.Float64, number, 1))
					if len(wants) == 6 && g.values[5] != int64(100) {
						t.Errorf("the value is %v", g.values[5])
					}
					if r.Local.Needed == 0 || len(r.Missing) > 0 {
						t.Errorf("the report is %+v", r)
					}
					mu.Lock()
					if planned == 0 || planned != moved {
						t.Errorf("%d bytes were planned and %d moved", planned, moved)
					}
					mu.Unlock()
				}
			}
		})
	}
	if got := slices.Sorted(maps.Keys(seen)); len(got) != len(formats.Names()) {
		t.Errorf("%v were loaded; want %v", got, formats.Names())
	}
}

// A load that is larger than the arena comes in pieces, and memory is used again.
func TestLoadLargerThanTheArena(t *testing.T) {
	folder := t.TempDir()
	store, err := file.Open(folder, nil)
	if err != nil {
		t.Fatal(err)
	}
	big, wide := matrix(t, tensor.Int64, []int64{3, 300, 50}, 7), matrix(t, tensor.Uint8, []int64{1, 200_000}, 5)
	state := plan.State{"big": big, "wide": wide}
	wants := []Want{{Name: "big", DType: tensor.Int64, Shape: big.Shape()}, {Name: "wide", DType: tensor.Uint8, Shape: wide.Shape()}}
	for i := range 50 {
		name := fmt.Sprint("small", i)
		state[name] = matrix(t, tensor.Int16, []int64{int64(i)}, i)
		wants = append(wants, Want{Name: name, DType: tensor.Int16, Shape: []int64{int64(i)}})
	}
	w, err := native.Format{}.NewWriter(store, storage.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = protocol.Save(t.Context(), protocol.RankSave{
		Group: group.Solo(), Planner: new(plan.DefaultSave), Writer: w, State: state, Storage: meta.Storage{SaveID: "one", Time: time.Unix(1e9, 0)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{16 << 10, 64 << 10, 8 << 20} {
		p := newPair(t, size)
		g := gather(t, wants)
		if _, err := p.Load(t.Context(), Load{Store: folder, Items: wants}, g.piece); err != nil {
			t.Fatal(err)
		}
		for i, w := range wants {
			g.check(i, state[w.Name].(*tensor.Tensor))
		}
		if size == 8<<20 && g.pieces != len(wants) {
			t.Errorf("%d items came in %d pieces", len(wants), g.pieces)
		}
		if _, peak := p.arena.Used(); peak > p.arena.Room() || g.pieces < len(wants) {
			t.Errorf("%d bytes of %d were used, and %d pieces came", peak, p.arena.Room(), g.pieces)
		}
	}
}

func TestLoadFailures(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 2)
	fine := Want{Name: "plain", DType: tensor.Int32, Shape: plain}
	for claim, c := range map[string]struct {
		load Load
		want []error
	}{
		"a name that is missing":    {Load{Store: folder, Items: []Want{fine, {Name: "nothing", DType: tensor.Int8, Shape: plain}}}, []error{plan.ErrMissing, plan.ErrMismatch}},
		"a value that is missing":   {Load{Store: folder, Items: []Want{fine, {Name: "nothing"}}}, []error{plan.ErrMissing}},
		"another shape":             {Load{Store: folder, Items: []Want{{Name: "plain", DType: tensor.Int32, Shape: []int64{5, 21}}}}, []error{plan.ErrMismatch}},
		"a tensor as a value":       {Load{Store: folder, Items: []Want{{Name: "plain"}}}, []error{plan.ErrMismatch}},
		"a value as a tensor":       {Load{Store: folder, Items: []Want{{Name: "step", DType: tensor.Int64}}}, []error{plan.ErrMismatch}},
		"no checkpoint":             {Load{Store: t.TempDir(), Items: []Want{fine}}, []error{storage.ErrNotFound}},
		"an unknown format":         {Load{Store: folder, Format: "tar", Items: []Want{fine}}, []error{formats.ErrUnknown}},
		"an unknown option":         {Load{Store: folder, Format: "native", FormatOptions: []byte(`{"x":1}`), Items: []Want{fine}}, []error{storage.ErrOptions}},
		"options without a format":  {Load{Store: folder, FormatOptions: []byte(`{"file_bytes":1}`), Items: []Want{fine}}, []error{storage.ErrOptions}},
		"a box outside":             {Load{Store: folder, Items: []Want{{Name: "plain", DType: tensor.Int32, Shape: plain, Box: tensor.Box{Offsets: []int64{5, 0, 0}, Sizes: []int64{1, 1, 1}}}}}, []error{tensor.ErrShape}},
		"a shape that is too large": {Load{Store: folder, Items: []Want{{Name: "plain", DType: tensor.Int32, Shape: []int64{1 << 40, 1 << 40}}}}, []error{tensor.ErrShape}},
	} {
		t.Run(claim, func(t *testing.T) {
			p := newPair(t, 64<<10)
			_, err := p.Load(t.Context(), c.load, func(Piece) error { return nil })
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("Load = %v; want %v", err, want)
				}
			}
			g := gather(t, []Want{fine})
			if _, err := p.Load(t.Context(), Load{Store: folder, Items: g.wants}, g.piece); err != nil {
				t.Errorf("the next load: %v", err)
			}
			g.check(0, matrix(t, tensor.Int32, plain, 3))
		})
	}
}

func TestLoadAllowsMissing(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 2)
	p := newPair(t, 64<<10)
	g := gather(t, []Want{
		{Name: "nothing", DType: tensor.Int8, Shape: plain}, {Name: "plain", DType: tensor.Int32, Shape: plain},
		{Name: "empty", DType: tensor.Int8, Shape: []int64{0}}, {Name: "none"},
	})
	r, err := p.Load(t.Context(), Load{Store: folder, AllowMissing: true, Items: g.wants}, g.piece)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(r.Missing)
	if want := []string{"empty", "none", "nothing"}; !slices.Equal(r.Missing, want) || g.pieces != 1 {
		t.Errorf("Missing = %q, and %d pieces came; want %q", r.Missing, g.pieces, want)
	}
	g.check(1, matrix(t, tensor.Int32, plain, 3))
}

// What stops a load stops the saver, and the memory is free then.
func TestLoadStops(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 2)
	wants := make([]Want, 200)
	for i := range wants {
		wants[i] = Want{Name: "rows", DType: tensor.Float32, Shape: rows}
	}
	mine := errors.New("enough")
	for claim, stop := range map[string]func(p *Process, cancel context.CancelCauseFunc) error{
		"by its context":  func(_ *Process, cancel context.CancelCauseFunc) error { cancel(mine); return nil },
		"by its function": func(*Process, context.CancelCauseFunc) error { return mine },
	} {
		t.Run(claim, func(t *testing.T) {
			p := newPair(t, 32<<10)
			ctx, cancel := context.WithCancelCause(t.Context())
			n := 0
			_, err := p.Load(ctx, Load{Store: folder, Items: wants}, func(Piece) error {
				n++
				return stop(p, cancel)
			})
			if !errors.Is(err, mine) || n == 0 || n == len(wants) {
				t.Errorf("Load = %v after %d pieces; want %v after some", err, n, mine)
			}
			if now, _ := p.arena.Used(); now != 0 {
				t.Errorf("%d bytes of the arena are in use", now)
			}
			g := gather(t, wants[:1])
			if _, err := p.Load(t.Context(), Load{Store: folder, Items: wants[:1]}, g.piece); err != nil {
				t.Errorf("the next load: %v", err)
			}
			g.check(0, matrix(t, tensor.Float32, rows, 1))
		})
	}
	t.Run("by the end of the saver", func(t *testing.T) {
		p := newPair(t, 32<<10)
		_, err := p.Load(t.Context(), Load{Store: folder, Items: wants}, func(Piece) error {
			p.Kill()
			return nil
		})
		if !errors.Is(err, ErrSaver) {
			t.Errorf("Load = %v; want ErrSaver", err)
		}
		if _, err := p.Load(t.Context(), Load{Store: folder, Items: wants}, func(Piece) error { return nil }); !errors.Is(err, ErrSaver) {
			t.Errorf("Load after the end = %v; want ErrSaver", err)
		}
	})
	t.Run("before it has memory", func(t *testing.T) {
		p := newPair(t, 32<<10)
		all, _, err := p.arena.Reserve(p.arena.Room())
		if err != nil {
			t.Fatal(err)
		}
		defer all.Free()
		ctx, cancel := context.WithCancelCause(t.Context())
		go cancel(mine)
		if _, err := p.Load(ctx, Load{Store: folder, Items: wants}, func(Piece) error { return nil }); !errors.Is(err, mine) {
			t.Errorf("Load = %v; want %v", err, mine)
		}
	})
}

// A load of a damaged checkpoint never reports the damaged tensor.
func TestLoadOfDamagedCheckpoint(t *testing.T) {
	for _, f := range []storage.Format{native.Format{}, torchdcp.Format{}} {
		t.Run(f.Name(), func(t *testing.T) {
			folder := writeCheckpoint(t, f, 1)
			if err := damage(folder, matrix(t, tensor.Int32, plain, 3).Contents(), f.Name() == formats.TorchDCP); err != nil {
				t.Fatal(err)
			}
			p := newPair(t, 1<<20)
			wants := []Want{{Name: "rows", DType: tensor.Float32, Shape: rows}, {Name: "plain", DType: tensor.Int32, Shape: plain}}
			_, err := p.Load(t.Context(), Load{Store: folder, Items: wants}, func(p Piece) error {
				if p.Item == 1 {
					t.Error("the damaged tensor was reported")
				}
				return nil
			})
			if !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("Load = %v; want ErrCorrupt", err)
			}
		})
	}
}

// damage changes the content in the file of a folder that has it, or cuts the file there.
func damage(folder string, content []byte, cut bool) error {
	names, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		at := bytes.Index(b, content)
		if at < 0 {
			continue
		}
		b[at+5] ^= 1
		if cut {
			b = b[:at+5]
		}
		return os.WriteFile(name, b, 0o666)
	}
	return errors.New("no file has the content")
}

// Loads at the same time share the arena.
func TestLoadsAtTheSameTime(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 2)
	p := newPair(t, 64<<10)
	var wants []Want
	for range 40 {
		wants = append(wants, Want{Name: "rows", DType: tensor.Float32, Shape: rows}, Want{Name: "plain", DType: tensor.Int32, Shape: plain})
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			g := gather(t, wants)
			if _, err := p.Load(t.Context(), Load{Store: folder, Items: wants}, g.piece); err != nil {
				t.Error(err)
				return
			}
			for i := 0; i < len(wants); i += 2 {
				g.check(i, matrix(t, tensor.Float32, rows, 1))
				g.check(i+1, matrix(t, tensor.Int32, plain, 3))
			}
		})
	}
	wg.Wait()
}

// Loads that are under way at the same time open a checkpoint once; the next one opens
// it again.
func TestLoadsShareACheckpoint(t *testing.T) {
	src := &source{Store: writeCheckpoint(t, native.Format{}, 1)}
	opens := 0
	s := &server{ctx: t.Context(), opened: map[string]*opened{}}
	s.OpenStore = func(path string) (blob.Store, error) {
		opens++
		return file.OpenPath(path)
	}
	for round := 1; round <= 2; round++ {
		a, doneA, err := s.checkpoint(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		b, doneB, err := s.checkpoint(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		if a != b || opens != round {
			t.Errorf("round %d: the loads share a checkpoint: %t; it was opened %d times in all", round, a == b, opens)
		}
		doneA()
		doneB()
	}
	if _, _, err := s.checkpoint(t.Context(), &source{Store: t.TempDir()}); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("a folder without a checkpoint: %v; want ErrNotFound", err)
	}
	if len(s.opened) != 0 {
		t.Errorf("%d checkpoints are kept", len(s.opened))
	}
}

// A saver that is a process of its own loads as well.
func TestLoadThroughAProcess(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 2)
	a, err := stage.NewShared(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	p, err := Start(t.Context(), Options{}, a)
	if err != nil {
		t.Fatal(err)
	}
	g := gather(t, []Want{{Name: "rows", DType: tensor.Float32, Shape: rows}, {Name: "step"}})
	if _, err := p.Load(t.Context(), Load{Store: folder, Items: g.wants}, g.piece); err != nil {
		t.Error(err)
	}
	g.check(0, matrix(t, tensor.Float32, rows, 1))
	if g.values[1] != int64(100) {
		t.Errorf("the value is %v", g.values[1])
	}
	p.Kill()
	select {
	case <-p.Ended():
	case <-time.After(patience):
		t.Error("the process does not end")
	}
}

// A save and a load may have the same number.
func TestServeSaveAndLoadOfOneNumber(t *testing.T) {
	c := newTrainer(t)
	c.join()
	folder := t.TempDir()
	held := c.hold(1, folder)
	c.send(typeLoad, loadBody{Load: 1, source: source{Store: t.TempDir()}, Items: []WantItem{{Name: "w"}}})
	if b := received[failedBody](c, typeFailed); b.subject != (subject{Load: 1}) || !errors.Is(b.Error.err(), storage.ErrNotFound) {
		t.Errorf("failed %+v; want load 1", b)
	}
	c.send(typeFetched, fetchedBody{Fetch: held.Fetch})
	c.send(typeStaged, stagedBody{Generation: 1, Units: []Unit{{Stamp: 8192, Items: []int{2}, At: []int64{8256}}}, All: true})
	if b := received[savedBody](c, typeSaved); b.Generation != 1 {
		t.Errorf("saved %+v", b)
	}
}

// An item is reported when all of its parts have arrived, and not before.
func TestLoadReportsWholeItems(t *testing.T) {
	b := &loadBody{Load: 1, Items: []WantItem{
		{Name: "x", DType: "int8", Shape: []int64{4}, Offsets: []int64{0}, Sizes: []int64{2}},
		{Name: "x", DType: "int8", Shape: []int64{4}, Offsets: []int64{2}, Sizes: []int64{2}, At: 8},
		{Name: "x", DType: "int8", Shape: []int64{4}, Offsets: []int64{2}, Sizes: []int64{2}, At: 16},
		{Name: "x", DType: "int8", Shape: []int64{4}, Offsets: []int64{2}, Sizes: []int64{0}, At: 24},
	}}
	p, err := newLoadPlanner(b, make([]byte, 64))
	if err != nil {
		t.Fatal(err)
	}
	var got []int
	p.piece = func(b pieceBody) error {
		got = append(got, b.Item)
		return nil
	}
	commit := func(box, at, length int64) {
		t.Helper()
		it := &plan.ReadItem{
			Kind: plan.KindTensor, Dest: meta.Index{FQN: "x", Offset: b.Items[box].Offsets, Hint: int32(box)}, DestOffsets: []int64{at}, Lengths: []int64{length},
		}
		if err := p.CommitTensor(it, nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		box, at, length int64
		reported        []int
	}{
		{2, 0, 1, nil}, {0, 0, 2, []int{0}}, {1, 1, 1, nil}, {2, 1, 1, []int{2}}, {1, 0, 1, []int{1}},
	} {
		got = nil
		commit(step.box, step.at, step.length)
		if !slices.Equal(got, step.reported) {
			t.Errorf("%+v: %v were reported", step, got)
		}
	}
	got = nil
	if err := p.rest(nil); err != nil || !slices.Equal(got, []int{3}) {
		t.Errorf("rest reported %v, %v", got, err)
	}
}
