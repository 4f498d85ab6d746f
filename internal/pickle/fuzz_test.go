package pickle_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

// small bounds the pickles of the fuzzers, so that they see many pickles.
var small = &pickle.Limits{Depth: 50, Memory: 1 << 19, Bytes: 1 << 18}

func addSamples(f *testing.F) {
	for _, s := range samples(f) {
		if b := s.bytes(f); len(b) < 400 {
			f.Add(b)
		}
	}
	f.Add(laughs(20))
	f.Add([]byte("]q\x00h\x00a."))
	f.Add([]byte("\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R."))
	f.Add([]byte("\x80\x02(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ."))
}

// Any bytes decode or are refused; decoding does not panic, and values stay below the limits.
func FuzzDecode(f *testing.F) {
	addSamples(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		o := &pickle.DecodeOptions{Limits: small, Persistent: func(id any) (any, error) { return id, nil }}
		_, n, err := pickle.DecodePrefix(data, o)
		if err == nil && (n <= 0 || n > len(data)) {
			t.Errorf("a pickle of %d bytes in %d", n, len(data))
		}
	})
}

// A decoded value encodes, or is refused; an encoded value decodes to the same value again.
func FuzzRoundTrip(f *testing.F) {
	addSamples(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := pickle.Decode(data, &pickle.DecodeOptions{Limits: small})
		if err != nil {
			return
		}
		for p := 2; p <= 5; p++ {
			o := &pickle.EncodeOptions{Protocol: p, Allow: func(string, string) bool { return true }}
			b, err := pickle.Encode(v, o)
			if err != nil {
				return
			}
			once, err := pickle.Decode(b, nil)
			if err != nil {
				t.Fatalf("protocol %d: %q became %q: %v", p, data, b, err)
			}
			if b, err = pickle.Encode(once, o); err != nil {
				t.Fatalf("protocol %d: the second time: %v", p, err)
			}
			twice, err := pickle.Decode(b, nil)
			if err != nil {
				t.Fatalf("protocol %d: the second time: %v", p, err)
			}
			if diff := cmp.Diff(once, twice, same); diff != "" {
				t.Fatalf("protocol %d: the second time (-once +twice):\n%s", p, diff)
			}
		}
	})
}

// three is a class with records; see FuzzRecords.
var three = []pickle.Class{{Names: []string{"m.C"}, Fields: []string{"a", "b", "c"}}}

// fields returns v with the states of all objects as maps without Nones,
// whatever form they have.
func fields(v any) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = fields(v[i])
		}
		return out
	case value.Tuple:
		return value.Tuple(fields([]any(v)).([]any))
	case map[string]any:
		out := map[string]any{}
		for k := range v {
			out[k] = fields(v[k])
		}
		return out
	case *value.Dict:
		out := &value.Dict{Ordered: v.Ordered}
		for _, p := range v.Pairs {
			out.Pairs = append(out.Pairs, value.Pair{Key: fields(p.Key), Value: fields(p.Value)})
		}
		return out
	case *value.Set:
		return &value.Set{Items: fields(v.Items).([]any), Frozen: v.Frozen}
	case *value.Object:
		out := *v
		out.Args = fields(v.Args).(value.Tuple)
		out.State = stateOf(fields(v.State))
		out.Items = fields(v.Items).([]any)
		out.Pairs = fields(&value.Dict{Pairs: v.Pairs}).(*value.Dict).Pairs
		return &out
	}
	return v
}

func stateOf(v any) any {
	out := map[string]any{}
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			out[k] = e
		}
	case value.Tuple:
		for i, e := range v {
			out[string(rune('a'+i))] = e // the names of the fields in order
		}
	default:
		out["state"] = v
	}
	for k := range out {
		if out[k] == nil {
			delete(out, k)
		}
	}
	return out
}

// Records have the same fields as objects.
func FuzzRecords(f *testing.F) {
	c := func(state map[string]any) any {
		return &value.Object{Module: "m", Name: "C", Call: true, New: true, State: state}
	}
	for p := 2; p <= 5; p++ {
		o := &pickle.EncodeOptions{Protocol: p, Allow: func(string, string) bool { return true }}
		for _, v := range []any{
			[]any{c(map[string]any{"a": call("torch", "Size", ints(1, 2)), "b": "x"}), c(map[string]any{"a": ints(1 << 40), "c": nil, "b": "y"})},
			[]any{c(map[string]any{"a": int64(1)}), c(map[string]any{"a": int64(-70000), "b": true, "c": value.Tuple{}}), c(nil)},
			map[string]any{"k": c(map[string]any{"a": c(map[string]any{"b": ints(1, 2, 3, 4, 5)}), "c": call("torch", "Size", value.Tuple{})})},
		} {
			b := must.Get(pickle.Encode(v, o))(f)
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, _, err := pickle.Parse(data, three, small)
		if err != nil {
			return
		}
		o := &pickle.DecodeOptions{Limits: small}
		got, err := g.Value(g.Root, o)
		if err != nil {
			return
		}
		want, _, err := pickle.DecodePrefix(data, o)
		if errors.Is(err, pickle.ErrUnsupported) || errors.Is(err, pickle.ErrLimit) {
			return // a record may have several states, and takes less
		}
		if err != nil {
			t.Fatalf("only records: %v", err)
		}
		if diff := cmp.Diff(fields(want), fields(got), same); diff != "" {
			t.Fatalf("(-objects +records):\n%s", diff)
		}
	})
}
