package publish

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// Locate is storage.Locate, and refuses chunks that are not whole tensors:
// whatever the planner says, a checkpoint that cannot be read does not replace
// one that can.
func Locate(md *meta.Metadata, results []*storage.WriteResults) ([]meta.Entry, error) {
	entries, err := storage.Locate(md, results)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		e := &entries[i]
		if e.Tensor == nil {
			continue
		}
		if p := plan.CheckTiling(e.Tensor.Shape, e.Tensor.Chunks); len(p) > 0 {
			return nil, fmt.Errorf("%w: %q: %s: %s", meta.ErrInvalid, e.FQN, p[0].Kind, p[0].Text)
		}
	}
	return entries, nil
}
