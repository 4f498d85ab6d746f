package reading

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestCheckpointReturnsTheSource(t *testing.T) {
	s, store := verifiable(t)
	s.md.Storage.Version = "some 1"
	c := Open(store, s.source())
	defer c.Close()
	if st := c.Storage(); st.ID != store.String() || st.Version != "some 1" {
		t.Errorf("Storage = %+v; want the place and the format", st)
	}
	if d := cmp.Diff(s.files, c.Files()); d != "" || c.TotalBytes() != 160 {
		t.Errorf("TotalBytes = %d; files: -want +got\n%s", c.TotalBytes(), d)
	}
	if e, ok, err := c.Find(t.Context(), "y"); err != nil || !ok || e.FQN != "y" {
		t.Errorf("Find = %v, %v, %v", e, ok, err)
	}
	if _, ok, err := c.Find(t.Context(), "stranger"); err != nil || ok {
		t.Errorf("Find of a stranger = %v, %v", ok, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errOnPurpose)
	_, errMetadata := c.Metadata(ctx)
	_, _, errFind := c.Find(ctx, "y")
	if !errors.Is(errMetadata, errOnPurpose) || !errors.Is(errFind, errOnPurpose) {
		t.Errorf("with a finished context: Metadata = %v, Find = %v", errMetadata, errFind)
	}
	for i := range s.md.Entries {
		e := &s.md.Entries[i]
		if err := c.CheckHeld(t.Context(), e); err != nil {
			t.Errorf("CheckHeld(%s) = %v", e.FQN, err)
		}
	}
}

// The protocol from its beginning, with the default planner.
func TestReaderLoadsWithTheDefaultPlanner(t *testing.T) {
	s, store := verifiable(t)
	opened := 0
	p := storagetest.Place{Reader: func() storage.Reader {
		open := func(context.Context, blob.Store) (storage.Checkpoint, error) {
			opened++
			return Open(store, s.source()), nil
		}
		return storage.NewReader(open, store, storage.ReadOptions{})
	}}
	state := plan.State{"x": nil, "y": nil, "z": nil}
	for _, name := range []string{"x", "y", "z"} {
		e, _ := s.md.Find(name)
		x := must.Get(tensor.New(tensor.Uint8, e.Tensor.Shape))(t)
		state[name] = x
	}
	must.Do(t, storagetest.Load(t.Context(), p, state, plan.State{}))
	want := append(noise(100)[60:80:80], noise(50)[:20]...)
	if got := state["y"].(*tensor.Tensor).Contents(); string(got) != string(want) || opened != 2 {
		t.Errorf("y = %x; want %x, and the source was opened %d times by 2 ranks", got, want, opened)
	}
	bad := storage.NewReader(func(context.Context, blob.Store) (storage.Checkpoint, error) { return nil, errOnPurpose }, store, storage.ReadOptions{})
	if _, err := bad.ReadMetadata(t.Context()); !errors.Is(err, errOnPurpose) {
		t.Errorf("ReadMetadata = %v; want the error of opening", err)
	}
	if err := bad.SetUp(t.Context(), &s.md, storage.Session{}); !errors.Is(err, plan.ErrProtocol) {
		t.Errorf("SetUp without metadata = %v; want ErrProtocol", err)
	}
}

func TestReadBox(t *testing.T) {
	data := noise(1000)
	_, store := one(t, tensor.Uint8, []int64{4}, Region{End: 4, DType: tensor.Uint8}, data)
	m := fault.New(store)
	r := &Region{File: "data", Offset: 10, End: 610, DType: tensor.Uint8}
	sizes, b := []int64{30, 20}, box([]int64{3, 5}, []int64{7, 11})
	dst := must.Get(tensor.New(tensor.Int32, b.Sizes))(t)
	n, err := ReadBox(t.Context(), m, r, sizes, b, dst, 1)
	if got := m.Ops(); err != nil || n != 6*20+11 || got.Bytes(fault.Read) != n || got.Count(fault.Open) != 1 {
		t.Errorf("ReadBox = %d, %v, %+v; want the rows and the small holes between them", n, err, got)
	}
	v, err := tensor.Values[int32](dst)
	if err != nil || v[0] != int32(data[10+3*20+5]) || v[76] != int32(data[10+9*20+15]) {
		t.Errorf("ReadBox: other elements (%v)", err)
	}
	if n, err := ReadBox(t.Context(), m, r, sizes, box([]int64{3, 5}, []int64{0, 11}), dst, 1); n != 0 || err != nil {
		t.Errorf("ReadBox of nothing = %d, %v", n, err)
	}
	for name, bad := range map[string]struct {
		r     Region
		sizes []int64
		want  error
	}{
		"a file that is gone": {Region{File: "gone", End: 600, DType: tensor.Uint8}, sizes, storage.ErrCorrupt},
		"beyond the file":     {Region{File: "data", Offset: 500, End: 1100, DType: tensor.Uint8}, sizes, storage.ErrCorrupt},
		"beyond the chunk":    {*r, []int64{5, 20}, tensor.ErrShape},
	} {
		if _, err := ReadBox(t.Context(), m, &bad.r, bad.sizes, b, dst, 1); !errors.Is(err, bad.want) {
			t.Errorf("%s: ReadBox = %v; want %v", name, err, bad.want)
		}
	}
}

// A source may describe damaged files beside readable ones, as the source of common.pt does.
func TestJoinKeepsProblemsAndMissingNames(t *testing.T) {
	store := new(mem.Store)
	half := func(name, lost string) *Source {
		var s scene
		s.file(t, store, name, []byte("v"))
		s.value(name+".v", name, []byte("v"))
		src := s.source()
		src.Check = func(ctx context.Context, f *FileCheck) (int64, error) { return 0, f.Scan(ctx, nil) }
		src.Problems = []storage.VerifyProblem{{File: lost, Text: "damaged"}}
		src.Metadata.Missing = []meta.Missing{{FQN: lost, File: lost, Err: Damaged(lost, "damaged")}}
		return src
	}
	ck := Open(store, Join(half("a", "y"), half("b", "x")))
	md, err := ck.Metadata(t.Context())
	if err != nil || len(md.Missing) != 2 || md.Missing[0].FQN != "x" || md.Missing[1].FQN != "y" {
		t.Errorf("Metadata = missing %v, %v; want x and y", md.Missing, err)
	}
	for _, name := range []string{"x", "y"} {
		if _, ok, err := ck.Find(t.Context(), name); ok || !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("Find(%q) = %v, %v; want %v", name, ok, err, storage.ErrCorrupt)
		}
	}
	rep, err := ck.Verify(t.Context(), nil)
	want := []storage.VerifyProblem{{File: "x", Text: "damaged"}, {File: "y", Text: "damaged"}}
	if err != nil || !cmp.Equal(rep.Problems, want) {
		t.Errorf("Verify = %+v, %v; want the problems %v", rep, err, want)
	}
}
