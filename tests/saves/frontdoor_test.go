package saves

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// sameTensor lets cmp compare tensors.
var sameTensor = cmp.Comparer(func(a, b *tensor.Tensor) bool {
	if a == nil || b == nil {
		return a == b
	}
	return tensor.Equal(a, b)
})

// bubble runs fn on n ranks. A rank that waits forever is reported as a deadlock.
func bubble(t *testing.T, n int, fn func(ctx context.Context, g group.Group) error) []error {
	t.Helper()
	errs := make([]error, n)
	synctest.Test(t, func(t *testing.T) {
		var wg sync.WaitGroup
		for r, g := range inproc.New(n) {
			wg.Go(func() { errs[r] = fn(t.Context(), g) })
		}
		wg.Wait()
	})
	return errs
}

func mustSave(t testing.TB, s blob.Store, state cairn.State) {
	t.Helper()
	must.Get(cairn.Save(context.Background(), s, state, nil))(t)
}

func TestSaveWithoutGroupRefusesPart(t *testing.T) {
	part := jobtest.Cut(t, jobtest.Rows(4), jobtest.Whole(t, []int64{8, 4}, 1), 1)
	_, err := cairn.Save(t.Context(), new(mem.Store), cairn.State{"w": part}, nil)
	if !errors.Is(err, cairn.ErrState) || !strings.Contains(err.Error(), "SaveOptions.Group is not set") {
		t.Errorf("Save = %v; want ErrState and the option that is missing", err)
	}
}
