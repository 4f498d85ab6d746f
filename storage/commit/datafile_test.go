package commit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// contents resolves items by their names.
type contents map[string]plan.Data

func (c contents) Resolve(it *plan.WriteItem) (plan.Data, error) {
	d, ok := c[it.FQN()]
	if !ok {
		return d, fmt.Errorf("%q: %w", it.FQN(), plan.ErrMissing)
	}
	return d, nil
}

// stream is a tensor that is read from a slice, and counts its end.
type stream struct {
	data   []byte
	fail   error
	closed *int
}

func (s stream) DType() tensor.DType { return tensor.Uint8 }
func (s stream) Shape() []int64      { return []int64{int64(len(s.data))} }
func (s stream) Close() error        { *s.closed++; return nil }
func (s stream) ReadAt(_ context.Context, p []byte, off int64) error {
	copy(p, s.data[off:])
	return s.fail
}

func tensorItem(name string, n int) *plan.WriteItem {
	info := &plan.Info{FQN: name, Shape: []int64{int64(n)}}
	info.DType = tensor.Uint8
	return &plan.WriteItem{Info: info, Kind: plan.KindTensor, Box: tensor.Whole(info.Shape)}
}

func valueItem(name string, n int) *plan.WriteItem {
	return &plan.WriteItem{Info: &plan.Info{FQN: name, Codec: "raw"}, Kind: plan.KindBytes, Size: int64(n)}
}

func write(ctx context.Context, s blob.Store, data storage.Resolver, files ...*DataFile) (*storage.WriteResults, error) {
	w := &fileWriter{store: s, data: data}
	return w.write(ctx, files, 2, 1<<20, 0)
}

// keeper is a Coder that keeps its segments, and stores them as they are.
type keeper struct {
	lengths []int

	mu   sync.Mutex
	segs [][]byte // guarded by mu
	size int64
	crc  uint32
}

func (k *keeper) Name() string          { return "f" }
func (k *keeper) Lengths() []int        { return k.lengths }
func (k *keeper) Stored(i int, _ int64) {}

func (k *keeper) Encode(_ context.Context, i int, src, _ []byte) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.segs[i] = bytes.Clone(src)
	return src, nil
}

func (k *keeper) Finish(size int64, crc uint32) ([]byte, storage.Coded) {
	k.size, k.crc = size, crc
	return nil, storage.Coded{}
}

