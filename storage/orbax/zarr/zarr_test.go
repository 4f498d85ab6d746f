package zarr

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	orbax2 = `{"chunks":[2,5],"compressor":{"id":"zstd","level":1},"dimension_separator":".","dtype":"<f4","fill_value":null,"filters":null,"order":"C","shape":[16,5],"zarr_format":2}`
	orbax3 = `{"chunk_grid":{"configuration":{"chunk_shape":[4,80]},"name":"regular"},"chunk_key_encoding":{"name":"default"},"codecs":[{"configuration":{"chunk_shape":[2,80],"codecs":[{"configuration":{"endian":"little"},"name":"bytes"},{"configuration":{"checksum":false,"level":3},"name":"zstd"}],"index_codecs":[{"configuration":{"endian":"little"},"name":"bytes"},{"name":"crc32c"}]},"name":"sharding_indexed"}],"data_type":"bfloat16","fill_value":0.0,"node_type":"array","shape":[30,80],"zarr_format":3}`
)

func parse(s string) (*Array, error) {
	if strings.Contains(s, `"zarr_format":2`) {
		return Parse2([]byte(s))
	}
	return Parse3([]byte(s))
}

func TestParse(t *testing.T) {
	a, err := parse(orbax2)
	if err != nil || !a.Codec.Zstd || a.Shards != nil || a.Type.DType != tensor.Float32 || !cmp.Equal(a.Grid(), []int64{8, 1}) || a.Key([]int64{7, 0}) != "7.0" {
		t.Errorf("Parse2 = %+v, %v", a, err)
	}
	b, err := parse(orbax3)
	if err != nil || b.Shards == nil || !b.Shards.Codec.Zstd || !b.Shards.Sum || b.Type.DType != tensor.BFloat16 || b.Key([]int64{7, 0}) != "c/7/0" {
		t.Errorf("Parse3 = %+v, %v", b, err)
	}
	if got := b.Cell([]int64{7, 0}); !got.Equal(tensor.Box{Offsets: []int64{28, 0}, Sizes: []int64{2, 80}}) {
		t.Errorf("Cell = %v; want the last two rows", got)
	}
	if n, err := b.IndexBytes(); n != 2*16+4 || err != nil {
		t.Errorf("IndexBytes = %d, %v", n, err)
	}
}

func TestKeys(t *testing.T) {
	for with, want := range map[string][2]string{ // keys of a cell of two dimensions and of the cell without dimensions
		`"chunk_key_encoding":{"name":"default"}`:                                   {"c/1/2", "c"},
		`"chunk_key_encoding":"default"`:                                            {"c/1/2", "c"},
		`"chunk_key_encoding":{"name":"default","configuration":{"separator":"."}}`: {"c.1.2", "c"},
		`"chunk_key_encoding":{"name":"v2"}`:                                        {"1.2", "0"},
		`"chunk_key_encoding":{"name":"v2","configuration":{"separator":"/"}}`:      {"1/2", "0"},
	} {
		a, err := parse(strings.Replace(orbax3, `"chunk_key_encoding":{"name":"default"}`, with, 1))
		if err != nil || a.Key([]int64{1, 2}) != want[0] || a.Key(nil) != want[1] {
			t.Errorf("%s: %q, %q, %v; want %q", with, a.Key([]int64{1, 2}), a.Key(nil), err, want)
		}
	}
}

// Metadata that contradicts itself, or that is of a kind that is not read, is an error that says which.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		from, old, new string
		want           error
	}{
		{orbax2, `"shape":[16,5]`, `"shape":[16]`, ErrMalformed},
		{orbax2, `"shape":[16,5]`, `"shape":null`, ErrMalformed},
		{orbax2, `"shape":[16,5]`, `"shape":[-1,5]`, ErrMalformed},
		{orbax2, `"shape":[16,5]`, `"shape":[4611686018427387904,5]`, ErrMalformed},
		{orbax2, `"chunks":[2,5]`, `"chunks":[0,5]`, ErrMalformed},
		{orbax2, `"chunks":[2,5]`, `"chunks":[9223372036854775807,5]`, ErrMalformed},
		{orbax2, `"chunks":[2,5]`, `"chunks":"auto"`, ErrMalformed},
		{orbax2, `"order":"C"`, `"order":"K"`, ErrMalformed},
		{orbax2, `"dimension_separator":"."`, `"dimension_separator":"x"`, ErrMalformed},
		{orbax2, `"<f4"`, `">f4"`, ErrUnsupported},
		{orbax2, `"<f4"`, `"<U4"`, ErrUnsupported},
		{orbax2, `"<f4"`, `""`, ErrUnsupported},
		{orbax2, `"<f4"`, `[["a","<f4"]]`, ErrUnsupported},
		{orbax2, `"id":"zstd"`, `"id":"blosc"`, ErrUnsupported},
		{orbax2, `"filters":null`, `"filters":[{"id":"delta"}]`, ErrUnsupported},
		{orbax3, `"zarr_format":3`, `"zarr_format":4`, ErrUnsupported},
		{orbax3, `"array"`, `"group"`, ErrUnsupported},
		{orbax3, `"bfloat16"`, `"r16"`, ErrUnsupported},
		{orbax3, `"regular"`, `"rectangular"`, ErrUnsupported},
		{orbax3, `"name":"zstd"`, `"name":"blosc"`, ErrUnsupported},
		{orbax3, `"name":"sharding_indexed"`, `"name":"sharding_indexed"},{"name":"gzip"`, ErrUnsupported},
		{orbax3, `"name":"default"`, `"name":"hashed"`, ErrUnsupported},
		{orbax3, `"chunk_shape":[2,80]`, `"chunk_shape":[3,80]`, ErrMalformed},
		{orbax3, `"chunk_shape":[2,80]`, `"chunk_shape":[2]`, ErrMalformed},
		{orbax3, `"chunk_shape":[2,80]`, `"index_location":"middle","chunk_shape":[2,80]`, ErrMalformed},
		{orbax3, `"name":"crc32c"`, `"name":"zstd"`, ErrUnsupported},
		{orbax3, `{"endian":"little"},"name":"bytes"},{"configuration":{"checksum"`, `{"endian":"big"},"name":"bytes"},{"configuration":{"checksum"`, ErrUnsupported},
		{orbax3, `"zarr_format":3`, `"zarr_format":3,"storage_transformers":[{"name":"x"}]`, ErrUnsupported},
	} {
		s := strings.Replace(c.from, c.old, c.new, 1)
		if s == c.from {
			t.Fatalf("%s is not there", c.old)
		}
		if _, err := parse(s); !errors.Is(err, c.want) {
			t.Errorf("%s: %v; want %v", c.new, err, c.want)
		}
	}
}

