package torchsave

import (
	"archive/zip"
	"bytes"
	"errors"
	"io"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

func TestDTypeRoundTrip(t *testing.T) {
	want := map[string]any{}
	for i, d := range tensor.DTypes() {
		x := must.Get(tensor.New(d, []int64{2, 3}))(t)
		p, _ := x.Bytes()
		for j := range p {
			p[j] = byte(i+j) & 1
		}
		want[d.String()] = x
	}
	b, err := Marshal(want)
	if err != nil {
		t.Fatalf("Marshal = %v", err)
	}
	if diff := cmp.Diff(any(want), unmarshal(t, b), sameTensor); diff != "" {
		t.Errorf("written and read (-want +got):\n%s", diff)
	}
}

func TestValueRoundTrip(t *testing.T) {
	x := of[float32](t, []int64{2}, 1, 2)
	want := map[string]any{
		"none": nil, "bool": true, "int": int64(-7), "big": new(big.Int).Lsh(big.NewInt(1), 90), "float": 0.5, "text": "ä☃", "bytes": []byte{0, 255},
		"list": []any{int64(1), x}, "tuple": value.Tuple{x, "y"}, "scalar": of[int16](t, nil, 3), "empty": of[int16](t, []int64{0, 2}),
		"dict":  &value.Dict{Ordered: true, Pairs: []value.Pair{{Key: int64(1), Value: "a"}, {Key: "b", Value: x}}},
		"dtype": &value.Object{Module: "torch", Name: "bfloat16"},
	}
	b, err := Marshal(want)
	if err != nil {
		t.Fatalf("Marshal = %v", err)
	}
	same := cmp.Comparer(func(a, b *big.Int) bool { return a.Cmp(b) == 0 })
	if diff := cmp.Diff(any(want), unmarshal(t, b), sameTensor, same); diff != "" {
		t.Errorf("written and read (-want +got):\n%s", diff)
	}
}

func TestSharedTensorsAreWrittenOnce(t *testing.T) {
	x, s := of[float32](t, []int64{2}, 1, 2), &Slot{DType: tensor.Int8, Shape: []int64{3}}
	v := newVirtual(t, lay(t, []any{x, s, x, value.Tuple{s}}))
	f := must.Get(Open(t.Context(), v.read, v.size))(t)
	l := f.Root.([]any)
	if l[0] != l[2] || l[1] != l[3].(value.Tuple)[0] || l[0] == l[1] {
		t.Errorf("root = %v; want two tensors, each at two places", l)
	}
	m, err := Materialise(t.Context(), f.Root, v.read, 100)
	if l := m.([]any); err != nil || l[0] != l[2] || l[1] != l[3].(value.Tuple)[0] {
		t.Errorf("Materialise = %v, %v; want two tensors, each at two places", l, err)
	}
}

func TestParameterRoundTrip(t *testing.T) {
	s := &Slot{DType: tensor.Float8E5M2, Shape: []int64{4}, Parameter: true, RequiresGrad: true}
	v := newVirtual(t, lay(t, s))
	f := must.Get(Open(t.Context(), v.read, v.size))(t)
	if x := f.Root.(*Tensor); !x.Parameter || !x.RequiresGrad || x.DType != s.DType {
		t.Errorf("root = %+v; want a parameter", x)
	}
}

// fill writes a layout and fills its slots by fn, in pieces.
func fill(t testing.TB, l *Layout, fn func(i int64) byte) []byte {
	t.Helper()
	var out []byte
	for _, p := range l.Parts {
		b := p.Literal
		if p.Tail != nil {
			b, _ = p.Tail()
		}
		if p.Slot != nil {
			b = make([]byte, p.Length)
			for i := range b {
				b[i] = fn(int64(i))
			}
			for at := 0; at < len(b); at += 7 {
				p.Pass(b[at:min(at+7, len(b))], int64(at))
			}
		}
		out = append(out, b...)
	}
	return out
}

// A layout may be written again, with other content: checksums begin anew.
func TestForeignReadersReadHeaders(t *testing.T) {
	l := lay(t, map[string]any{"a": &Slot{DType: tensor.Uint8, Shape: []int64{1000}}, "b": &Slot{DType: tensor.Uint8, Shape: []int64{0}}, "c": int64(1)})
	for _, seed := range []int64{1, 2} {
		b := fill(t, l, func(i int64) byte { return byte(i * seed) })
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatalf("archive/zip: %v", err)
		}
		for _, r := range z.File {
			at, err := r.DataOffset()
			if err != nil || at%alignment != 0 {
				t.Errorf("%s is at %d, %v; want it aligned", r.Name, at, err)
			}
			rc, err := r.Open()
			if err != nil {
				t.Fatalf("%s: %v", r.Name, err)
			}
			if _, err := io.Copy(io.Discard, rc); err != nil { // which compares the checksum
				t.Errorf("%s: %v", r.Name, err)
			}
		}
		f := must.Get(Open(t.Context(), reader(b), int64(len(b))))(t)
		err = f.Check(t.Context(), reader(b), func(key string, err error) { t.Errorf("Check: %q: %v", key, err) })
		if err != nil || f.Unsummed != 0 {
			t.Errorf("Check = %v, and %d bytes have no checksum", err, f.Unsummed)
		}
	}
}

