package saves

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// One rank wants a number under more names than another. If the parts of a chunk have no
// checksums, ranks share all items of the chunk or none.
func TestShareNumbersUnderSeveralNames(t *testing.T) {
	store := new(mem.Store)
	must.Get(cairn.Save(t.Context(), store, cairn.State{"step": jobtest.Whole(t, nil, 7)},
		&cairn.SaveOptions{Format: torchdcp.Format{}}))(t)
	for _, names := range [][]int{{1, 2}, {2, 1}, {1, 2, 2}, {1, 2, 1}, {2, 2, 3}} {
		errs := bubble(t, len(names), func(ctx context.Context, g group.Group) error {
			state := cairn.State{}
			for i := range names[g.Rank()] {
				state[fmt.Sprint("n", i)] = jobtest.Whole(t, nil, 0)
			}
			_, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{
				Group: g, Share: true, Rename: func(string) string { return "step" },
			})
			for _, v := range state {
				if err == nil && !tensor.Equal(v.(*tensor.Tensor), jobtest.Whole(t, nil, 7)) {
					err = fmt.Errorf("rank %d: %v; want 7", g.Rank(), v)
				}
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Errorf("names %v: %v", names, err)
		}
	}
}
