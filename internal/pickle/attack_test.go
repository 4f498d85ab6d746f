package pickle_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

// A pickle that asks for a call is data like any other.
func TestCallsBecomeInertObjects(t *testing.T) {
	for _, c := range []struct{ name, pickle, want string }{
		{"os.system by REDUCE", "\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.", "os.system"},
		{"posix.system by STACK_GLOBAL", "\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.", "posix.system"},
		{"builtins.eval", "\x80\x02cbuiltins\neval\nX\x03\x00\x00\x001+1\x85R.", "builtins.eval"},
		{"eval of Python 2", "c__builtin__\neval\n(S'1+1'\ntR.", "builtins.eval"},
		{"INST", "(S'id'\nios\nsystem\n.", "os.system"},
		{"OBJ", "(cos\nsystem\nS'id'\no.", "os.system"},
		{"NEWOBJ", "\x80\x02csubprocess\nPopen\nX\x02\x00\x00\x00id\x85\x81.", "subprocess.Popen"},
		{"NEWOBJ_EX", "\x80\x04\x8c\x01m\x8c\x01C\x93)}\x92.", "m.C"},
		{"hostile BUILD", "\x80\x02cm\nC\n)\x81}X\x0c\x00\x00\x00__setstate__cos\nsystem\nsb.", "m.C"},
		{"a nested name", "\x80\x04\x8c\x02os\x8c\x0bpath.isfile\x93)R.", "os.path.isfile"},
		{"a reconstructor of a foreign class", "ccopyreg\n_reconstructor\n(cos\nsystem\nc__builtin__\nobject\nNtR.", "os.system"},
		{"an import by name", "\x80\x02cbuiltins\n__import__\nX\x02\x00\x00\x00os\x85R.", "builtins.__import__"},
		{"getattr of torch", "\x80\x02cbuiltins\ngetattr\nctorch._utils\ntorch\nX\x04\x00\x00\x00load\x86R.", "builtins.getattr"},
		{"getattr by another way", "\x80\x02cbuiltins\ngetattr\nctorch\ntorch\nX\x0d\x00\x00\x00channels_last\x86R.", "builtins.getattr"},
		{"a name in torch of torch._utils", "\x80\x04\x8c\x0ctorch._utils\x8c\x0atorch.load\x93)R.", "torch._utils.torch.load"},
		{"getattr", "\x80\x02cbuiltins\ngetattr\ncos\nsystem\nX\x01\x00\x00\x00x\x86R.", "builtins.getattr"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := pickle.Decode([]byte(c.pickle), nil)
			if err != nil {
				t.Fatal(err)
			}
			o, ok := v.(*value.Object)
			if !ok || o.QualifiedName() != c.want || !o.Call {
				t.Fatalf("Decode = %#v; want a call of %s", v, c.want)
			}
			_, err = pickle.Encode(v, nil)
			if !errors.Is(err, pickle.ErrUnknownClass) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Encode = %v; want ErrUnknownClass with the name", err)
			}
		})
	}
}

func TestNestedClasses(t *testing.T) {
	got, err := pickle.Decode([]byte("\x80\x02cbuiltins\ngetattr\ncmine\nOuter\nX\x05\x00\x00\x00Inner\x86R)\x81}X\x01\x00\x00\x00aK\x01sb."), nil)
	want := &value.Object{Module: "mine", Name: "Outer.Inner", Call: true, New: true, State: map[string]any{"a": int64(1)}}
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(any(want), got); d != "" {
		t.Errorf("Decode of an object of a class inside of a class: -want +got\n%s", d)
	}
}

func TestDictsInsideOfAttributesKeepTheirOrder(t *testing.T) {
	dict := "}(X\x01\x00\x00\x00bK\x01X\x01\x00\x00\x00aK\x02u" // {"b": 1, "a": 2}
	object := func(state string) string { return "cmine\nA\n)\x81" + state + "b" }
	attributes := func(v string) string { return "}(X\x01\x00\x00\x00xK\x00X\x01\x00\x00\x00d" + v + "u" }
	plain := map[string]any{"a": int64(2), "b": int64(1)}
	ordered := &value.Dict{Pairs: []value.Pair{{Key: "b", Value: int64(1)}, {Key: "a", Value: int64(2)}}}
	made := func(state any) any {
		return &value.Object{Module: "mine", Name: "A", Call: true, New: true, State: state}
	}
	for name, tc := range map[string]struct {
		pickle string
		want   any
	}{
		"outside of objects":        {dict, plain},
		"attributes":                {object(dict), made(plain)},
		"inside of attributes":      {object(attributes(dict)), made(map[string]any{"x": int64(0), "d": ordered})},
		"deeper":                    {object(attributes("]" + dict + "a")), made(map[string]any{"x": int64(0), "d": []any{ordered}})},
		"an object in an object":    {object(attributes(object(dict))), made(map[string]any{"x": int64(0), "d": made(plain)})},
		"attributes and slots":      {object(dict + dict + "\x86"), made(value.Tuple{plain, plain})},
		"after an object in a list": {"]" + "(" + object(attributes(dict)) + dict + "e", []any{made(map[string]any{"x": int64(0), "d": ordered}), plain}},
	} {
		got, err := pickle.Decode([]byte("\x80\x02"+tc.pickle+"."), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: -want +got\n%s", name, d)
		}
	}
}

