package inspect_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// selected returns the elements of an index, read by Stream, as text.
func selected(t testing.TB, x *tensor.Tensor, index string) (shape []int64, text string) {
	t.Helper()
	s, err := inspect.ParseSelection(index, x.Shape())
	if err != nil {
		t.Fatal(err)
	}
	m := holding(map[string]*tensor.Tensor{"x": x})
	var all []byte
	md := m.metadata()
	err = s.Stream(t.Context(), m, &md.Entries[0], x.DType(), func(p []byte) error { all = append(all, p...); return nil })
	if err != nil {
		t.Fatal(err)
	}
	got, err := tensor.FromBytes(x.DType(), s.Shape(), all)
	if err != nil {
		t.Fatal(err)
	}
	return s.Shape(), texts(got)
}

// NumPy returns the same for numpy.arange(12).reshape(3, 4).
func TestSelections(t *testing.T) {
	v := make([]int32, 12)
	for i := range v {
		v[i] = int32(i)
	}
	x := of(t, v, 3, 4)
	for _, c := range []struct {
		index, shape, want string
	}{
		{":", "[3 4]", "0 1 2 3 4 5 6 7 8 9 10 11"},
		{"...", "[3 4]", "0 1 2 3 4 5 6 7 8 9 10 11"},
		{"[1]", "[4]", "4 5 6 7"},
		{"1,", "[4]", "4 5 6 7"},
		{"-1", "[4]", "8 9 10 11"},
		{"1, 2", "[]", "6"},
		{"-1, -1", "[]", "11"},
		{"0:2, ::2", "[2 2]", "0 2 4 6"},
		{"::-1, 0", "[3]", "8 4 0"},
		{":, ::-1", "[3 4]", "3 2 1 0 7 6 5 4 11 10 9 8"},
		{"::-2, ::-3", "[2 2]", "11 8 3 0"},
		{"..., 1", "[3]", "1 5 9"},
		{"1, ...", "[4]", "4 5 6 7"},
		{"1, ..., 1", "[]", "5"},
		{"1:1", "[0 4]", ""},
		{"2:1", "[0 4]", ""},
		{"5:9", "[0 4]", ""},
		{"1:99", "[2 4]", "4 5 6 7 8 9 10 11"},
		{"-99:1", "[1 4]", "0 1 2 3"},
		{"99::-1", "[3 4]", "8 9 10 11 4 5 6 7 0 1 2 3"},
		{"0, 3:0:-2", "[2]", "3 1"},
		{"0, -1:-5:-1", "[4]", "3 2 1 0"},
		{"0, 2:-99:-1", "[3]", "2 1 0"},
		{" 0 , 1 : 3 ", "[2]", "1 2"},
		{"0, 99999999999999999999:", "[0]", ""},
		{"0, ::-99999999999999999999", "[1]", "3"},
		{"0, ::9223372036854775807", "[1]", "0"},
	} {
		shape, got := selected(t, x, c.index)
		if fmt.Sprint(shape) != c.shape || got != c.want {
			t.Errorf("[%s] = %v: %s; want %s: %s", c.index, shape, got, c.shape, c.want)
		}
	}
	if _, got := selected(t, of(t, []int8{7}, []int64{}...), "..."); got != "7" {
		t.Errorf("[...] of a scalar = %s; want 7", got)
	}
}

func TestParseSelectionErrors(t *testing.T) {
	for index, want := range map[string]string{
		"":           "an index is empty",
		"1,,2":       "an index is empty",
		"3":          "3 is out of range for 3",
		"-4":         "-4 is out of range for 3",
		"0, 0, 0":    "3 indexes for 2 dimensions",
		"..., ...":   "two ellipses",
		"::0":        "a step is zero",
		"1:2:3:4":    "too many colons",
		"x":          `"x" is neither a number nor a slice`,
		"None":       `"None" is neither a number nor a slice`,
		"0x1":        "neither a number",
		"1:b":        "neither a number",
		"a:1":        "neither a number",
		"::c":        "neither a number",
		"9999999999": "out of range",
	} {
		_, err := inspect.ParseSelection(index, []int64{3, 4})
		if !errors.Is(err, inspect.ErrIndex) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSelection(%q) = %v; want ErrIndex: %s", index, err, want)
		}
	}
	if _, err := inspect.ParseSelection("0", []int64{0}); !errors.Is(err, inspect.ErrIndex) {
		t.Errorf("ParseSelection of nothing = %v; want ErrIndex", err)
	}
}

// drawPick draws a slice, and the indexes that it selects of n in Python.
func drawPick(rt *rapid.T, n int64) (text string, want []int64) {
	var start, stop *int64
	bound := rapid.Ptr(rapid.Int64Range(-n-2, n+2), true)
	start, stop = bound.Draw(rt, "start"), bound.Draw(rt, "stop")
	step := rapid.Int64Range(1, 4).Draw(rt, "step")
	if rapid.Bool().Draw(rt, "backwards") {
		step = -step
	}
	show := func(p *int64) string {
		if p == nil {
			return ""
		}
		return fmt.Sprint(*p)
	}
	inside := func(i int64) bool { return i >= 0 && i < n }
	at := func(p *int64, otherwise int64) int64 {
		if p == nil {
			return otherwise
		}
		if *p < 0 {
			return max(*p+n, -1)
		}
		return *p
	}
	first, last := int64(0), int64(math.MaxInt64)
	if step < 0 {
		first, last = n-1, -1
	}
	i, end := at(start, first), at(stop, last)
	if step > 0 {
		i = max(i, 0)
	} else {
		i = min(i, n-1)
	}
	for ; inside(i) && (step > 0 && i < end || step < 0 && i > end); i += step {
		want = append(want, i)
	}
	return fmt.Sprintf("%s:%s:%d", show(start), show(stop), step), want
}

