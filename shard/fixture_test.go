package shard_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// stored is PyTorch's record of one tensor: its chunks by offset, and the offset of each
// chunk that a rank's file holds.
type stored struct {
	shape  []int64
	chunks map[string]tensor.Box
	byRank map[int][]string
}

var (
	sizeRE    = regexp.MustCompile(`^(\S+): TensorStorageMetadata.*? size=torch\.Size\(\[(.*?)\]\)`)
	chunkRE   = regexp.MustCompile(`offsets=torch\.Size\(\[(.*?)\]\), sizes=torch\.Size\(\[(.*?)\]\)`)
	storageRE = regexp.MustCompile(`^MetadataIndex\(fqn='(.*?)', offset=torch\.Size\(\[(.*?)\]\).*'__(\d+)_\d+\.distcp'`)
)

// readFixture parses a metadata.txt, PyTorch's metadata in words.
func readFixture(t *testing.T, name string) map[string]*stored {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join("testdata", "torch-2.11", name+".txt")))(t)
	out := make(map[string]*stored)
	for line := range strings.Lines(string(text)) {
		if m := sizeRE.FindStringSubmatch(line); m != nil {
			s := &stored{shape: numbers(t, m[2]), chunks: map[string]tensor.Box{}, byRank: map[int][]string{}}
			for _, c := range chunkRE.FindAllStringSubmatch(line, -1) {
				s.chunks[c[1]] = tensor.Box{Offsets: numbers(t, c[1]), Sizes: numbers(t, c[2])}
			}
			out[m[1]] = s
		}
		if m := storageRE.FindStringSubmatch(line); m != nil {
			rank := must.Get(strconv.Atoi(m[3]))(t)
			out[m[1]].byRank[rank] = append(out[m[1]].byRank[rank], m[2])
		}
	}
	return out
}

func numbers(t *testing.T, list string) []int64 {
	t.Helper()
	out := []int64{}
	for _, f := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		n := must.Get(strconv.ParseInt(f, 10, 64))(t)
		out = append(out, n)
	}
	return out
}

func TestPartsMatchPyTorchCheckpoints(t *testing.T) {
	s, r, ss := shard.Shard, shard.Replicate, shard.StridedShard
	for name, c := range map[string]struct {
		mesh    []int
		tensors map[string][]shard.Placement
	}{
		"shard0-3": {[]int{3}, map[string][]shard.Placement{
			"model.bias": {s(0)}, "model.cube": {s(0)}, "model.emb": {s(0)}, "model.tiny": {s(0)},
			"model.uneven": {s(0)}, "model.w": {s(0)}, "rep": {r()},
		}},
		"mesh2d-4": {[]int{2, 2}, map[string][]shard.Placement{
			"model.bias": {r(), s(0)}, "model.cube": {s(2), s(1)}, "model.emb": {s(0), r()}, "model.tiny": {r(), r()},
			"model.uneven": {s(1), s(0)}, "model.w": {s(0), s(1)},
		}},
		"fsdp_tp-4": {[]int{2, 2}, map[string][]shard.Placement{
			"model.0.bias": {ss(0, 2), s(0)}, "model.0.weight": {ss(0, 2), s(-2)},
			"model.2.bias": {s(0), r()}, "model.2.weight": {s(0), s(-1)},
		}},
		"shardedtensor-3": {[]int{3}, map[string][]shard.Placement{"st": {s(0)}}},
	} {
		fixture := readFixture(t, name)
		if len(fixture) != len(c.tensors) {
			t.Errorf("%s: fixture has %d tensors; want %d", name, len(fixture), len(c.tensors))
		}
		for fqn, placements := range c.tensors {
			t.Run(name+"/"+fqn, func(t *testing.T) {
				checkStored(t, shard.Placed{Mesh: shard.Mesh{Shape: c.mesh}, Placements: placements}, fixture[fqn])
			})
		}
	}
}

// checkStored checks that the ranks' boxes are the recorded chunks, and that
// each rank has the chunks that its files hold.
func checkStored(t *testing.T, layout shard.Placed, want *stored) {
	seen := make(map[string]bool)
	for rank := range layout.Mesh.Size() {
		mine := make(map[string]tensor.Box)
		for _, p := range parts(t, layout, want.shape, rank) {
			key := strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Box.Offsets), " ", ", "), "[]")
			mine[key], seen[key] = p.Box, true
			if chunk, ok := want.chunks[key]; !ok || !chunk.Equal(p.Box) {
				t.Errorf("rank %d holds %v; recorded is %v", rank, p.Box, chunk)
			}
		}
		for _, offset := range want.byRank[rank] {
			if _, ok := mine[offset]; !ok {
				t.Errorf("rank %d stored the chunk at [%s] but holds %v", rank, offset, mine)
			}
		}
	}
	if len(seen) != len(want.chunks) {
		t.Errorf("ranks hold %d chunks; want %d", len(seen), len(want.chunks))
	}
}

func parts(t *testing.T, layout shard.Layout, shape []int64, rank int) []shard.Part {
	t.Helper()
	out, err := layout.Parts(shape, rank)
	if err != nil {
		t.Fatalf("Parts(%v, %d): %v", shape, rank, err)
	}
	return out
}

func localShape(t *testing.T, layout shard.Layout, shape []int64, rank int) []int64 {
	t.Helper()
	out, err := layout.LocalShape(shape, rank)
	if err != nil {
		t.Fatalf("LocalShape(%v, %d): %v", shape, rank, err)
	}
	return out
}