// Whatever the parts are, the file is their bytes in order, each part sees its
// own pass in order, and each byte is seen once. Memory is used until it is released, and
// released once.
func TestDataFileConsistsOfItsParts(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		var want []byte
		var streams, copies int
		var closed int
		var released atomic.Int32
		data := contents{}
		k := &keeper{}
		f := &DataFile{Name: "f"}
		seen := map[int][]byte{} // by part
		passed := 0              // bytes
		for i := range rapid.IntRange(0, 8).Draw(t, "parts") {
			n := rapid.SampledFrom([]int{0, 1, 5, 4096, 200_000, 400_000}).Draw(t, "length")
			b := bytes.Repeat([]byte{byte(i + 1)}, n)
			name := fmt.Sprint("i", i)
			p := Part{Length: int64(n)}
			p.Pass = func(b []byte, from int64) {
				if from != int64(len(seen[i])) {
					t.Fatalf("part %d: pass at %d after %d bytes", i, from, len(seen[i]))
				}
				seen[i] = append(seen[i], b...)
				passed += len(b)
			}
			switch rapid.SampledFrom([]string{"literal", "tail", "tensor", "copy", "stream", "value"}).Draw(t, "kind") {
			case "literal":
				p.Literal = b
			case "tail":
				before := len(want)
				p.Tail = func() ([]byte, error) {
					if passed != before {
						t.Fatalf("part %d begins after %d bytes; %d are before it", i, passed, before)
					}
					return b, nil
				}
			case "tensor":
				x := must.Get(tensor.FromBytes(tensor.Uint8, []int64{int64(n)}, b))(t)
				p.Item, data[name] = tensorItem(name, n), plan.Data{Tensor: x}
			case "copy":
				copies++
				mem := bytes.Clone(b)
				x := must.Get(tensor.FromBytes(tensor.Uint8, []int64{int64(n)}, mem))(t)
				p.Item, data[name] = tensorItem(name, n), plan.Data{Tensor: x, Release: func() error {
					clear(mem) // others use it
					released.Add(1)
					return nil
				}}
			case "stream":
				streams++
				p.Item, data[name] = tensorItem(name, n), plan.Data{Stream: stream{data: b, closed: &closed}}
			case "value":
				p.Item, data[name] = valueItem(name, n), plan.Data{Bytes: b}
			}
			f.Parts = append(f.Parts, p)
			want = append(want, b...)
			for part := range slices.Chunk(b, 100_000) {
				k.lengths = append(k.lengths, len(part))
			}
		}
		if rapid.Bool().Draw(t, "coded") {
			k.segs = make([][]byte, len(k.lengths))
			f.Coder = k
		}
		var mu sync.Mutex
		pieces, bytesSeen := make([]byte, len(want)), 0 // guarded by mu
		f.Seen = func(p []byte, at int64) {
			mu.Lock()
			defer mu.Unlock()
			bytesSeen += copy(pieces[at:], p)
		}
		f.Results = func() []storage.WriteResult { return []storage.WriteResult{{Index: meta.Index{FQN: "done"}}} }
		ctx := context.Background()
		s := &resident{in: rapid.Bool().Draw(t, "resident")}
		r := must.Get(write(ctx, s, data, f))(t)
		got, err := blob.ReadAll(ctx, s, "f", 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		file := r.Files[0]
		if f.Coder != nil { // segments are stored in any order
			got, file.Size, file.CRC32C = slices.Concat(k.segs...), k.size, k.crc
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("the file has %d bytes, which are not the %d of its parts", len(got), len(want))
		}
		crc := crc32.Checksum(want, crc32.MakeTable(crc32.Castagnoli))
		if d := cmp.Diff(storage.File{Name: "f", Size: int64(len(want)), CRC32C: crc}, file); d != "" || len(r.Files) != 1 {
			t.Error(len(r.Files), d)
		}
		if n := int(released.Load()); n != copies {
			t.Errorf("%d of %d copies were released", n, copies)
		}
		if len(r.Items) != 1 || closed != streams {
			t.Errorf("%d results, %d of %d streams closed", len(r.Items), closed, streams)
		}
		if !bytes.Equal(pieces, want) || bytesSeen != len(want) {
			t.Errorf("%d bytes of %d were seen, or others", bytesSeen, len(want))
		}
		for i, p := range f.Parts {
			if !bytes.Equal(seen[i], bytes.Repeat([]byte{byte(i + 1)}, int(p.Length))) {
				t.Errorf("part %d saw %d bytes of %d, or others", i, len(seen[i]), p.Length)
			}
		}
	})
}

// resident is a store that may be in memory.
type resident struct {
	mem.Store
	in bool
}

func (s *resident) Resident() bool { return s.in }

// A large tensor that was copied aside is written to memory from where it is; an error of its release
// fails the save.
func TestWriteToMemoryWithoutACopy(t *testing.T) {
	const n = 3*pieceBytes + 12345 // divisible by 3
	x := must.Get(tensor.FromBytes(tensor.Uint8, []int64{n}, bytes.Repeat([]byte("abc"), n/3)))(t)
	content, _ := x.Bytes()
	for _, failed := range []error{nil, errors.New("another generation")} {
		released := 0
		data := contents{"x": plan.Data{Tensor: x, Release: func() error { released++; return failed }}}
		copied := 0
		f := &DataFile{Name: "f", Parts: []Part{{Length: 5, Literal: []byte("begin")}, {Length: n, Item: tensorItem("x", n)}, {Length: 3, Literal: []byte("end")}}}
		var mu sync.Mutex
		f.Seen = func(p []byte, at int64) {
			mu.Lock()
			defer mu.Unlock()
			if off := max(at-5, 0); off >= n || &p[0] != &content[off] {
				copied += len(p)
			}
		}
		_, err := write(t.Context(), &resident{in: true}, data, f)
		if !errors.Is(err, failed) || released != 1 || failed == nil && copied != 8 {
			t.Errorf("write = %v with %d releases, %d bytes were copied; want %v, one, and the 8 others", err, released, copied, failed)
		}
	}
}

