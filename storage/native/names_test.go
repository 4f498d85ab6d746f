package native

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestNames(t *testing.T) {
	at := time.Date(2026, 11, 15, 3, 15, 30, 999, time.FixedZone("east", 3600))
	id := storage.NewSaveID(at, 0x3f9a2c7e)
	for _, tc := range []struct{ got, want string }{
		{id, "20261115t021530-3f9a2c7e"},
		{storage.NewSaveID(at, 1), "20261115t021530-00000001"},
		{indexFileName(id), "20261115t021530-3f9a2c7e-index.cairn"},
		{DataFileName(id, 7, 0), "20261115t021530-3f9a2c7e-r00007-0.safetensors"},
		{DataFileName(id, 123456, 12), "20261115t021530-3f9a2c7e-r123456-12.safetensors"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q; want %q", tc.got, tc.want)
		}
		if err := blob.CheckName(tc.got); err != nil {
			t.Errorf("CheckName(%q) = %v; want nil", tc.got, err)
		}
	}
	if err := checkSaveID(id); err != nil {
		t.Errorf("checkSaveID(%q) = %v; want nil", id, err)
	}
	if later := storage.NewSaveID(at.Add(time.Second), 0); later <= id {
		t.Errorf("the id %q of a later save does not follow %q", later, id)
	}
}

func TestDataFileNamesRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		id := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?`).Draw(t, "id")
		rank, n := rapid.IntRange(0, 1<<40).Draw(t, "rank"), rapid.IntRange(0, 1<<20).Draw(t, "n")
		name := DataFileName(id, rank, n)
		gotID, gotRank, gotN, ok := parseDataFileName(name)
		if gotID != id || gotRank != rank || gotN != n || !ok {
			t.Fatalf("parseDataFileName(%q) = %q, %d, %d, %v; want %q, %d, %d", name, gotID, gotRank, gotN, ok, id, rank, n)
		}
		if got, ok := parseIndexFileName(indexFileName(id)); got != id || !ok {
			t.Fatalf("parseIndexFileName(%q) = %q, %v; want %q", indexFileName(id), got, ok, id)
		}
		for _, name := range []string{name, indexFileName(id)} {
			if got, ok := saveOf(name); got != id || !ok {
				t.Fatalf("saveOf(%q) = %q, %v; want %q", name, got, ok, id)
			}
		}
	})
}

func TestParseRefusesOtherNames(t *testing.T) {
	for _, name := range []string{
		"", "cairn.json", "model.safetensors", "model-00001-of-00002.safetensors", "-index.cairn", "index.cairn",
		"S-index.cairn", "a/b-index.cairn", "a-r00000-0.safetensors.tmp", "a-r0-0.safetensors", "a-r00000-00.safetensors",
		"a-r00000-+1.safetensors", "a-r-0001-0.safetensors", "a-r00000.safetensors", "-r00000-0.safetensors",
		"a/b-r00000-0.safetensors", "a--r00000-0.safetensors", "a-r00000--1.safetensors", "é-r00000-0.safetensors",
		"a-r99999999999999999999-0.safetensors",
	} {
		if _, ok := saveOf(name); ok {
			t.Errorf("saveOf(%q) accepts it; want that it does not", name)
		}
	}
}

func TestCheckSaveIDRefuses(t *testing.T) {
	for _, id := range []string{"", "-a", "a-", "A", "a/b", "a.b", "a b", "é", "a\x00", strings.Repeat("a", maxSaveID+1)} {
		if err := checkSaveID(id); !errors.Is(err, blob.ErrName) {
			t.Errorf("checkSaveID(%q) = %v; want ErrName", id, err)
		}
	}
}