func TestFill(t *testing.T) {
	for raw, want := range map[string]string{"null": "0000", "0.0": "0000", "1": "803f", "true": "803f", `"NaN"`: "c07f", `"-Infinity"`: "80ff", "-1.5": "c0bf"} {
		a, err := parse(strings.Replace(orbax3, `"fill_value":0.0`, `"fill_value":`+raw, 1))
		if err != nil || a.FillErr != nil {
			t.Errorf("%s: %v, %v", raw, err, a.FillErr)
			continue
		}
		if got := binary.BigEndian.Uint16(a.Fill.Contents()); got != must16(want) {
			t.Errorf("%s: %04x; want %s", raw, got, want)
		}
	}
	if a, err := parse(strings.Replace(orbax3, `"fill_value":0.0`, `"fill_value":"0x7fc0"`, 1)); err != nil || !errors.Is(a.FillErr, ErrUnsupported) {
		t.Errorf("FillErr = %v, %v; want %v", a.FillErr, err, ErrUnsupported)
	}
}

func must16(s string) (n uint16) {
	for _, c := range s {
		n = n<<4 | uint16(strings.IndexRune("0123456789abcdef", c))
	}
	return n
}

func TestResolve(t *testing.T) {
	for name, want := range map[string][]byte{"int4": {0, 7, 0xf8, 0xff}, "int2": {0, 0xff, 0, 0xff}} {
		typ, _ := TypeOf(name)
		p := []byte{0x00, 0x07, 0x08, 0x0f}
		typ.Resolve()(p)
		if !cmp.Equal(p, want) {
			t.Errorf("%s: % x; want % x", name, p, want)
		}
	}
}

func indexOf(pairs ...uint64) []byte {
	var b []byte
	for _, n := range pairs {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b))
}

func TestDecodeIndex(t *testing.T) {
	s := &Shards{Sum: true}
	got, err := s.DecodeIndex(indexOf(0, 7, math.MaxUint64, math.MaxUint64, 7, 3), 10)
	if want := []Range{{Length: 7}, {Absent: true}, {Offset: 7, Length: 3}}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("DecodeIndex = %v, %v; want %v", got, err, want)
	}
	flipped := indexOf(0, 7)
	flipped[0] ^= 1
	for claim, p := range map[string][]byte{"beyond the end": indexOf(0, 11), "overflow": indexOf(math.MaxUint64-1, 3), "a flipped bit": flipped, "nothing": nil, "half": indexOf(1)} {
		if _, err := s.DecodeIndex(p, 10); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v; want %v", claim, err, ErrMalformed)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(orbax2))
	f.Add([]byte(orbax3))
	f.Add([]byte(strings.Replace(orbax3, `[{"configuration":{"chunk_shape"`, `[{"name":"transpose","configuration":{"order":[1,0]}},{"configuration":{"chunk_shape"`, 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, parse := range []func([]byte) (*Array, error){Parse2, Parse3} {
			a, err := parse(b)
			if err != nil {
				if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) {
					t.Fatalf("%v; want a named error", err)
				}
				continue
			}
			if a.Fill == nil && a.FillErr == nil {
				t.Fatal("neither a fill value nor an error")
			}
			grid := a.Grid()
			last := make([]int64, len(grid))
			for d, n := range grid {
				last[d] = n - 1
			}
			if grid != nil {
				if err := a.Cell(last).Check(a.Shape); err != nil || a.Key(last) == "" {
					t.Fatalf("Cell(%v) = %v, %v", last, a.Cell(last), err)
				}
			}
			if a.Shards != nil {
				a.IndexBytes()
			}
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add(indexOf(0, 7, math.MaxUint64, math.MaxUint64), int64(10))
	f.Fuzz(func(t *testing.T, p []byte, size int64) {
		for _, sum := range []bool{false, true} {
			got, err := (&Shards{Sum: sum}).DecodeIndex(p, max(0, size))
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Fatalf("%v; want %v", err, ErrMalformed)
			}
			for _, r := range got {
				if r.Offset < 0 || r.Length < 0 || r.Offset+r.Length > max(0, size) {
					t.Fatalf("%+v of %d bytes", r, size)
				}
			}
		}
	})
}
