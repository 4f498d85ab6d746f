package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// decodeFile decodes the header of a file that is held in memory.
func decodeFile(file []byte) (*Header, error) {
	return Decode(func(p []byte, off int64) error {
		if off < 0 || off+int64(len(p)) > int64(len(file)) {
			return io.ErrUnexpectedEOF
		}
		copy(p, file[off:])
		return nil
	}, int64(len(file)))
}

// fileOf returns a file of the given header text and size of data.
func fileOf(text string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return append(append(b, text...), make([]byte, data)...)
}

// sample has a tensor of each kind that is special somewhere.
func sample() *Header {
	return &Header{
		Metadata: map[string]string{"format": "pt", "quote\"d": "line\nbreak \u2028 \\ é"},
		Entries: []Entry{
			{Name: "empty", DType: "F32", Shape: []int64{0, 7}},
			{Name: "w", DType: "BF16", Shape: []int64{2, 3}, Begin: 0, End: 12},
			{Name: "", DType: "U8", Shape: []int64{3}, Begin: 12, End: 15},
			{Name: "naïve \"x\" \\ \x01 \U0001f600", DType: "I64", Shape: []int64{}, Begin: 15, End: 23},
		},
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	for _, align := range []int64{1, 8, 4096, 1 << 20} {
		want := sample()
		b, err := Encode(want, align)
		if err != nil {
			t.Fatalf("Encode(align %d) = %v; want nil", align, err)
		}
		if int64(len(b))%align != 0 {
			t.Errorf("Encode(align %d) = %d bytes; want a multiple", align, len(b))
		}
		want.Size = int64(len(b))
		got, err := decodeFile(append(b, make([]byte, 23)...))
		if err != nil {
			t.Fatalf("Decode(align %d) = %v; want nil", align, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Decode(Encode(h, %d)) (-want +got):\n%s", align, diff)
		}
	}
}

func TestHeaderTextIsJSON(t *testing.T) {
	b := must.Get(Encode(sample(), 64))(t)
	const want = `{"__metadata__":{"format":"pt","quote\"d":"line\u000abreak ` + "\u2028" + ` \\ é"},` +
		`"empty":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},` +
		`"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},` +
		`"":{"dtype":"U8","shape":[3],"data_offsets":[12,15]},` +
		`"naïve \"x\" \\ \u0001 😀":{"dtype":"I64","shape":[],"data_offsets":[15,23]}}`
	got := string(b[8:])
	if strings.TrimRight(got, " ") != want {
		t.Errorf("Encode = %s\nwant     %s", got, want)
	}
	if !json.Valid(b[8:]) {
		t.Error("the text is not valid JSON")
	}
}

func TestHeaderRoundTripProperty(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		h := &Header{Entries: drawEntries(t), Metadata: rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")}
		var data int64
		if n := len(h.Entries); n > 0 {
			data = h.Entries[n-1].End
		}
		b, err := Encode(h, rapid.Int64Range(1, 5000).Draw(t, "align"))
		if err != nil {
			t.Fatalf("Encode = %v; want nil", err)
		}
		h.Size = int64(len(b))
		got, err := decodeFile(append(b, make([]byte, data)...))
		if err != nil {
			t.Fatalf("Decode = %v; want nil", err)
		}
		byName := cmpopts.SortSlices(func(a, b Entry) bool { return a.Name < b.Name })
		if diff := cmp.Diff(h, got, byName, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("Decode(Encode(h)) (-want +got):\n%s", diff)
		}
	})
}

// drawEntries draws entries that tile their data.
func drawEntries(t *rapid.T) []Entry {
	names := rapid.SliceOfNDistinct(rapid.String().Filter(func(s string) bool { return s != metadataKey }), 0, 20, rapid.ID).Draw(t, "names")
	var out []Entry
	var at int64
	for _, name := range names {
		d := dtypes[rapid.IntRange(0, len(dtypes)-1).Draw(t, "dtype")]
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 4).Draw(t, "shape")
		n := must.Get(tensor.NumBytes(d.dtype, shape))(t)
		out = append(out, Entry{Name: name, DType: d.name, Shape: shape, Begin: at, End: at + n})
		at += n
	}
	return out
}

