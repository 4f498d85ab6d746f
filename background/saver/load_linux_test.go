package saver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
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

// The tensors of the checkpoints: a matrix that is sharded by rows, one that is not, and
// one number.
var (
	rows   = []int64{12, 10}
	plain  = []int64{5, 3, 7}
	number = []int64{}
)

// matrix returns a tensor. Each element is its position, times a factor.
func matrix(t *testing.T, d tensor.DType, shape []int64, factor int) *tensor.Tensor {
	t.Helper()
	x := must.Get(tensor.New(tensor.Int64, shape))(t)
	v := must.Get(tensor.Values[int64](x))(t)
	for i := range v {
		v[i] = int64(i*factor) % 251
	}
	out := must.Get(tensor.Cast(x, d))(t)
	return out
}

// writeCheckpoint saves the tensors, and the value "step" if the format can hold it.
func writeCheckpoint(t *testing.T, f storage.Format, ranks int) string {
	t.Helper()
	folder := t.TempDir()
	store := must.Get(file.Open(folder, nil))(t)
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

// loaded is the outcome of a load.
type loaded struct {
	pieces         []int // items, in the order in which they came
	values         map[int]any
	planned, moved int64
	report         *protocol.LoadReport
	err            error
}

// loads waits until n loads are over and returns them by their numbers.
func (c *trainer) loads(n int) map[uint64]*loaded {
	c.Helper()
	out := map[uint64]*loaded{}
	of := func(load uint64) *loaded {
		if out[load] == nil {
			out[load] = &loaded{values: map[int]any{}}
		}
		return out[load]
	}
	for n > 0 {
		f := must.Get(readFrame(c.r))(c)
		body, err := decodeBody(f)
		if err != nil {
			c.Fatal(err)
		}
		switch b := body.(type) {
		case progressBody:
			of(b.Load).planned += b.Planned
			of(b.Load).moved += b.Moved
		case pieceBody:
			l := of(b.Load)
			l.pieces = append(l.pieces, b.Item)
			if b.Codec != "" {
				if l.values[b.Item], err = value.Decode(b.Codec, b.Data); err != nil {
					c.Error(err)
				}
			}
		case loadedBody:
			of(b.Load).report = b.Report
			n--
		case failedBody:
			of(b.Load).err = b.Error.err()
			n--
		default:
			c.Fatalf("%s %s during a load", f.Type, f.Body)
		}
	}
	return out
}

// load loads items, to which it gives memory, and returns the outcome.
func (c *trainer) load(b loadBody) *loaded {
	c.Helper()
	place(b.Items, 0)
	b.Load = 1
	c.send(typeLoad, b)
	return c.loads(1)[1]
}

// place gives items memory one after another, from an offset on. It returns the end.
func place(items []wantBody, at int64) int64 {
	for i := range items {
		items[i].At = at
		if d, err := tensor.ParseDType(items[i].DType); err == nil {
			n, _ := tensor.NumBytes(d, items[i].Shape)
			at += (n + 63) / 64 * 64
		}
	}
	return at
}

// check compares an item that was loaded with the tensor that was saved.
func (c *trainer) check(it wantBody, saved *tensor.Tensor) {
	c.Helper()
	part := saved
	if it.Sizes != nil {
		var err error
		if part, err = saved.Narrow(tensor.Box{Offsets: it.Offsets, Sizes: it.Sizes}); err != nil {
			c.Fatal(err)
		}
	}
	if want := part.Contents(); !bytes.Equal(c.mem[it.At:it.At+int64(len(want))], want) {
		c.Errorf("%+v: got other elements", it)
	}
}

// newLoader returns a trainer that loads.
func newLoader(t *testing.T) *trainer {
	t.Helper()
	c := newTrainer(t)
	c.send(typeHello, helloBody{messageVersion})
	c.expect(typeReady)
	return c
}

func TestLoadOfEveryFormat(t *testing.T) {
	seen := map[string]bool{}
	for name, f := range loadFormats {
		seen[f.Name()] = true
		t.Run(name, func(t *testing.T) {
			folder := writeCheckpoint(t, f.Format, f.ranks)
			items := []wantBody{
				{Name: "rows", DType: "float32", Shape: rows, Offsets: []int64{0, 2}, Sizes: []int64{12, 3}}, // columns
				{Name: "rows", DType: "float32", Shape: rows},
				{Name: "rows", DType: "float32", Shape: rows, Offsets: []int64{12, 0}, Sizes: []int64{0, 10}},
				{Name: "plain", DType: "int64", Shape: plain}, // converted
				{Name: "number", DType: "float64", Shape: number},
			}
			saved := []*tensor.Tensor{
				matrix(t, tensor.Float32, rows, 1), matrix(t, tensor.Float32, rows, 1), matrix(t, tensor.Float32, rows, 1),
				matrix(t, tensor.Int64, plain, 3), matrix(t, tensor.Float64, number, 1),
			}
			if f.Name() != formats.HF {
				items = append(items, wantBody{Name: "step"})
			}
			options := must.Get(FormatOptions(f.Format))(t)
			for _, src := range []source{{Store: folder}, {Store: folder, Format: f.Name(), FormatOptions: options}} {
				c := newLoader(t)
				l := c.load(loadBody{source: src, Items: items})
				if l.err != nil {
					t.Fatal(l.err)
				}
				for i, x := range saved {
					c.check(items[i], x)
				}
				if len(items) == 6 && l.values[5] != int64(100) {
					t.Errorf("the value is %v", l.values[5])
				}
				if slices.Sort(l.pieces); len(slices.Compact(l.pieces)) != len(items) {
					t.Errorf("the pieces are %v of %d", l.pieces, len(items))
				}
				if l.report.Local.Needed == 0 || len(l.report.Missing) > 0 {
					t.Errorf("the report is %+v", l.report)
				}
				if l.planned == 0 || l.planned != l.moved {
					t.Errorf("%d bytes were planned and %d moved", l.planned, l.moved)
				}
			}
		})
	}
	if got := slices.Sorted(maps.Keys(seen)); len(got) != len(formats.Alone()) {
		t.Errorf("%v were loaded; want %v", got, formats.Alone())
	}
}

func TestLoadFailures(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 2)
	fine := wantBody{Name: "plain", DType: "int32", Shape: plain}
	for claim, c := range map[string]struct {
		source
		items []wantBody
		want  []error
	}{
		"a name that is missing":   {source{Store: folder}, []wantBody{fine, {Name: "nothing", DType: "int8", Shape: plain}}, []error{plan.ErrMissing, plan.ErrMismatch}},
		"a value that is missing":  {source{Store: folder}, []wantBody{fine, {Name: "nothing"}}, []error{plan.ErrMissing}},
		"another shape":            {source{Store: folder}, []wantBody{{Name: "plain", DType: "int32", Shape: []int64{5, 21}}}, []error{plan.ErrMismatch}},
		"a tensor as a value":      {source{Store: folder}, []wantBody{{Name: "plain"}}, []error{plan.ErrMismatch}},
		"a value as a tensor":      {source{Store: folder}, []wantBody{{Name: "step", DType: "int64"}}, []error{plan.ErrMismatch}},
		"no checkpoint":            {source{Store: t.TempDir()}, []wantBody{fine}, []error{storage.ErrNotFound}},
		"an unknown format":        {source{Store: folder, Format: "tar"}, []wantBody{fine}, []error{formats.ErrUnknown}},
		"an unknown option":        {source{Store: folder, Format: "native", FormatOptions: json.RawMessage(`{"x":1}`)}, []wantBody{fine}, []error{storage.ErrOptions}},
		"options without a format": {source{Store: folder, FormatOptions: json.RawMessage(`{"file_bytes":1}`)}, []wantBody{fine}, []error{storage.ErrOptions}},
		"a recipe, without OpenAs": {source{Store: folder, Recipe: &Recipe{Name: "auto"}}, []wantBody{fine}, []error{storage.ErrOptions}},
	} {
		t.Run(claim, func(t *testing.T) {
			tr := newLoader(t)
			l := tr.load(loadBody{source: c.source, Items: c.items})
			for _, want := range c.want {
				if !errors.Is(l.err, want) {
					t.Errorf("the load fails with %v; want %v", l.err, want)
				}
			}
			items := []wantBody{fine}
			if l := tr.load(loadBody{source: source{Store: folder}, Items: items}); l.err != nil {
				t.Errorf("the next load: %v", l.err)
			}
			tr.check(items[0], matrix(t, tensor.Int32, plain, 3))
		})
	}
}