func TestDecodeRefusesInvalidPickles(t *testing.T) {
	for _, c := range []struct {
		name, pickle string
		want         error
	}{
		{"nothing", "", pickle.ErrMalformed},
		{"no STOP", "\x80\x02N", pickle.ErrMalformed},
		{"an empty stack at STOP", "\x80\x02.", pickle.ErrMalformed},
		{"two values at STOP", "NN.", pickle.ErrMalformed},
		{"an open mark at STOP", "(N.", pickle.ErrMalformed},
		{"bytes after STOP", "N.N", pickle.ErrMalformed},
		{"an unknown opcode", "\xff.", pickle.ErrMalformed},
		{"protocol 6", "\x80\x06N.", pickle.ErrUnsupported},
		{"a frame beyond the end", "\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.", pickle.ErrMalformed},
		{"a string beyond the end", "X\xff\xff\xff\x7fa.", pickle.ErrMalformed},
		{"a string of 2^63 bytes", "\x8d\x00\x00\x00\x00\x00\x00\x00\x80a.", pickle.ErrMalformed},
		{"bytes beyond the end", "B\xff\xff\xff\xffa.", pickle.ErrMalformed},
		{"a bytearray of 2^64-1 bytes", "\x96\xff\xff\xff\xff\xff\xff\xff\xffa.", pickle.ErrMalformed},
		{"an integer beyond the end", "\x8b\xff\xff\xff\x7f\x00.", pickle.ErrMalformed},
		{"a string that is not UTF-8", "\x8c\x02\xff\xfe.", pickle.ErrMalformed},
		{"half a surrogate", "\x8c\x02\xed\xa0.", pickle.ErrMalformed},
		{"an empty memo entry", "h\x07.", pickle.ErrMalformed},
		{"a memo entry far away", "Nr\xff\xff\xff\x02.", pickle.ErrMalformed},
		{"the last memo entry", "Nr\xff\xff\xff\xff.", pickle.ErrMalformed},
		{"a memo entry as text", "Np99999999999\n.", pickle.ErrMalformed},
		{"a persistent id", "\x80\x02X\x01\x00\x00\x00aQ.", pickle.ErrPersistent},
		{"a persistent id as text", "Pa\n.", pickle.ErrPersistent},
		{"an extension code", "\x80\x02\x82\x01.", pickle.ErrUnsupported},
		{"a long extension code", "\x80\x02\x84\x01\x00\x00\x00.", pickle.ErrUnsupported},
		{"an out-of-band buffer", "\x80\x05\x97.", pickle.ErrUnsupported},
		{"a call of a string", "X\x01\x00\x00\x00a)R.", pickle.ErrUnsupported},
		{"a call of a call's result", "cm\nf\n)R)R.", pickle.ErrUnsupported},
		{"a call without a tuple", "cm\nf\nNR.", pickle.ErrMalformed},
		{"named arguments that are not a dict", "\x8c\x01m\x8c\x01C\x93)N\x92.", pickle.ErrMalformed},
		{"named arguments without names", "\x8c\x01m\x8c\x01C\x93)}K\x01K\x01s\x92.", pickle.ErrMalformed},
		{"a name of numbers", "K\x01K\x02\x93.", pickle.ErrMalformed},
		{"a state for a list", "]}b.", pickle.ErrMalformed},
		{"two states", "cm\nC\n)\x81}b}b.", pickle.ErrUnsupported},
		{"an append to a dict", "}Na.", pickle.ErrMalformed},
		{"an item of a list", "]NNs.", pickle.ErrMalformed},
		{"an addition to a list", "](N\x90.", pickle.ErrMalformed},
		{"an addition to a frozenset", "(\x91(N\x90.", pickle.ErrMalformed},
		{"a key without a value", "}(Nu.", pickle.ErrMalformed},
		{"a key without a value in a new dict", "(Nd.", pickle.ErrMalformed},
		{"a value from below the mark", "N(a.", pickle.ErrMalformed},
		{"a list as a key", "}]Ns.", pickle.ErrMalformed},
		{"a dict in a set", "\x8f(}\x90.", pickle.ErrMalformed},
		{"no number", "I1x\n.", pickle.ErrMalformed},
		{"no float", "Fabc\n.", pickle.ErrMalformed},
		{"no end of line", "I1", pickle.ErrMalformed},
		{"no string", "S'abc\n.", pickle.ErrMalformed},
		{"a list in itself", "]q\x00h\x00a.", pickle.ErrCycle},
		{"a dict in itself", "}q\x00Nh\x00s.", pickle.ErrCycle},
		{"a tuple in its own list", "]q\x00h\x00\x85a.", pickle.ErrCycle},
		{"an object in its state", "cm\nC\n)\x81q\x00h\x00b.", pickle.ErrCycle},
	} {
		t.Run(c.name, func(t *testing.T) {
			if v, err := pickle.Decode([]byte(c.pickle), nil); !errors.Is(err, c.want) {
				t.Errorf("Decode = %v, %v; want %v", v, err, c.want)
			}
		})
	}
}

