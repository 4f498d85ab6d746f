package inspect_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}

func TestDigestsAreIndependentOfSharding(t *testing.T) {
	w := counting(t, 37, 24)
	want := map[string]inspect.Digest{
		"long": {
			Kind: "object", Type: "bytes", Repr: ("b'" + strings.Repeat(`\x00`, 2000))[:400],
			NumBytes: 100_000, SHA256: sum(make([]byte, 100_000)),
		},
		"model.b":     {Kind: "tensor", DType: "float32", Shape: []int64{5}, NumBytes: 20, SHA256: sum(counting(t, 5).Contents())},
		"model.scale": {Kind: "tensor", DType: "float32", Shape: []int64{}, NumBytes: 4, SHA256: sum(counting(t).Contents())},
		"model.w":     {Kind: "tensor", DType: "float32", Shape: []int64{37, 24}, NumBytes: 37 * 24 * 4, SHA256: sum(w.Contents())},
		"note":        {Kind: "object", Type: "str", Repr: `"it's"`, NumBytes: 6, SHA256: sum([]byte(`"it's"`))},
		"step":        {Kind: "object", Type: "int", Repr: "12", NumBytes: 2, SHA256: sum([]byte("12"))},
	}
	stores := map[string]blob.Store{"rows": save(t, rows(4), 4, w), "columns": save(t, columns(3), 3, w)}
	for name, s := range stores {
		// A buffer of an odd number of elements makes slabs that begin and end
		// within rows.
		for _, buffer := range []int64{256 << 20, 1, 4 * 31} {
			inspect.SetDigestBytes(t, buffer)
			c, md := open(t, s)
			var moved atomic.Int64
			got := must.Get(inspect.Digests(t.Context(), c, inspect.Select(md), func(n int64) { moved.Add(n) }))(t)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s, buffer of %d: -want +got\n%s", name, buffer, d)
			}
			if total := inspect.Summarize(c, md).Totals.NumBytes; moved.Load() != total {
				t.Errorf("%s: progress of %d bytes; want %d", name, moved.Load(), total)
			}
			if inspect.Combine(got) != inspect.Combine(want) {
				t.Errorf("%s: Combine differs", name)
			}
		}
	}
}

func TestCombineDiffersForDifferentStates(t *testing.T) {
	a := map[string]inspect.Digest{"x": {Kind: "tensor", DType: "int8", Shape: []int64{2, 3}, SHA256: "00"}}
	for _, b := range []map[string]inspect.Digest{
		{},
		{"y": a["x"]},
		{"x": {Kind: "tensor", DType: "int8", Shape: []int64{3, 2}, SHA256: "00"}},
		{"x": {Kind: "tensor", DType: "uint8", Shape: []int64{2, 3}, SHA256: "00"}},
		{"x": {Kind: "tensor", DType: "int8", Shape: []int64{2, 3}, SHA256: "01"}},
	} {
		if inspect.Combine(a) == inspect.Combine(b) {
			t.Errorf("Combine(%v) = Combine(%v)", a, b)
		}
	}
}

