package pickle_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

func le32(n int) string { return string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }

// each returns n repetitions of a format with the number of the repetition, in
// four bytes.
func each(n int, format string) string {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintf(&b, format, le32(i))
	}
	return b.String()
}

// grown returns pickles of n things of each kind: containers, names, calls, and objects in
// other forms.
func grown(n int) map[string]string {
	rep := strings.Repeat
	listed := func(one string) string { return "](" + rep(one, n) + "e." }
	after := func(first, one string) string { return "](" + first + "\x940" + rep(one, n) + "e." }
	long := "X" + le32(n) + rep("a", n)
	return map[string]string{
		"nested lists":            rep("]", n) + rep("a", n-1) + ".",
		"nested dicts":            rep("}N", n) + "N" + rep("s", n) + ".",
		"nested tuples":           ")" + rep("\x85", n) + ".",
		"nested marks":            rep("(", n) + rep("t", n) + ".",
		"nested persistent ids":   "N" + rep("Q", n) + ".",
		"empty lists":             listed("]"),
		"empty dicts":             listed("}"),
		"empty sets":              listed("\x8f"),
		"frozensets":              listed("(\x91"),
		"lists of one":            listed("]Na"),
		"dicts of one":            after("\x8c\x01a", "}h\x00Ns"),
		"dicts of one integer":    listed("}K\x01Ns"),
		"sets of one":             listed("\x8f(N\x90"),
		"tuples of one":           listed("N\x85"),
		"tuples of integers":      listed("K\x01\x85"),
		"nones":                   listed("N"),
		"copies":                  "](N" + rep("2", n) + "e.",
		"strings":                 listed("\x8c\x01a"),
		"strings as lines":        listed("Va\n"),
		"bytes":                   listed("C\x01a"),
		"bytearrays":              listed("\x96\x00\x00\x00\x00\x00\x00\x00\x00"),
		"floats":                  listed("F1\n"),
		"big integers":            listed("\x8a\x08\x01\x02\x03\x04\x05\x06\x07\x08"),
		"one big integer":         after("\x8b\x00\x10\x00\x00"+rep("a", 4096), "h\x00"),
		"names":                   listed("cm\nC\n"),
		"names on the stack":      "](\x8c\x01m\x94\x8c\x01C\x9400" + rep("h\x00h\x01\x93", n) + "e.",
		"instances":               listed("(im\nC\n"),
		"calls":                   after("cm\nC\n", "h\x00)R"),
		"states":                  after("cm\nC\n", "h\x00)\x81}b"),
		"persistent ids":          listed("Pa\n"),
		"one list again":          after("]", "h\x00"),
		"one key again":           "}(\x8c\x01a\x94N" + rep("h\x00N", n) + "u.",
		"one item at a time":      "]" + rep("Na", n) + ".",
		"a set":                   "\x8f(" + each(n, "J%s") + "\x90.",
		"a dict of integers":      "}(" + each(n, "J%sN") + "u.",
		"a dict item by item":     "}" + each(n, "J%sNs") + ".",
		"an OrderedDict":          "ccollections\nOrderedDict\n)R" + each(n, "J%sNs") + ".",
		"an OrderedDict of lists": "ccollections\nOrderedDict\n](" + each(n, "](J%sNe") + "e\x85R.",
		"a deque":                 "ccollections\ndeque\n)R" + rep("Na", n) + ".",
		"a set of a list":         "cbuiltins\nset\n](" + each(n, "J%s") + "e\x85R.",
		"a path of parts":         "cpathlib\nPosixPath\n(" + rep("\x8c\x01a", n) + "tR.",
		"a path of absolute ones": "cpathlib\nPosixPath\n(" + rep("\x8c\x02/a", n) + "tR.",
		"a path in one":           "cpathlib\nPosixPath\nX" + le32(2*n) + rep("a/", n) + "\x85R.",
		"bytes as text":           "c_codecs\nencode\n" + long + "\x8c\x06latin1\x86R.",
		"a long name":             "](" + long + "\x94h\x00\x93\x940" + rep("h\x01)R", n) + "e.",
	}
}

// The memory of decoding is at most a multiple of the size of the pickle, for every
// kind of content, also if the pickle is refused.
func TestMemoryAndWorkAreLinear(t *testing.T) {
	const floor, factor = 2 << 20, 128 // of all that is allocated, garbage too
	o := &pickle.DecodeOptions{Persistent: func(id any) (any, error) { return id, nil }}
	for _, n := range []int{200, 2_000, 20_000} {
		for name, p := range grown(n) {
			got, err := allocated(func() error { _, err := pickle.Decode([]byte(p), o); return err })
			if most := uint64(floor + factor*len(p)); got > most {
				t.Errorf("%d %s in %d bytes took %d bytes of memory; want at most %d", n, name, len(p), got, most)
			}
			if err != nil && !errors.Is(err, pickle.ErrLimit) {
				t.Errorf("%d %s: %v", n, name, err)
			}
		}
	}
}

func allocated(f func() error) (uint64, error) {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	err := f()
	runtime.ReadMemStats(&b)
	return b.TotalAlloc - a.TotalAlloc, err
}

