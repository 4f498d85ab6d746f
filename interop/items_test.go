//go:build interop

package interop

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// item is the content of one name of a checkpoint, in the words of cairn digest and of
// py/digest.py alike.
type item struct {
	Kind   string  `json:"kind"`
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	SHA256 string  `json:"sha256"`
	Type   string  `json:"type"`
	Repr   string  `json:"repr"`
}

// items is all that a checkpoint holds, by name.
type items map[string]item

// String describes the properties that both sides must agree on: of a tensor its dtype, shape
// and bytes, of an object its class and its repr in Python.
func (i item) String() string {
	if i.Kind == "tensor" {
		return fmt.Sprintf("tensor %s%v %.12s", i.DType, i.Shape, i.SHA256)
	}
	repr := i.Repr
	if i.Type == "ndarray" {
		repr = strings.Join(strings.Fields(repr), " ") // numpy breaks lines
	}
	return fmt.Sprintf("%s %s %s", i.Kind, i.Type, repr)
}

// only returns the items that keep accepts.
func (it items) only(keep func(name string, i item) bool) items {
	out := maps.Clone(it)
	maps.DeleteFunc(out, func(name string, i item) bool { return !keep(name, i) })
	return out
}

func (it items) tensors() items {
	return it.only(func(_ string, i item) bool { return i.Kind == "tensor" })
}

// below returns the items with names that begin with prefix.
func (it items) below(prefix string) items {
	return it.only(func(name string, _ item) bool { return strings.HasPrefix(name, prefix) })
}

// named returns the items of a native folder that are there under their names.
func (it items) named() items {
	return it.only(func(name string, _ item) bool { return !strings.HasPrefix(name, reserved) })
}

// equal fails the test if got differs from want, or if want is empty.
func equal(t testing.TB, what string, got, want items) {
	t.Helper()
	if len(want) == 0 {
		t.Fatalf("%s: nothing to compare with", what)
	}
	if d := diff(got, want); len(d) > 0 {
		t.Errorf("%s: %d of %d items are not equal:\n  %s", what, len(d), len(want), strings.Join(d[:min(len(d), 20)], "\n  "))
	}
}

// diff returns a line for each name under which the two differ.
func diff(got, want items) []string {
	names := maps.Clone(want)
	maps.Copy(names, got)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		g, inGot := got[name]
		w, inWant := want[name]
		switch {
		case !inGot:
			out = append(out, fmt.Sprintf("%q is missing; want %v", name, w))
		case !inWant:
			out = append(out, fmt.Sprintf("%q is too much: %v", name, g))
		case g.String() != w.String():
			out = append(out, fmt.Sprintf("%q = %v; want %v", name, g, w))
		}
	}
	return out
}
