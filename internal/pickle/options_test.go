package pickle_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

func TestPersistentIDs(t *testing.T) {
	b := must.Get(pickle.Encode([]any{pickle.PersistentID{ID: value.Tuple{"storage", int64(7)}}, "x"}, &pickle.EncodeOptions{Protocol: 2}))(t)
	got, err := pickle.Decode(b, &pickle.DecodeOptions{Persistent: func(id any) (any, error) {
		return []any{"resolved", id.(value.Tuple)[1]}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{[]any{"resolved", int64(7)}, "x"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	lie := errors.New("no such storage")
	_, err = pickle.Decode(b, &pickle.DecodeOptions{Persistent: func(any) (any, error) { return nil, lie }})
	if !errors.Is(err, lie) || !errors.Is(err, pickle.ErrPersistent) {
		t.Errorf("an id that its resolver refuses: %v", err)
	}
}

// The old stream of PyTorch names the classes of modules by persistent ids, with
// their source, and makes objects of them.
func TestPersistentIDsOfModuleClasses(t *testing.T) {
	const id = "(X\x06\x00\x00\x00modulecnet\nNet\nX\x06\x00\x00\x00net.pyNtQ"
	got, err := pickle.Decode([]byte("\x80\x02"+id+")\x81}X\x01\x00\x00\x00aK\x01sb."), nil)
	want := &value.Object{Module: "net", Name: "Net", Call: true, New: true, State: map[string]any{"a": int64(1)}}
	if diff := cmp.Diff(any(want), got); err != nil || diff != "" {
		t.Errorf("Decode: %v (-want +got):\n%s", err, diff)
	}
	got, err = pickle.Decode([]byte("\x80\x02"+id+"."), nil)
	if diff := cmp.Diff(any(&value.Object{Module: "net", Name: "Net"}), got); err != nil || diff != "" {
		t.Errorf("Decode: %v (-want +got):\n%s", err, diff)
	}
	for name, id := range map[string]string{
		"another word": "(X\x06\x00\x00\x00modelscnet\nNet\nNNtQ", "a class that is text": "(X\x06\x00\x00\x00moduleX\x01\x00\x00\x00aNNtQ",
		"three parts": "(X\x06\x00\x00\x00modulecnet\nNet\nNtQ",
	} {
		if _, err := pickle.Decode([]byte("\x80\x02"+id+"."), nil); !errors.Is(err, pickle.ErrPersistent) {
			t.Errorf("%s: Decode = %v; want %v", name, err, pickle.ErrPersistent)
		}
	}
}

func TestConstructReplacesCalls(t *testing.T) {
	twice := map[string]func(value.Tuple, map[string]any) (any, error){
		"m.f": func(args value.Tuple, kwargs map[string]any) (any, error) {
			if len(args) == 0 {
				return nil, errors.New("nothing to double")
			}
			return args[0].(int64) * 2, nil
		},
	}
	o := &pickle.DecodeOptions{Construct: twice}
	if v, err := pickle.Decode([]byte("\x80\x02cm\nf\nK\x15\x85R."), o); err != nil || v != int64(42) {
		t.Errorf("f(21) = %v, %v; want 42", v, err)
	}
	if v, err := pickle.Decode([]byte("\x80\x02ccopyreg\n__newobj__\ncm\nf\nK\x15\x86R."), o); err != nil || v != int64(42) {
		t.Errorf("__newobj__(f, 21) = %v, %v; want 42", v, err)
	}
	if _, err := pickle.Decode([]byte("cm\nf\n)R."), o); err == nil || !strings.Contains(err.Error(), "m.f") {
		t.Errorf("an error of the function: %v; want one with its name", err)
	}
	if _, err := pickle.Decode([]byte("cm\nf\nK\x01\x85R}b."), o); !errors.Is(err, pickle.ErrUnsupported) {
		t.Errorf("a state for what the function made: %v; want ErrUnsupported", err)
	}
}

func TestDecodePrefix(t *testing.T) {
	data := []byte("\x80\x02K\x01.\x80\x02K\x02.")
	v, n, err := pickle.DecodePrefix(data, nil)
	if err != nil || v != int64(1) || n != 5 {
		t.Fatalf("DecodePrefix = %v, %d, %v; want 1, 5", v, n, err)
	}
	if v, n, err = pickle.DecodePrefix(data[n:], nil); err != nil || v != int64(2) || n != 5 {
		t.Fatalf("DecodePrefix = %v, %d, %v; want 2, 5", v, n, err)
	}
}

func TestEncodeReplace(t *testing.T) {
	type mine struct{ n int64 }
	b := must.Get(pickle.Encode(map[string]any{"a": mine{1}, "b": []any{mine{2}}}, &pickle.EncodeOptions{
		Replace: func(v any) (any, bool) {
			m, ok := v.(mine)
			return value.Tuple{"mine", m.n}, ok
		},
	}))(t)
	got := must.Get(pickle.Decode(b, nil))(t)
	want := map[string]any{"a": value.Tuple{"mine", int64(1)}, "b": []any{value.Tuple{"mine", int64(2)}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEncodeRefuses(t *testing.T) {
	loop := []any{nil}
	loop[0] = loop
	knot := map[string]any{}
	knot["me"] = value.Tuple{knot}
	self := &value.Object{Module: "argparse", Name: "Namespace", Call: true, New: true}
	self.State = map[string]any{"me": self}
	deep := any("x")
	for range 2000 {
		deep = []any{deep}
	}
	when := &value.Object{Module: "datetime", Name: "datetime", Call: true, Args: ints(2026, 13, 1)}
	for _, c := range []struct {
		name string
		v    any
		o    pickle.EncodeOptions
		want error
	}{
		{"an unknown class", call("my.module", "Thing"), pickle.EncodeOptions{}, pickle.ErrUnknownClass},
		{"an unknown name", []any{name("os", "system")}, pickle.EncodeOptions{}, pickle.ErrUnknownClass},
		{"an unknown class inside of a known one", call("collections", "defaultdict", name("os", "system")), pickle.EncodeOptions{}, pickle.ErrUnknownClass},
		{"a list in itself", loop, pickle.EncodeOptions{}, pickle.ErrCycle},
		{"a dict in itself", knot, pickle.EncodeOptions{}, pickle.ErrCycle},
		{"an object in itself", self, pickle.EncodeOptions{}, pickle.ErrCycle},
		{"too deep a value", deep, pickle.EncodeOptions{}, pickle.ErrLimit},
		{"a channel", make(chan int), pickle.EncodeOptions{}, pickle.ErrUnsupported},
		{"a string that is no text", "\xff", pickle.EncodeOptions{}, pickle.ErrUnsupported},
		{"protocol 1", nil, pickle.EncodeOptions{Protocol: 1}, pickle.ErrUnsupported},
		{"protocol 6", nil, pickle.EncodeOptions{Protocol: 6}, pickle.ErrUnsupported},
		{"a call with named arguments", named(call("builtins", "dict"), map[string]any{"a": int64(1)}), pickle.EncodeOptions{}, pickle.ErrUnsupported},
		{"the month 13", when, pickle.EncodeOptions{}, pickle.ErrUnsupported},
		{"a number that is not a float16", call("numpy", "float16", 0.1), pickle.EncodeOptions{}, pickle.ErrUnsupported},
		{"a number that is not an int8", call("numpy", "int8", int64(200)), pickle.EncodeOptions{}, pickle.ErrUnsupported},
		{"an array of the wrong size", array("<f4", "C", ints(3), "1234"), pickle.EncodeOptions{}, pickle.ErrUnsupported},
		{"a name that smuggles opcodes", name("os\nsystem\n)R.", "x"),
			pickle.EncodeOptions{Protocol: 2, Allow: func(string, string) bool { return true }}, pickle.ErrUnsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			if b, err := pickle.Encode(c.v, &c.o); !errors.Is(err, c.want) {
				t.Errorf("Encode = %q, %v; want %v", b, err, c.want)
			}
		})
	}
}

func TestAllowedClassesAreWritten(t *testing.T) {
	o := &value.Object{Module: "my.module", Name: "Thing", Call: true, New: true, Args: ints(1),
		Kwargs: map[string]any{"x": 2.5}, State: map[string]any{"y": nil}, Items: list(7), Pairs: []value.Pair{{Key: "k", Value: true}}}
	allow := func(module, name string) bool { return module == "my.module" && name == "Thing" }
	for p := 2; p <= 5; p++ {
		b := must.Get(pickle.Encode(o, &pickle.EncodeOptions{Protocol: p, Allow: allow}))(t)
		got := must.Get(pickle.Decode(b, nil))(t)
		if diff := cmp.Diff(o, got); diff != "" {
			t.Errorf("protocol %d (-want +got):\n%s", p, diff)
		}
	}
}

func TestEncodeGoValues(t *testing.T) {
	b := must.Get(pickle.Encode(map[string]any{"a": []string{"x"}, "b": int32(-5), "c": float32(0.5), "d": map[string]int{"n": 1},
		"e": uint8(9), "f": uint64(math.MaxUint64), "g": (*value.Dict)(nil)}, nil))(t)
	got := must.Get(pickle.Decode(b, nil))(t)
	want := map[string]any{"a": []any{"x"}, "b": int64(-5), "c": 0.5, "d": map[string]any{"n": int64(1)},
		"e": int64(9), "f": uint64(math.MaxUint64), "g": nil}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestKnown(t *testing.T) {
	for _, n := range [][2]string{{"torch", "bfloat16"}, {"torch", "strided"}, {"torch", "Size"}, {"collections", "OrderedDict"},
		{"datetime", "datetime"}, {"pathlib", "PosixPath"}, {"numpy", "ndarray"}, {"builtins", "set"}} {
		if !pickle.Known(n[0], n[1]) {
			t.Errorf("Known(%q, %q) = false", n[0], n[1])
		}
	}
	for _, n := range [][2]string{{"os", "system"}, {"builtins", "eval"}, {"builtins", "getattr"}, {"torch", "load"}, {"torch", "hub"},
		{"numpy", "load"}, {"", ""}} {
		if pickle.Known(n[0], n[1]) {
			t.Errorf("Known(%q, %q) = true", n[0], n[1])
		}
	}
}
