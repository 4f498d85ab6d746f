package convert

import (
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/plan"
)

// Summary describes a conversion before it runs.
type Summary struct {
	// Tensors and Objects are the numbers of converted ones. Bytes is their size in
	// the target, without headers, and SourceBytes that in the source.
	Tensors     int   `json:"tensors"`
	Objects     int   `json:"objects"`
	Bytes       int64 `json:"bytes"`
	SourceBytes int64 `json:"source_bytes"`
	// LeftOut is the number of names of the source that were not selected.
	LeftOut int `json:"left_out"`
	// Renamed and Cast count the names and dtypes that change.
	Renamed int `json:"renamed"`
	Cast    int `json:"cast"`
	// Ranks is the number of ranks of the target, Sharded the number of tensors with
	// several chunks, and Chunks the number of chunks of all tensors.
	Ranks   int `json:"ranks"`
	Sharded int `json:"sharded"`
	Chunks  int `json:"chunks"`
	// RankBytes are the bytes of each rank.
	RankBytes []int64 `json:"rank_bytes"`
	// Skipped are the objects that the target cannot hold. Only Check fills it in.
	Skipped []string `json:"skipped,omitempty"`
	// Damaged are names that are left out because they cannot be read.
	Damaged []inspect.Missing `json:"damaged,omitempty"`
	// Items are the converted items, in the order of their names in the target.
	Items []Item `json:"items"`
}

// Item is one name of a conversion.
type Item struct {
	Name string `json:"name"`
	// From is the name in the source, if it is another.
	From string `json:"from,omitempty"`
	Kind string `json:"kind"`
	// DType and Shape are of a tensor, and FromDType its type in the source, if
	// that is another.
	DType     string  `json:"dtype,omitempty"`
	FromDType string  `json:"from_dtype,omitempty"`
	Shape     []int64 `json:"shape,omitempty"`
	Bytes     int64   `json:"bytes"`
	// Chunks is the number of chunks of a tensor.
	Chunks int `json:"chunks,omitempty"`
	// Sources are the tensors that a tensor of a view is made of, Operations says how, and
	// Rule is the line of the rule in the recipe.
	Sources    []string `json:"sources,omitempty"`
	Operations string   `json:"operations,omitempty"`
	Rule       int      `json:"rule,omitempty"`
}

// newSummary describes a conversion with these final plans, without the refused
// names.
func newSummary(j *Job, final []*plan.SavePlan, refused refusals) *Summary {
	s := &Summary{Ranks: j.ranks, LeftOut: len(j.md.Entries) - len(j.entries), Damaged: j.damaged}
	for _, e := range j.entries {
		it := e.describe()
		if v := viewOf(j.src); v != nil {
			it.Sources, it.Operations, it.Rule = v.Describe(e.src.FQN)
		}

		if _, skip := refused[it.Name]; skip {
			s.Skipped = append(s.Skipped, it.Name)
			continue
		}

		s.Items = append(s.Items, it)
		s.Bytes += it.Bytes
		s.SourceBytes += e.src.NumBytes()
		s.Chunks += it.Chunks
		count(&s.Tensors, it.Kind == "tensor")
		count(&s.Objects, it.Kind == "object")
		count(&s.Renamed, it.From != "")
		count(&s.Cast, it.FromDType != "")
		count(&s.Sharded, it.Chunks > 1)
	}

	s.RankBytes = make([]int64, j.ranks)
	for r, p := range final {
		s.RankBytes[r] = p.NumBytes()
	}

	return s
}

func count(n *int, yes bool) {
	if yes {
		*n++
	}
}

// Report describes a conversion that succeeded.
type Report struct {
	SaveID string `json:"save_id"`
	Step   *int64 `json:"step"` // nil: unknown
	// Tensors and Objects are the numbers of written ones, and Bytes is their size.
	Tensors int   `json:"tensors"`
	Objects int   `json:"objects"`
	Bytes   int64 `json:"bytes"`
	// Skipped are the objects that the target cannot hold.
	Skipped []string `json:"skipped,omitempty"`
	// Damaged are names that were left out because they cannot be read.
	Damaged []inspect.Missing `json:"damaged,omitempty"`
	Ranks   int               `json:"ranks"`
	// Files and FileBytes are the number and the size of the data files. KeptFiles is
	// the number of files that an interrupted run had finished.
	Files     int   `json:"files"`
	FileBytes int64 `json:"file_bytes"`
	KeptFiles int   `json:"kept_files"`
	// Digests are the digests of the tensors, and Compared is the number of elements that were
	// compared with the source by sums in this run: not the elements of KeptFiles, and small
	// tensors that several ranks have read count more than once. Only conversions of a view have
	// them.
	Digests  []ItemDigest `json:"digests,omitempty"`
	Compared int64        `json:"elements_compared,omitempty"`
}

func (r *Report) count(plans []*plan.SavePlan) {
	seen := map[string]bool{} // of the names of which there may be several items
	for _, p := range plans {
		r.Bytes += p.NumBytes()
		for i := range p.Items {
			it := &p.Items[i]
			if it.Kind == plan.KindShard {
				if seen[it.FQN()] {
					continue
				}
				seen[it.FQN()] = true
			}
			count(&r.Objects, it.Kind == plan.KindBytes)
			count(&r.Tensors, it.Kind != plan.KindBytes)
		}
	}
}