func TestLoadAllowsMissing(t *testing.T) {
	c := newLoader(t)
	items := []wantBody{
		{Name: "nothing", DType: "int8", Shape: plain}, {Name: "plain", DType: "int32", Shape: plain},
		{Name: "empty", DType: "int8", Shape: []int64{0}}, {Name: "none"},
	}
	l := c.load(loadBody{source: source{Store: writeCheckpoint(t, native.Format{}, 2)}, AllowMissing: true, Items: items})
	if l.err != nil {
		t.Fatal(l.err)
	}
	slices.Sort(l.report.Missing)
	if want := []string{"empty", "none", "nothing"}; !slices.Equal(l.report.Missing, want) || !slices.Equal(l.pieces, []int{1}) {
		t.Errorf("Missing = %q, and the pieces %v came; want %q", l.report.Missing, l.pieces, want)
	}
	c.check(items[1], matrix(t, tensor.Int32, plain, 3))
}

// A load that is cancelled ends, and its memory can be used again.
func TestLoadStops(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 2)
	c := newLoader(t)
	b := loadBody{Load: 1, source: source{Store: folder}, Items: slices.Repeat([]wantBody{{Name: "rows", DType: "float32", Shape: rows}}, 200)}
	place(b.Items, 0)
	c.send(typeLoad, b)
	c.send(typeCancel, cancelBody{1})
	if l := c.loads(1)[1]; l.err != nil && !errors.Is(l.err, context.Canceled) {
		t.Errorf("the load fails with %v; want context.Canceled", l.err)
	}
	if l := c.load(b); l.err != nil || len(l.pieces) != len(b.Items) {
		t.Errorf("the next load: %v, %d pieces", l.err, len(l.pieces))
	}
}

