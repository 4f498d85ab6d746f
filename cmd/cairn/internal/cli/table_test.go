package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// tabled returns metadata with one entry of each kind.
func tabled() *meta.Metadata {
	loc := func(off int64, key string) meta.Location {
		l := meta.Location{File: "f", Offset: off, Length: 8, Sums: []uint32{1, 2}}
		if key != "" {
			l.Detail = &meta.Detail{Key: key}
		}
		return l
	}
	return &meta.Metadata{
		Storage: meta.Storage{ID: "here", SaveID: "s", Step: new(int64(7))},
		Entries: []meta.Entry{
			{FQN: "n", Bytes: &meta.Bytes{Codec: "json", Size: 3, Inline: []byte("123")}},
			{FQN: "o", Bytes: &meta.Bytes{Codec: "raw", Size: 8, Loc: loc(0, "k")}},
			{FQN: "s", Tensor: &meta.Tensor{
				Properties: meta.Properties{DType: tensor.Int64}, Shape: []int64{}, Chunks: []tensor.Box{{}}, Locs: []meta.Location{loc(8, "")},
			}},
			{FQN: "w", Tensor: &meta.Tensor{
				Properties: meta.Properties{DType: tensor.Float32}, Shape: []int64{2, 2},
				Chunks: []tensor.Box{
					{Offsets: []int64{0, 0}, Sizes: []int64{2, 1}}, {Offsets: []int64{0, 1}, Sizes: []int64{2, 1}},
				},
				Locs: []meta.Location{loc(16, ""), loc(24, "")},
			}},
		},
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	n, err := writeTable(t.Context(), &b, "runs/1", tabled())
	if err != nil || n != 5 {
		t.Fatalf("writeTable = %d, %v; want 5 rows", n, err)
	}
	got := must.Get(parquet.Read[chunkRow](bytes.NewReader(b.Bytes()), int64(b.Len())))(t)
	want := []chunkRow{
		{FQN: "n", Kind: "object", Codec: new("json"), Length: 3, NumBytes: 3},
		{
			FQN: "o", Kind: "object", Codec: new("raw"), File: new("f"), Key: new("k"), Offset: new(int64(0)), Length: 8, NumBytes: 8,
			Checksums: 2,
		},
		{FQN: "s", Kind: "tensor", DType: new("int64"), File: new("f"), Offset: new(int64(8)), Length: 8, NumBytes: 8, Tensor: new(int64(8)), Checksums: 2},
		{
			FQN: "w", Kind: "tensor", DType: new("float32"), Shape: []int64{2, 2}, Offsets: []int64{0, 0}, Sizes: []int64{2, 1},
			File: new("f"), Offset: new(int64(16)), Length: 8, NumBytes: 8, Tensor: new(int64(16)), Checksums: 2,
		},
		{
			FQN: "w", Kind: "tensor", DType: new("float32"), Shape: []int64{2, 2}, Chunk: 1, Offsets: []int64{0, 1}, Sizes: []int64{2, 1},
			File: new("f"), Offset: new(int64(24)), Length: 8, NumBytes: 8, Tensor: new(int64(16)), Checksums: 2,
		},
	}
	for i := range got { // a list without elements may come back as either
		for _, l := range []*[]int64{&got[i].Shape, &got[i].Offsets, &got[i].Sizes} {
			if len(*l) == 0 {
				*l = nil
			}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("rows: -want +got\n%s", d)
	}
}

func TestTableSchema(t *testing.T) {
	var b bytes.Buffer
	if _, err := writeTable(t.Context(), &b, "runs/1", tabled()); err != nil {
		t.Fatal(err)
	}
	f := must.Get(parquet.OpenFile(bytes.NewReader(b.Bytes()), int64(b.Len())))(t)
	for _, want := range []string{"group shape (LIST)", "group offsets (LIST)", "optional binary dtype (STRING)", "optional int64 tensor_nbytes", "required int64 length"} {
		if s := f.Schema().String(); !strings.Contains(s, want) {
			t.Errorf("schema lacks %q:\n%s", want, s)
		}
	}
	for key, want := range map[string]string{"cairn.save_id": "s", "cairn.path": "runs/1", "cairn.step": "7"} {
		if got, ok := f.Lookup(key); !ok || got != want {
			t.Errorf("%s = %q, %v; want %s", key, got, ok, want)
		}
	}
}

func TestTableOfManyRows(t *testing.T) {
	md := &meta.Metadata{}
	for i := range 5000 {
		md.Entries = append(md.Entries, meta.Entry{FQN: fmt.Sprintf("%05d", i), Bytes: &meta.Bytes{Inline: []byte{}}})
	}
	var b bytes.Buffer
	if n, err := writeTable(t.Context(), &b, "runs/1", md); n != 5000 || err != nil {
		t.Fatalf("writeTable = %d, %v; want 5000", n, err)
	}
	rows, err := parquet.Read[chunkRow](bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil || len(rows) != 5000 || rows[4999].FQN != "04999" {
		t.Errorf("read %d rows, %v; want 5000 in order", len(rows), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := writeTable(ctx, &b, "runs/1", md); !errors.Is(err, context.Canceled) {
		t.Errorf("writeTable with an ended context = %v", err)
	}
}

// The table of a checkpoint of another format has the path of the checkpoint, and the
// sizes of chunks without the bytes that the format adds around them.
func TestTableOfDCP(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		var errOut bytes.Buffer
		if got := Main(t.Context(), args, io.Discard, &errOut); got != 0 {
			t.Fatalf("cairn %v: exit code %d: %s", args, got, &errOut)
		}
	}
	saved, moved, out := filepath.Join(dir, "saved"), filepath.Join(dir, "moved"), filepath.Join(dir, "t.parquet")
	run("demo", "--dir", "mem://dcp-table", "--size", "64KiB", "--ranks", "1")
	run("convert", "mem://dcp-table", saved, "--to", "dcp", "--world-size", "2")
	must.Do(t, os.Rename(saved, moved))
	run("table", moved, "-o", out)
	b := must.Get(os.ReadFile(out))(t)
	f := must.Get(parquet.OpenFile(bytes.NewReader(b), int64(len(b))))(t)
	if got, _ := f.Lookup("cairn.path"); got != moved {
		t.Errorf("cairn.path = %q; want %q", got, moved)
	}
	rows := must.Get(parquet.Read[chunkRow](bytes.NewReader(b), int64(len(b))))(t)
	var chunks, tensors int64
	for _, r := range rows {
		if r.Kind != inspect.KindTensor {
			continue
		}
		if chunks += r.NumBytes; r.Chunk == 0 {
			tensors += *r.Tensor
		}
		if r.Length <= r.NumBytes {
			t.Errorf("%s: length %d, nbytes %d; want a zip file around the bytes", r.FQN, r.Length, r.NumBytes)
		}
	}
	if chunks != tensors || tensors == 0 {
		t.Errorf("chunks of %d bytes, tensors of %d; want the same", chunks, tensors)
	}
}
