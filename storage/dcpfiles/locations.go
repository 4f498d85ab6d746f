package dcpfiles

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
)

// Locations yields where everything lies, with the names.
func Locations(md *meta.Metadata) iter.Seq2[string, *meta.Location] {
	return func(yield func(string, *meta.Location) bool) {
		for i := range md.Entries {
			e := &md.Entries[i]
			if e.Bytes != nil && !yield(e.FQN, &e.Bytes.Loc) {
				return
			}
			if e.Tensor == nil {
				continue
			}
			for j := range e.Tensor.Locs {
				if !yield(e.FQN, &e.Tensor.Locs[j]) {
					return
				}
			}
		}
	}
}

// dataFiles returns the names of the data files that md places chunks and values
// in, sorted. None of them leads out of the checkpoint.
func dataFiles(md *meta.Metadata) ([]string, error) {
	seen := map[string]bool{}
	for fqn, loc := range Locations(md) {
		if seen[loc.File] {
			continue
		}
		if err := blob.CheckName(loc.File); err != nil {
			return nil, fmt.Errorf("%q: %w", fqn, err)
		}
		seen[loc.File] = true
	}
	return slices.Sorted(maps.Keys(seen)), nil
}
