package torchfile_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// An optimizer without state does not load a state without "state", and lists must not get
// shorter.
func TestEmptyDictsRoundTrip(t *testing.T) {
	type m = map[string]any
	x := vector(t, 1)
	nested := func(empty any) m {
		return m{
			"o": m{"state": empty, "param_groups": []any{m{"lr": 0.5}}}, "l": []any{empty, x}, "end": []any{x, empty},
			"od": &value.Dict{Ordered: true},
		}
	}
	want := nested(m{})
	same := cmp.Options{cmp.Comparer(tensor.Equal), cmpopts.EquateEmpty()}
	read, _ := load(t, holding(t, want), "x.pt")
	if diff := cmp.Diff(want, read, same); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	s := new(mem.Store)
	// A map of Go without anything in it is no value of a plan.State.
	if err := save(t, at(s, "x.pt"), plan.State(nested(&value.Dict{}))); err != nil {
		t.Fatalf("Save = %v", err)
	}
	if diff := cmp.Diff(any(want), root(t, s, "x.pt"), same); diff != "" {
		t.Errorf("written (-want +got):\n%s", diff)
	}
}