func TestLayRefusesUnsupportedValues(t *testing.T) {
	evil := &value.Object{Module: "os", Name: "system", Call: true, Args: value.Tuple{"true"}}
	for name, v := range map[string]any{
		"a call of an unknown function": []any{evil}, "a tensor without a type": &Slot{Shape: []int64{1}},
		"a tensor beyond all sizes": &Slot{DType: tensor.Int8, Shape: []int64{1 << 62, 1 << 62}}, "a channel": make(chan int),
	} {
		if _, err := Lay(v); !errors.Is(err, ErrValue) {
			t.Errorf("Lay of %s = %v; want %v", name, err, ErrValue)
		}
		if err := CheckValue(v); !errors.Is(err, ErrValue) {
			t.Errorf("CheckValue of %s = %v; want %v", name, err, ErrValue)
		}
	}
	if _, err := Marshal(&Slot{DType: tensor.Int8}); !errors.Is(err, ErrValue) {
		t.Errorf("Marshal of a slot = %v; want %v", err, ErrValue)
	}
}

// An object that was read as a call of PyTorch's rebuild function, because it is no tensor
// here, is not written as one: its storage would not be in the file.
func TestLayRefusesTensorsOfUnknownTypes(t *testing.T) {
	x := of[uint8](t, []int64{8}, 1, 2, 3, 4, 5, 6, 7, 8)
	rebuild := func(name string, args ...any) *value.Object {
		return &value.Object{Module: "torch._utils", Name: name, Call: true, Args: args}
	}
	raw := &value.Object{Module: "torch.storage", Name: "UntypedStorage", Call: true, Args: value.Tuple{x}}
	shape := value.Tuple{int64(8)}
	small := rebuild("_rebuild_tensor_v3", raw, int64(0), shape, value.Tuple{int64(1)}, false, hooks(), thing("torch", "float4_e2m1fn_x2"))
	for name, c := range map[string]struct {
		v    any
		want string
	}{
		"a type":                   {small, "a tensor of a type that is not known here, torch.float4_e2m1fn_x2"},
		"a parameter of a type":    {[]any{rebuild("_rebuild_parameter", small, true, hooks())}, "torch.float4_e2m1fn_x2"},
		"a kind of a known type":   {rebuild("_rebuild_tensor_v2", x, int64(0), shape, shape, false, hooks(), map[string]any{"new": true}), "a kind that is not known"},
		"a storage":                {map[string]any{"s": raw}, "the storage torch.storage.UntypedStorage"},
		"a storage with a type":    {&value.Object{Module: "torch", Name: "FloatStorage", Call: true, Args: value.Tuple{x}}, "torch.FloatStorage"},
		"one that follows a plain": {[]any{x, raw}, "torch.storage.UntypedStorage"},
	} {
		if err := CheckValue(c.v); !errors.Is(err, ErrValue) || !errors.Is(err, pickle.ErrUnknownClass) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("CheckValue of %s = %v; want %v with %q", name, err, ErrValue, c.want)
		}
	}
	if err := CheckValue(thing("torch", "FloatStorage")); err != nil {
		t.Errorf("CheckValue of a class = %v", err)
	}
}

// Whatever tensors a value holds, in whatever section of a file: it comes back.
func TestTensorRoundTripProperty(t *testing.T) {
	deep.Check(t, func(rt *rapid.T) {
		want := []any{}
		for range rapid.IntRange(0, 5).Draw(rt, "tensors") {
			d := rapid.SampledFrom(tensor.DTypes()).Draw(rt, "dtype")
			x := must.Get(tensor.New(d, rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 4).Draw(rt, "shape")))(rt)
			p, _ := x.Bytes()
			for i := range p {
				p[i] = byte(i) & 1
			}
			want = append(want, x, value.Tuple{rapid.String().Draw(rt, "text")})
		}
		b := must.Get(Marshal(want))(rt)
		before := rapid.IntRange(0, 100).Draw(rt, "before")
		file := append(append(make([]byte, before), b...), "what follows"...)
		got := must.Get(readAll(t.Context(), reader(file[before:before+len(b)]), int64(len(b)), 1<<20))(rt)
		if diff := cmp.Diff(want, got, sameTensor); diff != "" {
			rt.Fatalf("(-want +got):\n%s", diff)
		}
	})
}