func TestDecodeForeignText(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		data int
		want Header
	}{
		"no tensors": {`{}`, 0, Header{}},
		"entries in any order of text and fields": {
			`{"b":{"data_offsets":[1,2],"shape":[1],"dtype":"I8"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 2,
			Header{Entries: []Entry{
				{Name: "a", DType: "U8", Shape: []int64{1}, Begin: 0, End: 1},
				{Name: "b", DType: "I8", Shape: []int64{1}, Begin: 1, End: 2},
			}},
		},
		"white space and escapes": {
			"{ \"\\u0061\\ud83d\\ude00\\/\\t\\\"\" :\t{\"dtype\" : \"BOOL\",\n\"shape\":[ ] , \"data_offsets\":[ 0 , 1 ]} }\r\n ", 1,
			Header{Entries: []Entry{{Name: "a😀/\t\"", DType: "BOOL", Shape: []int64{}, End: 1}}},
		},
		"empty metadata": {`{"__metadata__":{}}`, 0, Header{Metadata: map[string]string{}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodeFile(fileOf(tc.text, tc.data))
			if err != nil {
				t.Fatalf("Decode(%s) = %v; want nil", tc.text, err)
			}
			tc.want.Size = int64(8 + len(tc.text))
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("Decode(%s) (-want +got):\n%s", tc.text, diff)
			}
		})
	}
}

// abuse are texts that must be refused, with a part of the message.
var abuse = map[string]struct {
	text string
	data int
	want string
}{
	"empty text":                   {``, 0, "begin with {"},
	"leading space":                {` {}`, 0, "begin with {"},
	"array":                        {`[]`, 0, "begin with {"},
	"unclosed":                     {`{`, 0, `missing`},
	"text after the end":           {`{}{}`, 0, "after the end"},
	"zero byte after the end":      {"{}\x00", 0, "after the end"},
	"trailing comma":               {`{"__metadata__":{},}`, 0, "missing"},
	"not UTF-8":                    {"{\"\xff\":1}", 0, "UTF-8"},
	"control character":            {"{\"a\nb\":{}}", 0, "control character"},
	"control character escaped on": {"{\"\\u0061\nb\":{}}", 0, "control character"},
	"unknown escape":               {`{"\x":{}}`, 0, "unknown escape"},
	"half a pair":                  {`{"\ud800":{}}`, 0, "surrogate"},
	"half a pair and a letter":     {`{"\ud800\u0061":{}}`, 0, "surrogate"},
	"escape that is no number":     {`{"\u12g4":{}}`, 0, "not a number"},
	"escape cut short":             {`{"\u12`, 0, "inside an escape"},
	"string cut short":             {`{"abc`, 0, "inside a string"},
	"string cut inside an escape":  {`{"abc\`, 0, "inside a string"},
	"tensor twice":                 {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0, `key "a" twice`},
	"tensor twice by an escape":    {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0, `key "a" twice`},
	"metadata twice":               {`{"__metadata__":{},"__metadata__":{}}`, 0, "twice"},
	"metadata key twice":           {`{"__metadata__":{"a":"b","a":"c"}}`, 0, `"a" twice`},
	"metadata of a number":         {`{"__metadata__":{"a":1}}`, 0, "missing"},
	"metadata nested":              {`{"__metadata__":{"a":{"b":"c"}}}`, 0, "missing"},
	"metadata null":                {`{"__metadata__":null}`, 0, "missing"},
	"field twice":                  {`{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0, `"dtype" twice`},
	"unknown field":                {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}}`, 0, `unknown field "x"`},
	"no dtype":                     {`{"a":{"shape":[0],"data_offsets":[0,0]}}`, 0, "lacks"},
	"no shape":                     {`{"a":{"dtype":"U8","data_offsets":[0,0]}}`, 0, "lacks"},
	"no offsets":                   {`{"a":{"dtype":"U8","shape":[0]}}`, 0, "lacks"},
	"one offset":                   {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}}`, 0, "instead of 2"},
	"three offsets":                {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}}`, 0, "more than 2"},
	"unknown dtype":                {`{"a":{"dtype":"U9","shape":[0],"data_offsets":[0,0]}}`, 0, `"U9"`},
	"dtype below a byte":           {`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}`, 1, `"F4"`},
	"negative dimension":           {`{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}`, 0, "plain integer"},
	"fraction":                     {`{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}`, 1, "plain integer"},
	"exponent":                     {`{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}`, 1, "plain integer"},
	"leading zero":                 {`{"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}}`, 1, "plain integer"},
	"NaN":                          {`{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}`, 1, "plain integer"},
	"number as a string":           {`{"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}`, 1, "plain integer"},
	"number above 63 bits":         {`{"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}}`, 1, "63 bits"},
	"shape overflows":              {`{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0, "more elements"},
	"bytes overflow":               {`{"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}}`, 0, "more bytes"},
	"too many dimensions":          {`{"a":{"dtype":"U8","shape":[` + strings.Repeat("1,", 64) + `1],"data_offsets":[0,1]}}`, 1, "more than 64"},
	"deep nesting":                 {`{"a":{"dtype":"U8","shape":` + strings.Repeat("[", 100_000), 0, "plain integer"},
	"too few bytes":                {`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4, "8 bytes of F32"},
	"end before begin":             {`{"a":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}}`, 0, "data_offsets [1, 0]"},
	"hole":                         {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3, `"b" begins at byte 2`},
	"hole at the beginning":        {`{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2, `"a" begins at byte 1`},
	"overlap":                      {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3, `"b" begins at byte 1`},
	"data cut short":               {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 1, "the file has 1"},
	"data too long":                {`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 3, "the file has 3"},
}

func TestDecodeRefusesHostileHeaders(t *testing.T) {
	for name, tc := range abuse {
		t.Run(name, func(t *testing.T) {
			_, err := decodeFile(fileOf(tc.text, tc.data))
			if !errors.Is(err, ErrHeader) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Decode(%.80s) = %v; want ErrHeader with %q", tc.text, err, tc.want)
			}
		})
	}
}

func TestDecodeRefusesWrongLength(t *testing.T) {
	for name, file := range map[string][]byte{
		"no file":          nil,
		"seven bytes":      make([]byte, 7),
		"beyond the file":  append(binary.LittleEndian.AppendUint64(nil, 3), "{}"...),
		"above the limit":  binary.LittleEndian.AppendUint64(nil, MaxHeader+1),
		"above an integer": binary.LittleEndian.AppendUint64(nil, 1<<63),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := decodeFile(file); !errors.Is(err, ErrHeader) {
				t.Errorf("Decode = %v; want ErrHeader", err)
			}
		})
	}
	t.Run("allocates nothing for it", func(t *testing.T) {
		read := func(p []byte, _ int64) error { binary.LittleEndian.PutUint64(p, MaxHeader+1); return nil }
		if _, err := Decode(read, 1<<50); !errors.Is(err, ErrHeader) {
			t.Errorf("Decode = %v; want ErrHeader", err)
		}
	})
}

func TestDecodeReturnsReadErrors(t *testing.T) {
	for calls := range 2 {
		n := 0
		h := bytes.Repeat([]byte{' '}, 3*firstRead)
		binary.LittleEndian.PutUint64(h, uint64(len(h)-8))
		_, err := Decode(func(p []byte, off int64) error {
			if n++; n > calls {
				return io.ErrNoProgress
			}
			copy(p, h[off:])
			return nil
		}, int64(len(h)))
		if !errors.Is(err, io.ErrNoProgress) || errors.Is(err, ErrHeader) {
			t.Errorf("Decode with read %d failing = %v; want its error and not ErrHeader", calls, err)
		}
	}
}

func TestEncodeRefusesInvalidHeaders(t *testing.T) {
	u8 := func(name string, begin, end int64) Entry {
		return Entry{Name: name, DType: "U8", Shape: []int64{end - begin}, Begin: begin, End: end}
	}
	for name, h := range map[string]*Header{
		"name twice":         {Entries: []Entry{u8("a", 0, 1), u8("a", 1, 2)}},
		"reserved name":      {Entries: []Entry{u8(metadataKey, 0, 1)}},
		"name not UTF-8":     {Entries: []Entry{u8("\xff", 0, 1)}},
		"metadata not UTF-8": {Metadata: map[string]string{"a": "\xff"}},
		"hole":               {Entries: []Entry{u8("a", 1, 2)}},
		"out of order":       {Entries: []Entry{u8("b", 1, 2), u8("a", 0, 1)}},
		"unknown dtype":      {Entries: []Entry{{Name: "a", DType: "F4", Shape: []int64{0}}}},
		"negative dimension": {Entries: []Entry{{Name: "a", DType: "U8", Shape: []int64{-1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Encode(h, 8); !errors.Is(err, ErrHeader) {
				t.Errorf("Encode = %v; want ErrHeader", err)
			}
		})
	}
	for _, align := range []int64{0, -8, 1 << 62} {
		if _, err := Encode(sample(), align); !errors.Is(err, ErrHeader) {
			t.Errorf("Encode(align %d) = %v; want ErrHeader", align, err)
		}
	}
}

// A header has no checksum, so a changed byte may well give another valid one;
// but never a panic, another error or a header that contradicts the file.
func TestChangedBytesAreRefusedOrValid(t *testing.T) {
	b := must.Get(Encode(sample(), 8))(t)
	file := append(b, make([]byte, 23)...)
	for i := range len(b) {
		for bit := range 8 {
			mutant := bytes.Clone(file)
			mutant[i] ^= 1 << bit
			checkDecode(t, mutant)
		}
	}
	for n := range len(file) {
		if _, err := decodeFile(file[:n]); !errors.Is(err, ErrHeader) {
			t.Fatalf("Decode of the first %d bytes = %v; want ErrHeader", n, err)
		}
	}
}

// checkDecode fails unless file is refused with ErrHeader or has a header that
// encodes and decodes again.
func checkDecode(t testing.TB, file []byte) {
	h, err := decodeFile(file)
	if err != nil {
		if !errors.Is(err, ErrHeader) {
			t.Fatalf("Decode(%q) = %v; want ErrHeader", file, err)
		}
		return
	}
	b, err := Encode(h, 1)
	if err != nil {
		t.Fatalf("Encode(Decode(%q)) = %v; want nil", file, err)
	}
	again, err := decodeFile(append(b, file[h.Size:]...))
	if err != nil {
		t.Fatalf("Decode(Encode(Decode(%q))) = %v; want nil", file, err)
	}
	again.Size = h.Size
	if !reflect.DeepEqual(h, again) {
		t.Fatalf("Decode(Encode(h)) of %q (-want +got):\n%s", file, cmp.Diff(h, again))
	}
}

func FuzzDecodeHeader(f *testing.F) {
	b := must.Get(Encode(sample(), 8))(f)
	f.Add(append(b, make([]byte, 23)...))
	for _, tc := range abuse {
		if len(tc.text) < 1000 {
			f.Add(fileOf(tc.text, tc.data))
		}
	}
	f.Fuzz(func(t *testing.T, file []byte) { checkDecode(t, file) })
}

func TestDTypes(t *testing.T) {
	stock := map[tensor.DType]string{
		tensor.Float64: "F64", tensor.Float32: "F32", tensor.Float16: "F16", tensor.BFloat16: "BF16",
		tensor.Float8E4M3FN: "F8_E4M3", tensor.Float8E5M2: "F8_E5M2",
		tensor.Int64: "I64", tensor.Int32: "I32", tensor.Int16: "I16", tensor.Int8: "I8",
		tensor.Uint64: "U64", tensor.Uint32: "U32", tensor.Uint16: "U16", tensor.Uint8: "U8",
		tensor.Bool: "BOOL",
	}
	for _, d := range tensor.DTypes() {
		want, ok := stock[d]
		got, gotOK := StockName(d)
		if got != want || gotOK != ok {
			t.Errorf("StockName(%v) = %q, %v; want %q, %v", d, got, gotOK, want, ok)
		}
		name, ok := DTypeName(d)
		if back, _ := TensorDType(name); ok != (d != tensor.Complex128) || ok && back != d || gotOK && name != got {
			t.Errorf("DTypeName(%v) = %q, %v, whose type is %v", d, name, ok, back)
		}
	}
	for name, want := range map[string]tensor.DType{
		"F8_E8M0": tensor.Float8E8M0FNU, "F8_E4M3FNUZ": tensor.Float8E4M3FNUZ,
		"F8_E5M2FNUZ": tensor.Float8E5M2FNUZ, "C64": tensor.Complex64,
	} {
		if got, ok := TensorDType(name); got != want || !ok {
			t.Errorf("TensorDType(%q) = %v, %v; want %v", name, got, ok, want)
		}
	}
	for _, name := range []string{"", "f32", "F4", "F6_E2M3", "C128"} {
		if got, ok := TensorDType(name); ok {
			t.Errorf("TensorDType(%q) = %v, true; want false", name, got)
		}
	}
}

// many returns a header of n tensors as a large model has them.
func many(n int) *Header {
	h := &Header{Metadata: map[string]string{"format": "pt"}}
	for i := range int64(n) {
		h.Entries = append(h.Entries, Entry{
			Name: fmt.Sprintf("model.layers.%d.self_attn.q_proj.weight", i), DType: "BF16",
			Shape: []int64{4096, 4096}, Begin: i << 25, End: (i + 1) << 25,
		})
	}
	return h
}

func BenchmarkDecode(b *testing.B) {
	h := many(100_000)
	head := must.Get(Encode(h, 4096))(b)
	size := int64(len(head)) + h.Entries[len(h.Entries)-1].End
	read := func(p []byte, off int64) error {
		copy(p, head[min(off, int64(len(head))):])
		return nil
	}
	b.SetBytes(int64(len(head)))
	b.ReportAllocs()
	for b.Loop() {
		must.Get(Decode(read, size))(b)
	}
}

func BenchmarkEncode(b *testing.B) {
	h := many(100_000)
	b.ReportAllocs()
	for b.Loop() {
		must.Get(Encode(h, 4096))(b)
	}
}

// A header takes a small multiple of its text, however many tensors it has, and
// in whatever order they come.
func TestMemoryIsLinear(t *testing.T) {
	for _, n := range []int{100, 1000, 10_000, 100_000} {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, `,"%06x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
		}
		b := append(make([]byte, 8), "{"+text.String()[1:]+"}"...)
		binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h, err := Decode(func(p []byte, off int64) error { copy(p, b[off:]); return nil }, int64(len(b)))
		runtime.ReadMemStats(&after)
		if err != nil || len(h.Entries) != n {
			t.Fatal(err)
		}
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(256<<10+7*len(b)); got > most {
			t.Errorf("%d tensors in %d bytes took %d bytes of memory; want at most %d", n, len(b), got, most)
		}
	}
}
