package deepspeed_test

import (
	"context"
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/deepspeed"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// Every checkpoint of DeepSpeed has the weights, states, names and dtypes that its own
// tools and the running engine say; testdata/expected.py has compared them.
func TestFixtures(t *testing.T) {
	open := func(ctx context.Context, s blob.Store) (storage.Checkpoint, error) {
		tag, err := blob.NewSub(s, "global_step3")
		if err != nil {
			return nil, err
		}
		c, err := deepspeed.Format{}.Open(ctx, tag)
		if !errors.Is(err, storage.ErrNotFound) {
			return c, err
		}
		if tag, err = blob.NewSub(s, "global_step3_universal"); err != nil {
			return nil, err
		}
		return deepspeed.Format{}.Open(ctx, tag)
	}
	storagetest.RunFixtures(t, open, "deepspeed-*/*")
}
