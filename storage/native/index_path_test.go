package native

import (
	"bytes"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
)

// The bytes of each form belong to the format and must not change.
func TestPathForms(t *testing.T) {
	state := meta.Key("state")
	for claim, c := range map[string]struct {
		fqn  string
		path meta.Path
		form pathForm
		want string
	}{
		"no path":                      {"a", nil, pathNone, ""},
		"the name as a key":            {"state.0", meta.Path{meta.Key("state.0")}, pathName, ""},
		"keys and positions, cut":      {"state.0.k", meta.Path{state, meta.Pos(0), meta.Key("k")}, pathCut, "\x03\x0a\x03\x02"},
		"keys and positions, spelled":  {"x", meta.Path{meta.Key("k"), meta.Pos(5)}, pathSteps, "\x02\x02k\x0b"},
		"an integer alone":             {"0", meta.Path{meta.IntKey(0)}, pathCutInts, "\x01\x06"},
		"an integer among others, cut": {"state.-12.0.k", meta.Path{state, meta.IntKey(-12), meta.Pos(0), meta.Key("k")}, pathCutInts, "\x04\x14\x0e\x05\x04"},
		"an integer, spelled":          {"x", meta.Path{meta.Key("k"), meta.Pos(5), meta.IntKey(12)}, pathStepsInts, "\x03\x04k\x15\x0a12"},
		"a number that is text, cut":   {"state.0", meta.Path{state, meta.Key("0")}, pathCut, "\x02\x0a\x02"},
		"an integer with dots around":  {"a.b.7", meta.Path{meta.Key("a.b"), meta.IntKey(7)}, pathCutInts, "\x02\x0c\x06"},
		"an integer beyond 64 bits":    {"18446744073709551616", meta.Path{{Key: "18446744073709551616", Int: true}}, pathCutInts, "\x01\x52"},
		"a position as far as it goes": {"x", meta.Path{meta.Pos(1<<63 - 1)}, pathSteps, "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"},
		"the same, beside an integer":  {"x", meta.Path{meta.Pos(1<<62 - 1), meta.IntKey(1)}, pathStepsInts, "\x02\xfd\xff\xff\xff\xff\xff\xff\xff\xff\x01\x061"},
	} {
		form := pathFormOf(c.fqn, c.path)
		var w wire.Writer
		if err := putPath(&w, form, c.path); err != nil || form != c.form || string(w.B) != c.want {
			t.Errorf("%s: putPath = form %d, %q, %v; want %d, %q", claim, form, w.B, err, c.form, c.want)
		}
		r := wire.NewReader(bytes.Clone(w.B))
		if got := newEntryDecoder(nil).path(r, form, c.fqn); r.Done() != nil || !got.Equal(c.path) {
			t.Errorf("%s: path = %+v, %v; want %+v", claim, got, r.Done(), c.path)
		}
	}
}