func TestDigestsDetectDamage(t *testing.T) {
	s := save(t, rows(2), 2, counting(t, 6, 4))
	c, md := open(t, s)
	last := c.Files()[len(c.Files())-1].Name
	err := fault.Damage(t.Context(), s, last, func(b []byte) []byte {
		b[len(b)-1] ^= 1
		return b
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inspect.Digests(t.Context(), c, inspect.Select(md), nil); !errors.Is(err, cairn.ErrCorrupt) {
		t.Errorf("Digests = %v; want ErrCorrupt", err)
	}
}

// Small tensors are read together, whatever the format.
func TestDigestsReadSmallTensorsTogether(t *testing.T) {
	state, want := cairn.State{}, map[string]inspect.Digest{}
	for i := range 500 {
		name, x := fmt.Sprintf("t%03d", i), counting(t, int64(i%4), 2)
		state[name] = x
		want[name] = inspect.Digest{Kind: "tensor", DType: "float32", Shape: x.Shape(), NumBytes: x.NumBytes(), SHA256: sum(x.Contents())}
	}
	for _, format := range []storage.Format{nil, torchdcp.Format{}} {
		m := fault.New(new(mem.Store))
		if _, err := cairn.Save(t.Context(), m, state, &cairn.SaveOptions{Format: format}); err != nil {
			t.Fatal(err)
		}
		c, md := open(t, m)
		before := len(m.Ops())
		inspect.SetDigestBytes(t, 4<<10)
		got, err := inspect.Digests(t.Context(), c, inspect.Select(md), nil)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%v: Digests: %v, -want +got\n%s", format, err, d)
		}
		if ops := m.Ops()[before:]; ops.Count(fault.Open) > 20 || ops.Count(fault.Read) > 20 {
			t.Errorf("%v: %d opens and %d reads of 500 tensors; want at most 20", format, ops.Count(fault.Open), ops.Count(fault.Read))
		}
	}
}

func TestDigestsStopWithContext(t *testing.T) {
	c, md := open(t, save(t, rows(2), 2, counting(t, 6, 4)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := inspect.Digests(ctx, c, inspect.Select(md), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Digests = %v; want Canceled", err)
	}
}

// odd is a checkpoint with one object, in any codec.
type odd struct {
	codec string
	data  []byte
}

func (o odd) ReadBytes(context.Context, *meta.Entry) (string, []byte, error) {
	return o.codec, bytes.Clone(o.data), nil
}

func (o odd) ReadEntry(context.Context, *meta.Entry, tensor.Box, *tensor.Tensor) error {
	return errors.New("no tensors here")
}

func (o odd) ReadEntries(context.Context, []*meta.Entry, []*tensor.Tensor) error {
	return errors.New("no tensors here")
}

func TestUnknownCodecsAreDigestedAsBytes(t *testing.T) {
	e := []*meta.Entry{{FQN: "x", Bytes: &meta.Bytes{}}}
	got, err := inspect.Digests(t.Context(), odd{"pickle", []byte{1, 2, ' '}}, e, nil)
	want := map[string]inspect.Digest{"x": {Kind: "object", Type: "pickle", NumBytes: 3, SHA256: sum([]byte{1, 2, ' '})}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("Digests: %v, -want +got\n%s", err, d)
	}
	if _, err := inspect.Digests(t.Context(), odd{value.JSON, []byte("{")}, e, nil); !errors.Is(err, value.ErrEncoding) {
		t.Errorf("Digests of bad JSON = %v; want ErrEncoding", err)
	}
}

// Ranks that share the work find the digests that one rank finds.
func TestRanksDigestTogether(t *testing.T) {
	for _, f := range storagetest.Fixtures(t, "*/*") {
		c := must.Get(cairn.OpenPath(t.Context(), f.Dir))(t)
		defer c.Close()
		entries := inspect.Select(must.Get(c.Metadata(t.Context()))(t))
		want := must.Get(inspect.Digests(t.Context(), c, entries, nil))(t)
		for _, ranks := range []int{1, 3} {
			err := inproc.Run(t.Context(), ranks, func(ctx context.Context, g group.Group) error {
				var planned, read atomic.Int64
				got, err := inspect.DigestsTogether(ctx, g, c, entries, func(n int64) { planned.Add(n) }, func(n int64) { read.Add(n) })
				if err != nil {
					return err
				}
				if (planned.Load() > 0) != (read.Load() > 0) {
					return fmt.Errorf("read %d of %d bytes", read.Load(), planned.Load())
				}
				if d := cmp.Diff(want, got); d != "" && g.Rank() == 0 || g.Rank() != 0 && got != nil {
					return fmt.Errorf("the digests differ: %s", d)
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s: %d ranks: %v", f.Name, ranks, err)
			}
		}
	}
}
