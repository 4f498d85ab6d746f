package plan_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestGlobalGoldens makes global plans of small jobs and compares them with the files in
// testdata/global. A file is a job, a line of four dashes, and the plan. The job has one line
// for each name:
//
//	# a comment
//	rule lowest-rank
//	NAME DTYPE SHAPE mesh SHAPE PLACEMENT…   a sharded tensor; placements are S0, S1, … and R
//	NAME DTYPE SHAPE on RANKS                a plain tensor
//	NAME value BYTES on RANKS                a value
//
// Shapes are sizes with x between them, or 0d; ranks are numbers with commas
// between them.
func TestGlobalGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/global/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text := must.Get(os.ReadFile(file))(t)
			job, want, _ := strings.Cut(string(text), "----\n")
			plans, rule := parseJob(t, job)
			finals, md, err := plan.Global(plans, rule)
			got := printProblems(err)
			if err == nil {
				got = printPlan(finals, md)
			}
			if *update {
				must.Do(t, os.WriteFile(file, []byte(job+"----\n"+got), 0o666))
				return
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("-want +got (go test -update rewrites it)\n%s", d)
			}
		})
	}
}

// parseJob returns the local plans of a job in words.
func parseJob(t *testing.T, text string) (plans []*plan.SavePlan, rule plan.OwnerRule) {
	add := func(rank int, it plan.WriteItem) {
		for len(plans) <= rank {
			plans = append(plans, planOf())
		}
		plans[rank].Items = append(plans[rank].Items, it)
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#":
		case f[0] == "rule":
			rule = map[string]plan.OwnerRule{"least-loaded": plan.LeastLoaded, "lowest-rank": plan.LowestRank}[f[1]]
		case f[1] == "value":
			for _, r := range numbers(t, f[4], ",") {
				add(int(r), bytesItem(f[0], numbers(t, f[2], ",")[0]))
			}
		case f[3] == "on":
			for _, r := range numbers(t, f[4], ",") {
				it := tensorItem(t, f)
				it.Kind, it.Box = plan.KindTensor, tensor.Whole(it.Info.Shape)
				add(int(r), it)
			}
		case f[3] == "mesh":
			l := parseLayout(t, f[4], f[5:])
			it := tensorItem(t, f)
			for rank, boxes := range partsOf(t, l, it.Info.Shape, l.Mesh.Size()) {
				for _, b := range boxes {
					it.Box = b
					add(rank, it)
				}
			}
		default:
			t.Fatalf("cannot read %q", line)
		}
	}
	return plans, rule
}

// tensorItem returns the item of a line that begins with name, dtype and shape.
func tensorItem(t *testing.T, f []string) plan.WriteItem {
	d := must.Get(tensor.ParseDType(f[1]))(t)
	it := plan.WriteItem{Info: &plan.Info{FQN: f[0], Shape: numbers(t, f[2], "x")}, Kind: plan.KindShard}
	it.Info.DType = d
	return it
}

func parseLayout(t *testing.T, mesh string, placements []string) shard.Placed {
	var l shard.Placed
	for _, n := range numbers(t, mesh, "x") {
		l.Mesh.Shape = append(l.Mesh.Shape, int(n))
	}
	for _, p := range placements {
		if p == "R" {
			l.Placements = append(l.Placements, shard.Replicate())
			continue
		}
		l.Placements = append(l.Placements, shard.Shard(int(numbers(t, strings.TrimPrefix(p, "S"), ",")[0])))
	}
	return l
}

func numbers(t failer, s, sep string) []int64 {
	t.Helper()
	out := []int64{}
	if s == "0d" || s == "" {
		return out
	}
	for f := range strings.SplitSeq(s, sep) {
		n := must.Get(strconv.ParseInt(strings.TrimSpace(f), 10, 64))(t)
		out = append(out, n)
	}
	return out
}

func printProblems(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "; ", "\n") + "\n"
}

// printPlan prints the writer of each item, by name, and the bytes of each rank.
func printPlan(finals []*plan.SavePlan, md *meta.Metadata) string {
	owner := map[string]int{}
	for r, p := range finals {
		for i := range p.Items {
			owner[fmt.Sprint(p.Items[i].FQN(), p.Items[i].Hint)] = r
		}
	}
	var b strings.Builder
	for _, e := range md.Entries {
		if e.Bytes != nil {
			fmt.Fprintf(&b, "%s: %d bytes by rank %d\n", e.FQN, e.Bytes.Size, owner[e.FQN+"0"])
			continue
		}
		fmt.Fprintf(&b, "%s: %v %v\n", e.FQN, e.Tensor.DType, e.Tensor.Shape)
		for i, c := range e.Tensor.Chunks {
			fmt.Fprintf(&b, "  %v by rank %d\n", c, owner[fmt.Sprint(e.FQN, i)])
		}
	}
	for r, p := range finals {
		fmt.Fprintf(&b, "rank %d: %d bytes: %s\n", r, p.NumBytes(), strings.Join(slices.Compact(names(p)), " "))
	}
	return b.String()
}