func TestSelectionsMatchPython(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		rows, cols := rapid.Int64Range(1, 9).Draw(rt, "rows"), rapid.Int64Range(1, 9).Draw(rt, "cols")
		v := make([]int32, rows*cols)
		for i := range v {
			v[i] = int32(i)
		}
		a, is := drawPick(rt, rows)
		b, js := drawPick(rt, cols)
		want := []string{}
		for _, i := range is {
			for _, j := range js {
				want = append(want, fmt.Sprint(i*cols+j))
			}
		}
		shape, got := selected(t, of(t, v, rows, cols), a+","+b)
		if d := cmp.Diff(strings.Join(want, " "), got); d != "" || shape[0] != int64(len(is)) || shape[1] != int64(len(js)) {
			rt.Errorf("[%s, %s] of %dx%d has shape %v: -want +got\n%s", a, b, rows, cols, shape, d)
		}
	})
}

// Large gaps between selected elements are not read.
func TestSelectionsSkipGaps(t *testing.T) {
	const rows, cols = 8, 3 << 17 // 3 MiB each
	v := make([]int64, rows*cols)
	for i := range v {
		v[i] = int64(i)
	}
	m := holding(map[string]*tensor.Tensor{"x": of(t, v, rows, cols)})
	md := m.metadata()
	for _, c := range []struct {
		index           string
		most            int64 // elements
		first, step     int64 // in a row
		row, stride     int64
		perRow, perTurn int
	}{
		{"::7, 5", 2, 5, 0, 0, 7, 1, 2},
		{":, ::262144", 16, 0, 262144, 0, 1, 2, 8},
		{"0, :1000:3", 1000, 0, 3, 0, 0, 334, 1},
		{"::4, ::-1", 2 * cols, cols - 1, -1, 0, 4, cols, 2},
		{"::3, :131072:2", 3 << 17, 0, 2, 0, 3, 1 << 16, 3},
	} {
		m.read.Store(0)
		s := must.Get(inspect.ParseSelection(c.index, []int64{rows, cols}))(t)
		var got []byte
		must.Do(t, s.Stream(t.Context(), m, &md.Entries[0], tensor.Int64, func(p []byte) error { got = append(got, p...); return nil }))
		var want []int64
		for r := range c.perTurn {
			for i := range c.perRow {
				want = append(want, (c.row+int64(r)*c.stride)*cols+c.first+int64(i)*c.step)
			}
		}
		if n := m.read.Load(); n > 8*c.most {
			t.Errorf("[%s]: %d bytes read; want at most %d", c.index, n, 8*c.most)
		}
		if !bytes.Equal(got, of(t, want).Contents()) {
			t.Errorf("[%s]: wrong elements", c.index)
		}
	}
}

func TestSelectionsConvert(t *testing.T) {
	x := of(t, []float32{1.5, -2, 300}, 3)
	m := holding(map[string]*tensor.Tensor{"x": x})
	md := m.metadata()
	for index, want := range map[string][]byte{":": {1, 254, 127}, "::-2": {127, 1}} {
		s := must.Get(inspect.ParseSelection(index, x.Shape()))(t)
		var got []byte
		must.Do(t, s.Stream(t.Context(), m, &md.Entries[0], tensor.Int8, func(p []byte) error { got = append(got, p...); return nil }))
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("[%s]: -want +got\n%s", index, d)
		}
	}
	stop := errors.New("enough")
	if err := inspect.SelectAll(x.Shape()).Stream(t.Context(), m, &md.Entries[0], tensor.Int8, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Stream = %v; want what the function said", err)
	}
	if err := inspect.SelectAll(x.Shape()).Stream(t.Context(), odd{}, &md.Entries[0], tensor.Int8, nil); err == nil {
		t.Error("Stream of what cannot be read = nil")
	}
}

func FuzzParseSelection(f *testing.F) {
	for _, s := range []string{"0:4, ::2, 3", "...", "-1", "[::-1]", "1,,", ":::", "9999999999999999999999:", "…,0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		shape := []int64{3, 0, math.MaxInt64 / 2}
		s, err := inspect.ParseSelection(text, shape)
		if err != nil {
			if !errors.Is(err, inspect.ErrIndex) {
				t.Errorf("ParseSelection(%q) = %v; want ErrIndex", text, err)
			}
			return
		}
		for d, n := range s.Sizes() {
			if n < 0 || n > shape[d] {
				t.Errorf("ParseSelection(%q) has size %d in %d", text, n, shape[d])
			}
		}
	})
}
