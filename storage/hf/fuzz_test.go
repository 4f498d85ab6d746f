package hf

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/storage"
)

func FuzzIndex(f *testing.F) {
	for _, s := range []string{
		indexTo("a", "1.safetensors"), indexTo("a", "../1.safetensors"), `{"weight_map":{"a":1}}`, `{"weight_map":{"a":"b","a":"c"}}`,
		`{"metadata":{"total_size":1e99},"weight_map":{}}`, `{"weight_map":null}`, `{"weight_map":{"a":{"b":"c"}}}`, `[`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := DecodeIndex(b)
		if err != nil {
			return
		}
		for name, file := range m {
			if blob.CheckName(file) != nil {
				t.Errorf("%q lies in %q", name, file)
			}
		}
		text, err := encodeJSON(&index{WeightMap: m})
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		again, err := DecodeIndex(text)
		if err != nil || len(again) != len(m) {
			t.Errorf("decoded again: %d names, %v; want %d", len(again), err, len(m))
		}
	})
}

func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		`{"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`, `{"quantization_config":{"quant_method":"mxfp4"}}`,
		`{"text_config":{"quantization_config":{"quant_method":"fp8","weight_block_size":[1,-1]}}}`, `{"quantization_config":null}`, `{}`, `[]`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeConfig(b)
		if err == nil && (len(c.Block) != 2 || c.Block[0] <= 0 || c.Block[1] <= 0) {
			t.Errorf("decodeConfig(%q) = %+v; want two positive sizes", b, c)
		}
	})
}

func FuzzSharding(f *testing.F) {
	for _, s := range []string{
		`{"a":{"saved_offsets":[0,0]}}`, `{"a":{"saved_offsets":[9223372036854775807,0]}}`, `{"a":{"saved_offsets":[-1,0]}}`,
		`{"a":{}}`, `{"a":null}`, `null`, `[]`, "",
	} {
		f.Add(s)
	}
	e := &safetensors.Entry{Name: "a", DType: "U8", Shape: []int64{3, 4}}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := decodeSharding(text)
		if err != nil {
			return
		}
		box, err := (&dataFile{sharding: m}).boxOf(e)
		if err != nil {
			return
		}
		for d := range box.Sizes {
			if box.Offsets[d] < 0 || box.End(d) < box.Offsets[d] {
				t.Errorf("%q places the tensor at %v", text, box)
			}
		}
	})
}

func FuzzCommit(f *testing.F) {
	for _, s := range []string{
		`{"save_id":"x","files":{"a.safetensors":8},"tensors":{"w":{"dtype":"F32","shape":[2]}}}`, `{"files":{"../a":1}}`, `{"files":{"a/b":-1}}`,
		`{"tensors":{"w":{"shape":[-1,9223372036854775807]}}}`, `{"step":1e99}`, `{"time":"x"}`, `null`, `[]`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCommit(b)
		if err != nil {
			if !errors.Is(err, storage.ErrCorrupt) {
				t.Errorf("decodeCommit(%q) = %v; want %v", b, err, storage.ErrCorrupt)
			}
			return
		}
		for name := range c.Files {
			if blob.CheckName(name) != nil || strings.Contains(name, "/") {
				t.Errorf("%q lists %q", b, name)
			}
		}
		text, err := encodeJSON(c)
		if err != nil {
			t.Fatalf("encode what was decoded: %v", err)
		}
		again, err := decodeCommit(text)
		if err != nil || len(again.Files) != len(c.Files) || len(again.Tensors) != len(c.Tensors) {
			t.Errorf("decoded again: %d files, %d tensors, %v; want %d, %d", len(again.Files), len(again.Tensors), err, len(c.Files), len(c.Tensors))
		}
	})
}