// Parts that are made when their turn comes may share their memory.
func TestPartsAreMadeWhenTheyAreWritten(t *testing.T) {
	s, made, shared := new(mem.Store), 0, []Part{{Length: 2}, {}, {Length: 1, Literal: []byte("!")}}
	inner := func(n int64, text string) Part {
		return Part{Length: n, Parts: func() ([]Part, error) {
			made++
			shared[0].Literal = []byte(text)
			return shared, nil
		}}
	}
	first := Part{Length: 1, Tail: func() ([]byte, error) { return fmt.Append(nil, made), nil }}
	f := &DataFile{Name: "f", Parts: []Part{first, inner(3, "ab"), inner(3, "cd"), {Length: 1, Literal: []byte("z")}, inner(3, "ef")}}
	must.Get(write(t.Context(), s, nil, f))(t)
	if got, err := blob.ReadAll(t.Context(), s, "f", 100); err != nil || string(got) != "0ab!cd!zef!" || made != 3 {
		t.Errorf("the file is %q, %v, with parts made %d times", got, err, made)
	}
	nested := Part{Length: 7, Parts: func() ([]Part, error) {
		return []Part{inner(3, "gh"), {Length: 4, Parts: func() ([]Part, error) { return []Part{{Length: 4, Literal: []byte("deep")}}, nil }}}, nil
	}}
	must.Get(write(t.Context(), s, nil, &DataFile{Name: "nested", Parts: []Part{nested, {Length: 1, Literal: []byte(".")}}}))(t)
	if got, err := blob.ReadAll(t.Context(), s, "nested", 100); err != nil || string(got) != "gh!deep." {
		t.Errorf("nested parts make %q, %v", got, err)
	}
	short := &DataFile{Name: "short", Parts: []Part{inner(4, "ab")}}
	if _, err := write(t.Context(), s, nil, short); !errors.Is(err, plan.ErrState) {
		t.Errorf("Write of parts that are too short = %v; want ErrState", err)
	}
}

func TestWriteRefusesContentThatWasNotPlanned(t *testing.T) {
	x := must.Get(tensor.New(tensor.Uint8, []int64{4}))(t)
	var closed int
	mine := errors.New("mine")
	data := contents{
		"x": {Tensor: x}, "v": {Bytes: make([]byte, 4)}, "none": {}, "t": {Tensor: x},
		"s": {Stream: stream{data: make([]byte, 4), fail: mine, closed: &closed}},
	}
	tests := []struct {
		name string
		part Part
		want error
	}{
		{"literal", Part{Length: 5, Literal: make([]byte, 4)}, plan.ErrState},
		{"tail", Part{Length: 5, Tail: func() ([]byte, error) { return make([]byte, 4), nil }}, plan.ErrState},
		{"tail's error", Part{Length: 5, Tail: func() ([]byte, error) { return nil, mine }}, mine},
		{"tensor", Part{Length: 5, Item: tensorItem("x", 5)}, plan.ErrState},
		{"tensor laid out wrong", Part{Length: 5, Item: tensorItem("x", 4)}, plan.ErrState},
		{"value", Part{Length: 5, Item: valueItem("v", 5)}, plan.ErrState},
		{"tensor for a value", Part{Length: 4, Item: valueItem("t", 4)}, plan.ErrState},
		{"nothing", Part{Length: 4, Item: tensorItem("none", 4)}, plan.ErrState},
		{"unknown", Part{Length: 4, Item: tensorItem("y", 4)}, plan.ErrMissing},
		{"stream's error", Part{Length: 4, Item: tensorItem("s", 4)}, mine},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := new(mem.Store)
			_, err := write(t.Context(), s, data, &DataFile{Name: "f", Parts: []Part{tt.part}})
			if !errors.Is(err, tt.want) {
				t.Errorf("Write = %v; want %v", err, tt.want)
			}
			if _, err := s.Stat(t.Context(), "f"); err == nil {
				t.Error("the file is there all the same")
			}
		})
	}
	if closed != 1 {
		t.Errorf("the stream was closed %d times", closed)
	}
	if n := work.Stats().Lent; n != 0 {
		t.Errorf("%d bytes of buffers were not given back", n)
	}
}

func TestCreatedIsCalledBeforeTheFileExists(t *testing.T) {
	s := new(mem.Store)
	var told []string
	files := []*DataFile{{Name: "a"}, {Name: "b"}}
	w := &fileWriter{store: s, created: func(name string) {
		if _, err := s.Stat(t.Context(), name); err == nil {
			t.Errorf("%s exists before created was called", name)
		}
		told = append(told, name)
	}}
	_, err := w.write(t.Context(), files, 1, 1<<20, 0)
	if err != nil || !slices.Equal(told, []string{"a", "b"}) {
		t.Errorf("created was called for %v, %v; want a and b", told, err)
	}
}

// journal keeps its entries in memory.
type journal struct {
	mu    sync.Mutex
	notes map[string]*storage.WriteResults // guarded by mu
	fail  error
}

