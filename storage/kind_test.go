package storage_test

import (
	"encoding/binary"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestOtherKind(t *testing.T) {
	safetensors := func(headerLen uint64) string {
		return string(binary.LittleEndian.AppendUint64(nil, headerLen)) + `{"a":{"dtype":"U8"`
	}
	for name, c := range map[string]struct{ text, want string }{
		"a script":                            {"#!/bin/sh\necho\n", "a script"},
		"an executable":                       {"MZ\x90\x00\x03\x00\x00\x00\x04\x00\x00\x00", "an executable"},
		"gzip":                                {"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", "a gzip file"},
		"text":                                {"hello, world\n", "a text file"},
		"safetensors":                         {safetensors(64), ""},
		"a header length that begins with MZ": {safetensors(0x5a4d), ""},
		"a header length that begins with #!": {safetensors(0x2123), ""},
		"a header length as gzip begins":      {safetensors(0x18b1f), ""},
	} {
		s := new(mem.Store)
		must.Get(blob.WriteAll(t.Context(), s, "f", []byte(c.text), nil))(t)
		r := must.Get(s.Open(t.Context(), "f"))(t)
		if got, err := storage.OtherKind(t.Context(), r); got != c.want || err != nil {
			t.Errorf("%s: OtherKind = %q, %v; want %q", name, got, err, c.want)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
