package dcpfiles_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// toy calls the metadata of a rank 0.m or 0.n, and its data 0.d.
var toy = &dcpfiles.Format{
	Maker: dcpfiles.PyTorch, Version: "toy", Data: func(name string) bool { return strings.HasSuffix(name, ".d") },
	Rank: regexp.MustCompile(`^([0-9]+)\.[mn]$`), Own: regexp.MustCompile(`^([0-9]+)\.(x*)d$`), RankName: func(rank int) string { return fmt.Sprintf("%d.m", rank) },
}

// rankDocument returns metadata that places a value of that name in a file.
func rankDocument(t *testing.T, d dcpfiles.Dialect, fqn, file string) []byte {
	t.Helper()
	codec := dcpfiles.CodecTorch
	if d != dcpfiles.Torch {
		codec = dcpfiles.CodecPickle
	}
	md := &meta.Metadata{Entries: []meta.Entry{{FQN: fqn, Bytes: &meta.Bytes{Codec: codec, Size: 1, Loc: meta.Location{File: file, Length: 1}}}}}
	b := must.Get(dcpfiles.Encode(&dcpfiles.Document{Meta: md, Dialect: d, Version: "1"}))(t)
	return b
}

func TestDescribeRefuses(t *testing.T) {
	good := rankDocument(t, dcpfiles.Torch, "a", "0.d")
	for name, c := range map[string]struct {
		files map[string][]byte
		want  error
		word  string
	}{
		"nothing":           {nil, storage.ErrNotFound, dcpfiles.ErrNoMetadata.Error()},
		"data only":         {map[string][]byte{"0.d": nil}, storage.ErrIncomplete, dcpfiles.ErrNoMetadata.Error()},
		"a rank is missing": {map[string][]byte{"0.m": good, "2.m": good}, storage.ErrIncomplete, "rank 1"},
		"a rank twice":      {map[string][]byte{"0.m": good, "0.n": good}, storage.ErrCorrupt, "0.n"},
		"no metadata":       {map[string][]byte{".metadata": []byte("x"), "0.m": good}, storage.ErrCorrupt, ".metadata"},
		"another maker's":   {map[string][]byte{".metadata": rankDocument(t, dcpfiles.Hyper, "a", "0.d")}, storage.ErrVersion, "hyper_parallel"},
		"out of the folder": {map[string][]byte{".metadata": rankDocument(t, dcpfiles.Torch, "a", "../0.d")}, storage.ErrCorrupt, "../0.d"},
	} {
		s := new(mem.Store)
		for file, b := range c.files {
			storagetest.Put(t, s, file, b)
		}
		if _, err := toy.Describe(t.Context(), s); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: Describe = %v; want %v about %s", name, err, c.want, c.word)
		}
	}
}

func TestDescribeMergesRanks(t *testing.T) {
	s := new(mem.Store)
	storagetest.Put(t, s, "0.m", rankDocument(t, dcpfiles.Torch, "b", "0.d"))
	storagetest.Put(t, s, "1.m", rankDocument(t, dcpfiles.Torch, "a", "notes"))
	d := must.Get(toy.Describe(t.Context(), s))(t)
	if st := d.Metadata.Storage; st.WorldSize != 2 || st.Version != "toy 1" || len(d.Files) != 2 || d.Files[1].Name != "1.m" {
		t.Errorf("Describe = %+v of %+v; want two ranks of toy 1", d.Files, st)
	}
	if diff := cmp.Diff([]string{"0.d", "notes"}, d.Data); diff != "" {
		t.Errorf("data files (-want +got):\n%s", diff)
	}
	e := must.Get(toy.Existing(t.Context(), s))(t)
	if diff := cmp.Diff([]string{"0.m", "1.m", "0.d"}, e.Files); diff != "" {
		t.Errorf("files that may be removed (-want +got):\n%s", diff)
	}
}

// content is a resolver of one value.
type content []byte

func (c content) Resolve(*plan.WriteItem) (plan.Data, error) { return plan.Data{Bytes: c}, nil }

func TestLayValueKeepsSmallValuesOnly(t *testing.T) {
	for size, kept := range map[int]bool{10: true, 64 << 10: true, 64<<10 + 1: false} {
		it := &plan.WriteItem{Info: &plan.Info{FQN: "v"}, Kind: plan.KindBytes, Size: int64(size)}
		made := 0
		part, err := dcpfiles.LayValue(it, content(make([]byte, size)), func(_ *plan.WriteItem, b []byte) ([]byte, error) {
			made++
			return b, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		b := part.Literal
		if !kept {
			if b, err = part.Tail(); err != nil {
				t.Fatal(err)
			}
		}
		if part.Length != int64(size) || len(b) != size || (made == 1) != kept {
			t.Errorf("%d bytes: a part of %d, made %d times; want it kept: %v", size, part.Length, made, kept)
		}
	}
}
