package fault

import (
	"context"
	"math"

	"github.com/cairn-ckpt/cairn/blob"
)

// Damage replaces the object name of s by what edit makes of its bytes, which
// edit may change in place: for tests of what notices.
func Damage(ctx context.Context, s blob.Store, name string, edit func([]byte) []byte) error {
	p, err := blob.ReadAll(ctx, s, name, math.MaxInt64)
	if err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, s, name, edit(p), nil)
	return err
}