// every prefix of a pickle ends too early, and none panics
func TestDecodeRefusesTruncatedPickles(t *testing.T) {
	for _, s := range samples(t) {
		b := s.bytes(t)
		if len(b) > 500 {
			continue
		}
		for n := range len(b) {
			if _, err := pickle.Decode(b[:n], nil); !errors.Is(err, pickle.ErrMalformed) {
				t.Fatalf("%s-%d cut to %d bytes: %v; want ErrMalformed", s.Name, s.Protocol, n, err)
			}
		}
	}
}

func TestDepthIsBounded(t *testing.T) {
	deep := func(n int) []byte {
		return []byte(strings.Repeat("]", n) + strings.Repeat("a", n-1) + ".")
	}
	if _, err := pickle.Decode(deep(1000), nil); err != nil {
		t.Errorf("1000 lists in each other: %v", err)
	}
	for _, n := range []int{1001, 1 << 20} {
		if _, err := pickle.Decode(deep(n), nil); !errors.Is(err, pickle.ErrLimit) {
			t.Errorf("%d lists in each other: %v; want ErrLimit", n, err)
		}
	}
	if _, err := pickle.Decode(deep(4), &pickle.DecodeOptions{Limits: &pickle.Limits{Depth: 3}}); !errors.Is(err, pickle.ErrLimit) {
		t.Errorf("4 lists of at most 3: %v; want ErrLimit", err)
	}
}

// laughs is a tuple of two of a tuple of two of … a string.
func laughs(n int) []byte {
	var b bytes.Buffer
	b.WriteString("\x80\x04\x8c\x03lol\x94")
	for i := range n {
		fmt.Fprintf(&b, "0h%ch%c\x86\x94", i, i)
	}
	b.WriteString(".")
	return b.Bytes()
}

func TestDecodeRefusesExcessiveSharing(t *testing.T) {
	if _, err := pickle.Decode(laughs(10), nil); err != nil {
		t.Errorf("1024 laughs: %v", err)
	}
	if _, err := pickle.Decode(laughs(100), nil); !errors.Is(err, pickle.ErrLimit) {
		t.Errorf("2^100 laughs: %v; want ErrLimit", err)
	}
	// As the key of a dict they would have to be compared.
	key := append([]byte("}"), laughs(30)[2:]...)
	key = append(key[:len(key)-1], "Ns."...)
	if _, err := pickle.Decode(key, nil); !errors.Is(err, pickle.ErrLimit) {
		t.Errorf("2^30 laughs as a key: %v; want ErrLimit", err)
	}
}

func TestCountsAreBounded(t *testing.T) {
	many := []byte("(" + strings.Repeat("]", 100) + "t.")
	for _, c := range []struct {
		name   string
		pickle []byte
		limits pickle.Limits
	}{
		{"memory", many, pickle.Limits{Memory: 3000}},
		{"bytes", many, pickle.Limits{Bytes: 1000}},
		{"an integer", append([]byte("\x8b\x01\x10\x00\x00"), append(make([]byte, 4097), '.')...), pickle.Limits{}},
	} {
		if _, err := pickle.Decode(c.pickle, &pickle.DecodeOptions{Limits: &c.limits}); !errors.Is(err, pickle.ErrLimit) {
			t.Errorf("%s: %v; want ErrLimit", c.name, err)
		}
	}
	if _, err := pickle.Decode(many, nil); err != nil {
		t.Errorf("without limits of its own: %v", err)
	}
}

func TestDuplicateKeys(t *testing.T) {
	got := must.Get(pickle.Decode([]byte("}(K\x01K\x0aK\x02K\x0bG\x3f\xf0\x00\x00\x00\x00\x00\x00K\x0c\x88K\x0du."), nil))(t)
	want := &value.Dict{Pairs: []value.Pair{{Key: int64(1), Value: int64(13)}, {Key: int64(2), Value: int64(11)}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("1, 2, 1.0 and True as keys (-want +got):\n%s", diff)
	}
}
