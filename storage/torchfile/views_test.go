package torchfile_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/value"
)

// expanded returns a file of n tensors of rows×1024 bytes, which all are views of
// the same 1024 bytes.
func expanded(t *testing.T, n int, rows int64) []byte {
	t.Helper()
	class := &value.Object{Module: "torch", Name: "ByteStorage"}
	state := map[string]any{}
	for i := range n {
		state[fmt.Sprintf("x%d", i)] = &value.Object{Module: "torch._utils", Name: "_rebuild_tensor_v2", Call: true, Args: value.Tuple{
			pickle.PersistentID{ID: value.Tuple{"storage", class, "0", "cpu", int64(1024)}},
			int64(0), value.Tuple{rows, int64(1024)}, value.Tuple{int64(0), int64(1)}, false, &value.Dict{Ordered: true},
		}}
	}
	p := must.Get(pickle.Encode(state, &pickle.EncodeOptions{Protocol: 2, Allow: func(string, string) bool { return true }}))(t)
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, r := range []struct {
		name string
		data []byte
	}{{"archive/data.pkl", p}, {"archive/data/0", make([]byte, 1024)}, {"archive/version", []byte("3\n")}} {
		f := must.Get(w.CreateHeader(&zip.FileHeader{Name: r.name, Method: zip.Store}))(t)
		must.Get(f.Write(r.data))(t)
	}
	must.Do(t, w.Close())
	return b.Bytes()
}

// Views that repeat a few bytes are expanded, up to a bound for all of them; Verify reports
// those beyond.
func TestExpandedViewsAreBoundedInSum(t *testing.T) {
	for n, want := range map[int]error{4: nil, 76: storage.ErrCorrupt} {
		s := new(mem.Store)
		storagetest.Put(t, s, "model.pt", expanded(t, n, 1<<17)) // 128 MiB each
		ck := must.Get(torchfile.Format{}.Open(t.Context(), s))(t)
		e, _, err := ck.Find(t.Context(), "x0")
		if err != nil {
			t.Fatal(err)
		}
		if err := ck.CheckHeld(t.Context(), e); !errors.Is(err, want) {
			t.Errorf("%d views: CheckHeld = %v; want %v", n, err, want)
		}
		rep, err := ck.Verify(t.Context(), nil)
		if err != nil || len(rep.Problems) > 0 != (want != nil) || len(rep.Problems) > 1 {
			t.Errorf("%d views: Verify = %+v, %v; want one problem: %v", n, rep, err, want != nil)
		}
	}
}