// A load of a damaged checkpoint never reports the damaged tensor.
func TestLoadOfDamagedCheckpoint(t *testing.T) {
	for _, f := range []storage.Format{native.Format{}, torchdcp.Format{}} {
		t.Run(f.Name(), func(t *testing.T) {
			folder := writeCheckpoint(t, f, 1)
			must.Do(t, damage(folder, matrix(t, tensor.Int32, plain, 3).Contents(), f.Name() == formats.TorchDCP))
			l := newLoader(t).load(loadBody{source: source{Store: folder}, Items: []wantBody{{Name: "rows", DType: "float32", Shape: rows}, {Name: "plain", DType: "int32", Shape: plain}}})
			if slices.Contains(l.pieces, 1) {
				t.Error("the damaged tensor was reported")
			}
			if !errors.Is(l.err, storage.ErrCorrupt) {
				t.Errorf("the load fails with %v; want ErrCorrupt", l.err)
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
	c := newLoader(t)
	var all [4][]wantBody
	at := int64(0)
	for i := range all {
		all[i] = slices.Repeat([]wantBody{{Name: "rows", DType: "float32", Shape: rows}, {Name: "plain", DType: "int32", Shape: plain}}, 40)
		at = place(all[i], at)
		c.send(typeLoad, loadBody{Load: uint64(i + 1), source: source{Store: folder}, Items: all[i]})
	}
	for number, l := range c.loads(len(all)) {
		items := all[number-1]
		if l.err != nil || len(l.pieces) != len(items) {
			t.Errorf("load %d: %v, %d pieces", number, l.err, len(l.pieces))
		}
		for i := 0; i < len(items); i += 2 {
			c.check(items[i], matrix(t, tensor.Float32, rows, 1))
			c.check(items[i+1], matrix(t, tensor.Int32, plain, 3))
		}
	}
}

// loadsOnly returns loads without a trainer.
func loadsOnly(t *testing.T) *loads {
	sc := &scope{ctx: t.Context()}
	return &loads{scope: sc, runs: &trainings{scope: sc}, opened: map[string]*opened{}}
}

// Loads that are under way at the same time open a checkpoint once; the next one opens
// it again.
func TestLoadsShareACheckpoint(t *testing.T) {
	src := &source{Store: writeCheckpoint(t, native.Format{}, 1)}
	opens := 0
	s := loadsOnly(t)
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
		if _, err := formats.Remove(t.Context(), must.Get(file.Open(src.Store, nil))(t), nil); !errors.Is(err, storage.ErrInUse) {
			t.Errorf("round %d: Remove during a load = %v; want ErrInUse", round, err)
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

// renamed is a checkpoint with other contents.
type renamed struct {
	storage.Checkpoint
	md *meta.Metadata
}

func (r *renamed) Metadata(context.Context) (*meta.Metadata, error) { return r.md, nil }

// OpenAs shows a checkpoint in another form. Loads share a checkpoint if the recipe is the
// same.
func TestLoadsThroughARecipe(t *testing.T) {
	folder := writeCheckpoint(t, native.Format{}, 1)
	var got []Recipe
	other := &meta.Metadata{}
	refused := errors.New("no such recipe")
	s := loadsOnly(t)
	s.OpenStore = file.OpenPath
	s.OpenAs = func(_ context.Context, store blob.Store, c storage.Checkpoint, r *Recipe) (storage.Checkpoint, error) {
		got = append(got, *r)
		if r.Name == "none" {
			return nil, errors.Join(refused, c.Close())
		}
		return &renamed{c, other}, nil
	}
	want := []Recipe{{Name: "a"}, {Name: "a", Set: map[string]any{"heads": 2.}}, {Name: "a", Config: "config.json", Reverse: true, Check: true}}
	var open []*opened
	for _, r := range slices.Concat(want, want) {
		c, done, err := s.checkpoint(t.Context(), &source{Store: folder, Recipe: &r})
		if err != nil {
			t.Fatal(err)
		}
		defer done()
		open = append(open, c)
		if c.md != other {
			t.Errorf("%v: the checkpoint is not in its other form", r)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("OpenAs: -want +got\n%s", d)
	}
	for i := range want {
		if open[i] != open[i+len(want)] || open[i] == open[(i+1)%len(want)] {
			t.Errorf("%v: equal sources share a checkpoint: %t", want[i], open[i] == open[i+len(want)])
		}
	}
	if _, _, err := s.checkpoint(t.Context(), &source{Store: folder, Recipe: &Recipe{Name: "none"}}); !errors.Is(err, refused) {
		t.Errorf("the error is %v; want the error of OpenAs", err)
	}
	c, done, err := s.checkpoint(t.Context(), &source{Store: folder})
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if c.md == other {
		t.Error("without a recipe, the checkpoint is in another form")
	}
}

// A save and a load may have the same number.
func TestServeSaveAndLoadOfOneNumber(t *testing.T) {
	c := newTrainer(t)
	c.join()
	folder := t.TempDir()
	held := c.hold(1, folder)
	c.send(typeLoad, loadBody{Load: 1, source: source{Store: t.TempDir()}, Items: []wantBody{{Name: "w"}}})
	if b := received[failedBody](c, typeFailed); b.subject != (subject{Load: 1}) || !errors.Is(b.Error.err(), storage.ErrNotFound) {
		t.Errorf("failed %+v; want load 1", b)
	}
	c.send(typeFetched, fetchedBody{Fetch: held.Fetch})
	c.send(typeStaged, stagedBody{Generation: 1, Units: []unitBody{{Stamp: 8192, Items: []int{2}, At: []int64{8256}}}, All: true})
	if b := received[savedBody](c, typeSaved); b.Generation != 1 {
		t.Errorf("saved %+v", b)
	}
}

// Boxes of a tensor may share a name. A value shares it with no other item.
func TestLoadOfOneNameTwice(t *testing.T) {
	value := wantBody{Name: "model.w"}
	box := wantBody{Name: "model.w", DType: "int8", Shape: []int64{4}, Offsets: []int64{0}, Sizes: []int64{2}}
	for name, items := range map[string][]wantBody{
		"two values": {value, value}, "a value, then a box": {value, box}, "a box, then a value": {box, value},
	} {
		_, err := newLoadPlanner(&loadBody{Load: 1, Items: items}, make([]byte, 64))
		if !errors.Is(err, ErrMessage) || !strings.HasSuffix(err.Error(), `: "model.w" is requested twice, once as a value`) {
			t.Errorf("%s: %v; want ErrMessage", name, err)
		}
	}
}

// An item is reported when all of its parts have arrived, and not before.
func TestLoadReportsWholeItems(t *testing.T) {
	b := &loadBody{Load: 1, Items: []wantBody{
		{Name: "x", DType: "int8", Shape: []int64{4}, Offsets: []int64{0}, Sizes: []int64{2}},
		{Name: "x", DType: "int8", Shape: []int64{4}, Offsets: []int64{2}, Sizes: []int64{2}, At: 8},
		{Name: "x", DType: "int8", Shape: []int64{4}, Offsets: []int64{2}, Sizes: []int64{2}, At: 16},
		{Name: "x", DType: "int8", Shape: []int64{4}, Offsets: []int64{2}, Sizes: []int64{0}, At: 24},
	}}
	p := must.Get(newLoadPlanner(b, make([]byte, 64)))(t)
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
		must.Do(t, p.CommitTensor(it, nil))
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
