package plan_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// torchEntry is PyTorch's record of one name: the chunks in order and the rank that wrote
// each.
type torchEntry struct {
	dtype  tensor.DType
	shape  []int64
	chunks []tensor.Box
	owners []int
	value  bool
}

var (
	torchTensor = regexp.MustCompile(`^(\S+): TensorStorageMetadata\(.*?dtype=(\S+?),.*? size=torch\.Size\(\[(.*?)\]\)`)
	torchValue  = regexp.MustCompile(`^(\S+): BytesStorageMetadata`)
	torchChunk  = regexp.MustCompile(`offsets=torch\.Size\(\[(.*?)\]\), sizes=torch\.Size\(\[(.*?)\]\)`)
	torchPlace  = regexp.MustCompile(`^MetadataIndex\(fqn='(.*?)', offset=(?:None|torch\.Size\(\[.*?\]\)), index=(None|\d+)\).*'__(\d+)_\d+\.distcp'`)
)

// readTorch parses PyTorch's metadata in words.
func readTorch(t *testing.T, name string) map[string]*torchEntry {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "torch-2.11", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*torchEntry{}
	for line := range strings.Lines(string(text)) {
		if m := torchTensor.FindStringSubmatch(line); m != nil {
			d := must.Get(tensor.ParseDType(m[2]))(t)
			e := &torchEntry{dtype: d, shape: numbers(t, m[3], ",")}
			for _, c := range torchChunk.FindAllStringSubmatch(line, -1) {
				e.chunks = append(e.chunks, box(numbers(t, c[1], ","), numbers(t, c[2], ",")))
			}
			e.owners = make([]int, len(e.chunks))
			out[m[1]] = e
		}
		if m := torchValue.FindStringSubmatch(line); m != nil {
			out[m[1]] = &torchEntry{value: true, owners: make([]int, 1)}
		}
		if m := torchPlace.FindStringSubmatch(line); m != nil {
			chunk, _ := strconv.Atoi(m[2]) // None: 0
			if out[m[1]].owners[chunk], err = strconv.Atoi(m[3]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out
}

// torchCase says how the tensors of a fixture were sharded, and which ranks had its
// values.
type torchCase struct {
	mesh    []int
	tensors map[string][]shard.Placement
	values  map[string][]int
}

func torchCases() map[string]torchCase {
	s, r, ss := shard.Shard, shard.Replicate, shard.StridedShard
	type m = map[string][]shard.Placement
	return map[string]torchCase{
		"shard0-3": {[]int{3}, m{
			"model.bias": {s(0)}, "model.cube": {s(0)}, "model.emb": {s(0)}, "model.tiny": {s(0)}, "model.uneven": {s(0)}, "model.w": {s(0)}, "rep": {r()},
		}, map[string][]int{"rank_private.r0": {0}, "rank_private.r1": {1}, "rank_private.r2": {2}, "step": {0, 1, 2}}},
		"mesh2d-4": {[]int{2, 2}, m{
			"model.bias": {r(), s(0)}, "model.cube": {s(2), s(1)}, "model.emb": {s(0), r()}, "model.tiny": {r(), r()}, "model.uneven": {s(1), s(0)}, "model.w": {s(0), s(1)},
		}, nil},
		"fsdp_tp-4": {[]int{2, 2}, m{
			"model.0.bias": {ss(0, 2), s(0)}, "model.0.weight": {ss(0, 2), s(-2)}, "model.2.bias": {s(0), r()}, "model.2.weight": {s(0), s(-1)},
		}, nil},
	}
}

// The chunks of a checkpoint are PyTorch's, in PyTorch's order; and so are the owners of
// chunks that only one rank has. Chunks of several ranks get their owners by our own rule.
func TestGlobalPlanMatchesPyTorch(t *testing.T) {
	for name, c := range torchCases() {
		t.Run(name, func(t *testing.T) {
			fixture := readTorch(t, name)
			plans := torchPlans(t, c, fixture)
			holders := map[string]int{}
			for _, p := range plans {
				for i := range p.Items {
					holders[key(p.Items[i].Index())]++
				}
			}
			for _, rule := range []plan.OwnerRule{plan.LeastLoaded, plan.LowestRank} {
				finals, md, err := plan.Global(plans, rule)
				if err != nil {
					t.Fatal(err)
				}
				if len(md.Entries) != len(fixture) {
					t.Errorf("%d names; PyTorch has %d", len(md.Entries), len(fixture))
				}
				for _, e := range md.Entries {
					if e.Tensor == nil {
						continue
					}
					if d := cmp.Diff(fixture[e.FQN].chunks, e.Tensor.Chunks); d != "" {
						t.Errorf("%v: chunks of %s: -PyTorch +got\n%s", rule, e.FQN, d)
					}
				}
				compareOwners(t, finals, fixture, holders)
			}
		})
	}
}

// torchPlans returns the local plans of the ranks that wrote a fixture.
func torchPlans(t *testing.T, c torchCase, fixture map[string]*torchEntry) []*plan.SavePlan {
	t.Helper()
	ranks := 1
	for _, n := range c.mesh {
		ranks *= n
	}
	states := make([]plan.State, ranks)
	for rank := range states {
		states[rank] = plan.State{}
		for fqn, placements := range c.tensors {
			e := fixture[fqn]
			x := must.Get(shard.Empty(placed(c.mesh, placements...), e.dtype, e.shape, rank))(t)
			states[rank][fqn] = x
		}
	}
	for fqn, held := range c.values {
		for _, rank := range held {
			states[rank][fqn] = 1
		}
	}
	return localPlans(t, states)
}

func compareOwners(t *testing.T, finals []*plan.SavePlan, fixture map[string]*torchEntry, holders map[string]int) {
	t.Helper()
	compared := 0
	for rank, p := range finals {
		for i := range p.Items {
			it := &p.Items[i]
			if holders[key(it.Index())] > 1 {
				continue
			}
			compared++
			if want := fixture[it.FQN()].owners[it.Hint]; rank != want {
				t.Errorf("%s is written by rank %d; in PyTorch by %d", fmt.Sprint(it.Index()), rank, want)
			}
		}
	}
	if compared == 0 {
		t.Error("no owner was compared")
	}
}
