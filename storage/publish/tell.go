package publish

import (
	"encoding/json"

	"github.com/cairn-ckpt/cairn/plan"
)

// Tell returns the plans with v, as JSON, in the storage data of each: what the
// coordinator has the ranks know. The plans themselves stay as they are.
func Tell(ps []*plan.SavePlan, v any) ([]*plan.SavePlan, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	out := make([]*plan.SavePlan, len(ps))
	for r, p := range ps {
		q := *p
		q.StorageData = b
		out[r] = &q
	}
	return out, nil
}