func (j *journal) Finished(_ context.Context, file string) (*storage.WriteResults, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok := j.notes[file]
	return r, ok, j.fail
}

func (j *journal) Note(_ context.Context, file string, r *storage.WriteResults) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.notes[file] = r
	return nil
}

func (j *journal) Begun(context.Context) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.notes) > 0
}

func TestWriteSkipsFilesInTheJournal(t *testing.T) {
	ctx := t.Context()
	s := new(mem.Store)
	j := &journal{notes: map[string]*storage.WriteResults{}}
	var told int64
	sess := storage.Session{Journal: j, Progress: func(n int64) { told += n }}
	file := func(name, text string) *DataFile {
		return &DataFile{Name: name, Parts: []Part{{Length: int64(len(text)), Literal: []byte(text)}}}
	}
	put := func(planned int64, files ...*DataFile) (*storage.WriteResults, error) {
		w := &fileWriter{store: s, sess: sess}
		return w.write(ctx, files, 1, 1<<20, planned)
	}
	must.Get(put(5, file("a", "first")))(t)
	// b exists, but is not in the journal: it may be of an earlier attempt.
	must.Get(blob.WriteAll(ctx, s, "b", []byte("stale"), nil))(t)
	told = 0
	r := must.Get(put(10, file("a", "other"), file("b", "fresh")))(t)
	for name, want := range map[string]string{"a": "first", "b": "fresh"} {
		if got, err := blob.ReadAll(ctx, s, name, 100); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	if len(r.Files) != 2 || r.Files[0].Name != "a" || told != 10 {
		t.Errorf("results %v, told of %d bytes", r.Files, told)
	}
	j.fail = errors.New("no journal today")
	if _, err := put(0, file("c", "")); !errors.Is(err, j.fail) {
		t.Errorf("a journal that cannot be read: %v", err)
	}
}

// A held file appears when its holder commits it, and not before.
func TestHeldFileIsInvisibleUntilItsCommit(t *testing.T) {
	store := new(mem.Store)
	f := &DataFile{Name: "f", Parts: []Part{{Length: 3, Literal: []byte("abc")}}}
	var held blob.Writer
	w := &fileWriter{store: store, hold: func(w blob.Writer) { held = w }}
	r, err := w.write(t.Context(), []*DataFile{f}, 1, 0, 3)
	if err != nil || len(r.Files) != 1 || r.Files[0].CRC32C != crc32.Checksum([]byte("abc"), crc32.MakeTable(crc32.Castagnoli)) {
		t.Fatalf("Write = %+v, %v", r, err)
	}
	if _, err := store.Stat(t.Context(), "f"); err == nil {
		t.Error("the file is there before its commit")
	}
	must.Get(held.Commit(t.Context()))(t)
	if b, err := blob.ReadAll(t.Context(), store, "f", 10); string(b) != "abc" || err != nil {
		t.Errorf("the file holds %q, %v; want abc", b, err)
	}
}

// Each process writes the files that are its own, and reports only these.
func TestWriteLeavesOutTheFilesOfOtherProcesses(t *testing.T) {
	var offered []storage.File
	var told int64
	s := new(mem.Store)
	sess := storage.Session{Progress: func(n int64) { told += n }, Divide: func(files []storage.File, held bool) []bool {
		offered = files
		return []bool{false, !held, false}[:len(files)]
	}}
	var files []*DataFile
	for _, name := range []string{"a", "b", "c"} {
		files = append(files, &DataFile{Name: name, Parts: []Part{{Length: 2, Literal: []byte(name + name)}}})
	}
	w := &fileWriter{store: s, sess: sess}
	r := must.Get(w.write(t.Context(), files, 2, 1<<20, 9))(t)
	if len(r.Files) != 1 || r.Files[0].Name != "b" || told != 3 {
		t.Errorf("wrote %v and reported %d bytes; want b, and a third of 9", r.Files, told)
	}
	if d := cmp.Diff([]storage.File{{Name: "a", Size: 2}, {Name: "b", Size: 2}, {Name: "c", Size: 2}}, offered); d != "" {
		t.Errorf("Divide was called with other files: %s", d)
	}
	w = &fileWriter{store: s, sess: sess, hold: func(blob.Writer) { t.Error("a file of another process is held") }}
	if r := must.Get(w.write(t.Context(), files[1:2], 1, 1<<20, 2))(t); len(r.Files) > 0 {
		t.Errorf("wrote %v; want nothing", r.Files)
	}
}
