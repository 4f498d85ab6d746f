package slime

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

func FuzzIndex(f *testing.F) {
	for _, s := range []string{
		`{"metadata":{"version":"000003","base_version":"000002","delta_encoding":"xor","compression_format":"zstd","checksum_format":"xxh3-128"},"weight_map":{"a":"model-00000-of-00001.safetensors"}}`,
		`{"weight_map":{},"metadata":{"version":"000001","base_version":"000000","delta_encoding":"overwrite","compression_format":"zstd","checksum_format":"adler32"}}`,
		`{"metadata":{"version":"1","base_version":"000002","delta_encoding":1},"weight_map":{}}`, `{"metadata":{"total_size":3},"weight_map":{"a":"../b"}}`,
		`{"metadata":null,"weight_map":{}}`, `{"metadata":{"version":"999999999999999999999"},"weight_map":{}}`, `{"weight_map":[[[`, `[]`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := hasEncoding(bytes.NewReader(b)); err != nil && json.Valid(b) && bytes.HasPrefix(b, []byte("{")) {
			var e *json.UnmarshalTypeError // metadata that is not an object
			if !errors.As(err, &e) {
				t.Errorf("hasEncoding(%q) = %v", b, err)
			}
		}
		x, err := decodeIndex(b)
		if err != nil {
			if !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("decodeIndex(%q) = %v; want %v", b, err, storage.ErrCorrupt)
			}
			return
		}
		version, base, err := x.Metadata.check()
		if err != nil {
			return
		}
		if version < 1 || base != version-1 {
			t.Errorf("%q is version %d of %d", b, version, base)
		}
		for name, file := range x.WeightMap {
			if blob.CheckName(file) != nil || strings.Contains(file, "/") {
				t.Errorf("%q lies in %q", name, file)
			}
		}
		text, err := encodeIndex(x)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		again, err := decodeIndex(text)
		if err != nil || again.Metadata != x.Metadata || len(again.WeightMap) != len(x.WeightMap) {
			t.Errorf("decoded again: %+v, %v; want %+v", again, err, x)
		}
	})
}

// FuzzApply applies a frame to a tensor of size bytes. An error must say that the frame is
// malformed, and bytes outside of the tensor stay.
func FuzzApply(f *testing.F) {
	for _, p := range [][]byte{make([]byte, 8), changes(2, []uint32{1, 5}, "ab"), changes(2, []uint32{5, 1}, "ab"), changes(1<<31, nil, "")} {
		for _, overwrite := range []bool{false, true} {
			f.Add(frameOf(f, p), 8, overwrite)
		}
	}
	f.Add([]byte("(\xb5/\xfd"), 1, true)
	f.Fuzz(func(t *testing.T, frame []byte, size int, overwrite bool) {
		const guard = 0x5a
		if size < 0 || size > 1<<16 || len(frame) > 1<<16 {
			return
		}
		encoding := XOR
		if overwrite {
			encoding = Overwrite
		}
		p := append(make([]byte, size), bytes.Repeat([]byte{guard}, 16)...)
		err := apply(encoding, p[:size:size], of(frame))
		if err != nil && !errors.Is(err, storage.ErrCorrupt) {
			t.Errorf("%v; want %v", err, storage.ErrCorrupt)
		}
		if !bytes.Equal(p[size:], bytes.Repeat([]byte{guard}, 16)) {
			t.Error("bytes beyond the tensor have changed")
		}
		var h zstd.Header
		if checkErr := check(encoding, of(frame)); err == nil && checkErr != nil && h.Decode(frame) == nil && h.HasFCS {
			t.Errorf("apply succeeds, and check returns %v", checkErr)
		}
	})
}