// A pickle that would take more memory than a multiple of its size is refused.
func TestDecodeRefusesExponentialGrowth(t *testing.T) {
	const n, floor = 10_000, 4 << 20
	rep := strings.Repeat
	long := "X" + le32(n) + rep("a", n) + "\x94"
	for name, p := range map[string]string{
		"paths that share their parts": "](" + long + "0cpathlib\nPosixPath\n\x94(" + rep("h\x00", 100) + "t\x940" + rep("h\x01h\x02R", n) + "e.",
		"names of long words":          "](" + long + "0" + rep("h\x00h\x00\x93", n) + "e.",
		"sets of one list":             "](cbuiltins\nset\n\x940](" + each(n, "J%s") + "e\x85\x940" + rep("h\x00h\x01R", n) + "e.",
		"bytes of one text":            "](" + long + "0c_codecs\nencode\n\x940h\x00\x8c\x06latin1\x86\x940" + rep("h\x01h\x02R", n) + "e.",
		"keys that share a tuple":      "](" + "(" + rep("N", n) + "t\x940" + rep("}h\x00Ns", n) + "e.",
	} {
		o := &pickle.DecodeOptions{Limits: &pickle.Limits{Memory: floor + 40*int64(len(p))}}
		got, err := allocated(func() error { _, err := pickle.Decode([]byte(p), o); return err })
		if !errors.Is(err, pickle.ErrLimit) {
			t.Errorf("%s: %v; want ErrLimit", name, err)
		}
		if most := uint64(4*floor + 128*len(p)); got > most {
			t.Errorf("%s in %d bytes took %d bytes of memory; want at most %d", name, len(p), got, most)
		}
	}
}

// Many records may have the same state, which is charged each time.
func TestSharedStatesAreCharged(t *testing.T) {
	const n = 20_000
	for name, state := range map[string]string{
		"a dict":  "}(" + strings.Repeat("\x8c\x01aN", n) + "u",
		"a tuple": "(" + strings.Repeat("N", n) + "t",
	} {
		p := state + "\x940cm\nC\n)\x81" + strings.Repeat("h\x00b", n) + "."
		class := []pickle.Class{{Names: []string{"m.C"}, Fields: []string{"a"}, Open: true}}
		_, _, err := pickle.Parse([]byte(p), class, &pickle.Limits{Memory: 1<<20 + 40*int64(len(p))})
		if !errors.Is(err, pickle.ErrLimit) {
			t.Errorf("%s: %v; want ErrLimit", name, err)
		}
	}
}

// Decoding stops when its context ends, also between two values.
func TestDecodeStopsWithContext(t *testing.T) {
	lists := []byte("](" + strings.Repeat("]", 200_000) + "e.")
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	if _, err := pickle.Decode(lists, &pickle.DecodeOptions{Limits: &pickle.Limits{Context: ctx}}); !errors.Is(err, enough) {
		t.Errorf("Decode with a context that is done = %v; want %v", err, enough)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	o := &pickle.DecodeOptions{
		Limits:     &pickle.Limits{Context: ctx},
		Persistent: func(id any) (any, error) { cancel(enough); return id, nil },
	}
	if _, err := pickle.Decode(append([]byte("(NQ"), append(lists[:len(lists)-1], "t."...)...), o); !errors.Is(err, enough) {
		t.Errorf("Decode whose context ends meanwhile = %v; want %v", err, enough)
	}
}

func TestPathsAreJoinedLikePython(t *testing.T) {
	for want, parts := range map[string][]string{
		".": {}, "a": {"", "a"}, "/a": {"/", "a"}, "//a": {"//", "a"}, "/b/c": {"a", "/b", "c"}, "a/b": {"a", "", "b"},
		"a/../b": {"a/./..", ".", "b/"}, "/x": {"///", "x"}, "/": {"b", "/"}, "//": {"//"}, "p/q": {"p/", "q"},
	} {
		p := "cpathlib\nPosixPath\n("
		for _, s := range parts {
			p += "\x8c" + string(rune(len(s))) + s
		}
		got := must.Get(pickle.Decode([]byte(p+"tR."), nil))(t)
		if diff := cmp.Diff(&value.Object{Module: "pathlib", Name: "PosixPath", Call: true, Args: value.Tuple{want}}, got); diff != "" {
			t.Errorf("PosixPath(%q) (-want +got):\n%s", parts, diff)
		}
	}
}

// Numbers are one key if Python considers them equal, whatever type they have.
func TestEqualNumbersAreEqualKeys(t *testing.T) {
	const f60, f64 = "G\x43\xb0\x00\x00\x00\x00\x00\x00", "G\x43\xf0\x00\x00\x00\x00\x00\x00" // 2.0**60, 2.0**64
	for name, c := range map[string]struct {
		keys string
		want int
	}{
		"2**60":        {f60 + "N\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x10N", 1},
		"2**64":        {f64 + "N\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01N", 1},
		"zeros":        {"K\x00N\x89NG\x00\x00\x00\x00\x00\x00\x00\x00NG\x80\x00\x00\x00\x00\x00\x00\x00N", 1},
		"one and text": {"K\x01N\x8c\x011N", 2},
		"NaNs":         {strings.Repeat("G\x7f\xf8\x00\x00\x00\x00\x00\x00N", 2), 2},
		"None":         {"NNNN", 1},
		"tuples":       {"K\x01\x85NG\x3f\xf0\x00\x00\x00\x00\x00\x00\x85N", 1},
	} {
		v, err := pickle.Decode([]byte("}("+c.keys+"u."), nil)
		if d, ok := v.(*value.Dict); err != nil || !ok || len(d.Pairs) != c.want {
			t.Errorf("%s: %v, %v; want %d keys", name, v, err, c.want)
		}
	}
}
