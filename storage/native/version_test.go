package native

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// updateGolden rewrites the golden files instead of comparing with them.
var updateGolden = flag.Bool("update", false, "rewrite the golden files of the current version")

// Existing files have these numbers, so the code must not change them.
func TestConstantsOfTheFormat(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got, want any
	}{
		{"formatVersion", formatVersion, 1},
		{"other versions", []int{tiedVersion, deltaVersion}, []int{2, 3}},
		{"deltaSuffix", deltaSuffix, ".delta"},
		{"indexVersion", indexVersion, 1},
		{"formatName", formatName, "cairn"},
		{"recordName", recordName, "cairn.json"},
		{"indexMagic", indexMagic, "CAIRNIDX"},
		{"indexEndMagic", indexEndMagic, "CAIRNEND"},
		{"indexHeaderSize", indexHeaderSize, 16},
		{"indexTailSize", indexTailSize, 52},
		{"maxShared", maxShared, 255},
		{"kinds", []int{kindTensor, kindBytes}, []int{0, 1}},
		{"path forms", []pathForm{pathNone, pathName, pathCut, pathSteps}, []pathForm{0, 1, 2, 3}},
		{"places of values", []int{bytesInline, bytesInFile, bytesKeyed, bytesData}, []int{0, 1, 2, 3}},
		{
			"flags of tensors",
			[]int{flagRequiresGrad, flagPinMemory, flagMemoryFormat, flagLayout, flagOneKey, flagKeys, flagStorageData, flagsKnown},
			[]int{1, 2, 4, 8, 16, 32, 64, 127},
		},
		{"checksum grid", []int{stripeBytes, minBand, maxBands, minTile}, []int{1 << 20, 4 << 10, 8, 64 << 10}},
	} {
		if diff := cmp.Diff(tc.want, tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// golden returns the golden file of that name, which holds want after -update.
func golden(t *testing.T, name string, want []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", "golden", name)
	if *updateGolden {
		must.Do(t, os.WriteFile(path, want, 0o644))
	}
	b := must.Get(os.ReadFile(path))(t)
	return b
}

// hexLines returns b in hexadecimal, 32 bytes a line.
func hexLines(b []byte) []byte {
	var out []byte
	for len(b) > 0 {
		n := min(32, len(b))
		out = append(hex.AppendEncode(out, b[:n]), '\n')
		b = b[n:]
	}
	return out
}

func fromHexLines(t *testing.T, text []byte) []byte {
	t.Helper()
	b := must.Get(hex.DecodeString(strings.ReplaceAll(string(text), "\n", "")))(t)
	return b
}

// Every later version reads files of version 1. As long as version 1 is the current one,
// a save writes the same bytes.
func TestGoldenIndex(t *testing.T) {
	want := sampleEntries()
	b := must.Get(EncodeIndex(want))(t)
	old := fromHexLines(t, golden(t, "index-v1.hex", hexLines(b)))
	got, err := decodeWholeIndex(t.Context(), old)
	if err != nil {
		t.Fatalf("decode = %v; want nil", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("decode (-want +got):\n%s", diff)
	}
	again := must.Get(EncodeIndex(got))(t)
	if diff := cmp.Diff(string(hexLines(old)), string(hexLines(again))); diff != "" {
		t.Errorf("encode(decode) (-want +got):\n%s", diff)
	}
}

func TestGoldenRecord(t *testing.T) {
	for name, want := range map[string]*record{"record-v1.json": sampleRecord(), "record-v3.json": recordWithReferences()} {
		t.Run(name, func(t *testing.T) { checkGoldenRecord(t, name, want) })
	}
}

func checkGoldenRecord(t *testing.T, name string, want *record) {
	b := must.Get(encodeRecord(want))(t)
	old := golden(t, name, b)
	got, err := decodeRecord(old)
	if err != nil {
		t.Fatalf("decodeRecord = %v; want nil", err)
	}
	if diff := cmp.Diff(want, got, sameRecord); diff != "" {
		t.Errorf("decodeRecord (-want +got):\n%s", diff)
	}
	again := must.Get(encodeRecord(got))(t)
	if diff := cmp.Diff(string(old), string(again)); diff != "" {
		t.Errorf("encode(decode) (-want +got):\n%s", diff)
	}
}
