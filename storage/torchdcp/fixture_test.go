package torchdcp_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/fixture"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// dcpFixtures are the checkpoints that PyTorch's dcp.save wrote.
var dcpFixtures = []string{
	"torch-*/dtypes", "torch-*/filepertensor-2", "torch-*/fsdp_tp-4", "torch-*/mesh2d-4", "torch-*/objects", "torch-*/optim",
	"torch-*/shard0-3", "torch-*/shard0-4", "torch-*/shardedtensor-3", "torch-*/ranklocal-2",
}

func openFixture(t *testing.T, c fixture.Case) storage.Checkpoint {
	t.Helper()
	s, err := file.Open(c.Dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	ck, err := torchdcp.Open(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	return ck
}

// loadAll loads everything, by name.
func loadAll(t testing.TB, ck storage.Checkpoint) plan.State {
	t.Helper()
	md, err := ck.Metadata(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	state := plan.State{}
	for i := range md.Entries {
		state[md.Entries[i].FQN] = nil
		if x := md.Entries[i].Tensor; x != nil {
			if state[md.Entries[i].FQN], err = tensor.New(x.DType, x.Shape); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := &storagetest.Loading{
		Planners: []plan.LoadPlanner{&plan.DefaultLoad{NoFlatten: true, RejectUnexpected: true}},
		Readers:  []storage.Reader{ck.NewReader(storage.ReadOptions{})},
	}
	if err := errors.Join(l.Plan(t.Context(), []plan.State{state}), l.Read(t.Context())); err != nil {
		t.Fatalf("Load = %v", err)
	}
	return state
}

func TestFixturesHoldWhatPyTorchSaved(t *testing.T) {
	for _, c := range fixture.Cases(t, dcpFixtures...) {
		t.Run(c.Name, func(t *testing.T) {
			got := map[string]fixture.Item{}
			for name, v := range loadAll(t, openFixture(t, c)) {
				got[name] = itemOf(v)
			}
			if d := cmp.Diff(slices.Sorted(maps.Keys(c.Items)), slices.Sorted(maps.Keys(got))); d != "" {
				t.Fatalf("names (-want +got):\n%s", d)
			}
			if d := cmp.Diff(asPlain(c.Items), got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// itemOf describes a value as expected.json does. Of objects it says what is
// plain to say; what Python says of all of them is for package inspect to know.
func itemOf(v any) fixture.Item {
	switch v := v.(type) {
	case *tensor.Tensor:
		b := v.Contents()
		sum := sha256.Sum256(b)
		return fixture.Item{
			Kind: "tensor", DType: v.DType().String(), Shape: v.Shape(), NumBytes: int64(len(b)), SHA256: hex.EncodeToString(sum[:]),
		}
	case int64, *big.Int:
		return fixture.Item{Kind: "object", Type: "int", Repr: fmt.Sprint(v)}
	case bool:
		return fixture.Item{Kind: "object", Type: "bool", Repr: map[bool]string{false: "False", true: "True"}[v]}
	case string:
		repr := "'" + v + "'"
		return fixture.Item{Kind: "object", Type: "str", Repr: repr[:min(len(repr), 400)]}
	}
	return fixture.Item{Kind: "object"}
}

// asPlain returns what itemOf can say of the items.
func asPlain(items map[string]fixture.Item) map[string]fixture.Item {
	out := maps.Clone(items)
	for name, it := range out {
		if it.Kind == "object" && !slices.Contains([]string{"int", "bool", "str"}, it.Type) {
			out[name] = fixture.Item{Kind: "object"}
		}
	}
	return out
}

func TestFixturesVerify(t *testing.T) {
	for _, c := range fixture.Cases(t, dcpFixtures...) {
		ck := openFixture(t, c)
		rep, err := ck.Verify(t.Context(), nil)
		if err != nil || len(rep.Problems) != 0 || rep.Unsummed >= rep.Bytes {
			t.Errorf("%s: Verify = %+v, %v; want no problems, and checksums", c.Name, rep, err)
		}
		if rep.Bytes != ck.TotalBytes() {
			t.Errorf("%s: %d bytes were verified; want %d", c.Name, rep.Bytes, ck.TotalBytes())
		}
	}
}
