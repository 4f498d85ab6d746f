package torchfile_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

// open opens a folder of the fixtures.
func open(t *testing.T, dir string) blob.Store {
	t.Helper()
	s := must.Get(file.Open(dir, nil))(t)
	return s
}

// load loads everything that a checkpoint holds, by name.
func load(t *testing.T, s blob.Store, name string) (map[string]any, *meta.Metadata) {
	t.Helper()
	md, err := storage.NewReader(torchfile.Format{File: name}.Open, s, storage.ReadOptions{}).ReadMetadata(t.Context())
	if err != nil {
		t.Fatalf("ReadMetadata = %v", err)
	}
	state := must.Get(plan.NewState(md, nil))(t)
	if err := storagetest.Load(t.Context(), at(s, name), state); err != nil {
		t.Fatalf("Load = %v", err)
	}
	plan.ResolveRefs(state, md)
	return state, md
}

// lookup returns the value at a path of a state.
func lookup(v any, path meta.Path) any {
	for _, st := range path {
		if st.List {
			v = v.([]any)[st.Pos]
		} else {
			v = v.(map[string]any)[st.Key]
		}
	}
	return v
}

// describe describes a checkpoint in the form of expected.json.
func describe(state map[string]any, md *meta.Metadata) map[string]storagetest.Item {
	out := map[string]storagetest.Item{}
	for i := range md.Entries {
		e := &md.Entries[i]
		v := lookup(state, e.Path)
		x, ok := v.(*tensor.Tensor)
		if !ok {
			out[e.FQN] = storagetest.Item{Kind: "object", Type: fmt.Sprintf("%T", v), Repr: fmt.Sprint(v)}
			continue
		}
		sum := sha256.Sum256(x.Contents())
		out[e.FQN] = storagetest.Item{Kind: "tensor", DType: x.DType().String(), Shape: x.Shape(), NumBytes: x.NumBytes(), SHA256: hex.EncodeToString(sum[:])}
	}
	return out
}

// inGo names the types of Python's objects as describe does.
var inGo = map[string]string{"int": "int64"}

func TestOpenFixtures(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "torch-*/torchsave") {
		t.Run(c.Name, func(t *testing.T) {
			for name, it := range c.Items {
				it.Type = inGo[it.Type]
				c.Items[name] = it
			}
			store := open(t, c.Dir)
			for _, name := range []string{"", "model.pt"} {
				if diff := cmp.Diff(c.Items, describe(load(t, store, name))); diff != "" {
					t.Errorf("%q (-expected +read):\n%s", name, diff)
				}
			}
		})
	}
}

// Every fixture survives being written by us, nested and flat.
func TestFixturesRoundTrip(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "torch-*/torchsave") {
		t.Run(c.Name, func(t *testing.T) {
			state, md := load(t, open(t, c.Dir), "")
			s := new(mem.Store)
			if err := storagetest.Save(t.Context(), at(s, "out/model.pt"), storagetest.Storage("s", 1, 1), state); err != nil {
				t.Fatalf("Save = %v", err)
			}
			again, md2 := load(t, s, "out/model.pt")
			if diff := cmp.Diff(describe(state, md), describe(again, md2)); diff != "" {
				t.Errorf("written and read (-before +after):\n%s", diff)
			}
		})
	}
}

func TestVerifyFixtures(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "torch-*/torchsave") {
		t.Run(c.Name, func(t *testing.T) {
			ck, err := torchfile.Format{}.Open(t.Context(), open(t, c.Dir))
			if err != nil {
				t.Fatalf("Open = %v", err)
			}
			defer ck.Close()
			rep, err := ck.Verify(t.Context(), nil)
			if err != nil || len(rep.Problems) > 0 || rep.Files != 1 || rep.Unsummed >= rep.Bytes {
				t.Errorf("Verify = %+v, %v; want no problems, and checksums", rep, err)
			}
			if v := ck.Storage().Version; v != "torch.save zip" {
				t.Errorf("Version = %q", v)
			}
		})
	}
}
