package storage_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want storage.Verdict
	}{
		"no error":                   {nil, storage.Fine},
		"replaced":                   {fmt.Errorf("load: %w", storage.ErrChanged), storage.Gone},
		"removed":                    {storage.ErrNotFound, storage.Gone},
		"being removed":              {storage.ErrRemoving, storage.Gone},
		"being saved":                {storage.ErrUnderWay, storage.Gone},
		"not finished":               {storage.ErrIncomplete, storage.Gone},
		"a part of it not finished":  {fmt.Errorf("%w: %w", storage.ErrCorrupt, storage.ErrIncomplete), storage.Damaged},
		"a file is gone":             {&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}, storage.Gone},
		"a file of a checkpoint is":  {fmt.Errorf("%w: x is gone: %w", storage.ErrCorrupt, fs.ErrNotExist), storage.Damaged},
		"damaged":                    {fmt.Errorf("load: %w", storage.ErrCorrupt), storage.Damaged},
		"damaged, and replaced":      {fmt.Errorf("%w: %w", storage.ErrCorrupt, storage.ErrChanged), storage.Gone},
		"damaged, while it is saved": {errors.Join(storage.ErrCorrupt, storage.ErrUnderWay), storage.Gone},
		"a newer format":             {storage.ErrVersion, storage.Failed},
		"in use":                     {storage.ErrInUse, storage.Failed},
		"a name that is missing":     {plan.ErrMissing, storage.Failed},
		"no permission":              {fs.ErrPermission, storage.Failed},
		"interrupted":                {context.Canceled, storage.Failed},
	} {
		if got := storage.Judge(c.err); got != c.want {
			t.Errorf("%s: Judge(%v) = %d; want %d", name, c.err, got, c.want)
		}
	}
}

func TestSettle(t *testing.T) {
	for _, c := range []struct {
		changes int // looks that find a change
		then    error
		calls   int
		want    error
	}{{0, nil, 1, nil}, {3, nil, 4, nil}, {3, storage.ErrNotFound, 4, storage.ErrNotFound}, {1000, nil, 16, storage.ErrChanged}} {
		calls := 0
		v, err := storage.Settle(func() (int, error) {
			if calls++; calls <= c.changes {
				return 0, fmt.Errorf("look: %w", storage.ErrChanged)
			}
			return calls, c.then
		})
		if calls != c.calls || !errors.Is(err, c.want) || err == nil && v != calls {
			t.Errorf("%d changes, then %v: Settle = %d, %v after %d calls; want %v after %d", c.changes, c.then, v, err, calls, c.want, c.calls)
		}
	}
}
