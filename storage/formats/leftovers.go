package formats

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/publish"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

// swept are the formats whose saves have marks. Saves in the other formats leave at
// most the files that their writers had open, which the store itself finds.
func swept() []*publish.Format {
	return []*publish.Format{native.Files(), torchdcp.Files(), hyper.Files(), hf.Files()}
}

// Leftovers returns the files that saves in all formats have left at the root of
// store, as publish.Leftovers does. If the files of a checkpoint cannot be
// determined, it returns an error beside the leftovers of the other formats.
func Leftovers(ctx context.Context, store blob.Store) ([]publish.Leftover, error) {
	return union(func(f *publish.Format) ([]publish.Leftover, error) { return publish.Leftovers(ctx, store, f) })
}

// Removable reports whether Clean removes a leftover: it is over, as
// publish.Leftover.Over says, and it is cairn's: a data file without the id of a
// save is another program's, unless the mark of a save claims it.
func Removable(l *publish.Leftover, olderThan time.Duration) bool {
	return l.Over(olderThan) && !isForeign(l)
}

func isForeign(l *publish.Leftover) bool {
	return l.Owner == blob.OwnerUnknown && l.SaveID == "" && !strings.HasPrefix(l.Name, blob.Reserved)
}

// Clean removes the leftovers that are Removable, and returns them.
func Clean(ctx context.Context, store blob.Store, olderThan time.Duration) ([]publish.Leftover, error) {
	return union(func(f *publish.Format) ([]publish.Leftover, error) {
		return publish.Sweep(ctx, store, f, olderThan, isForeign)
	})
}

// union returns the results of find for all formats, each file once.
func union(find func(*publish.Format) ([]publish.Leftover, error)) ([]publish.Leftover, error) {
	var out []publish.Leftover
	var errs []error
	seen := map[string]bool{}
	for _, f := range swept() {
		left, err := find(f)
		errs = append(errs, err)
		for _, l := range left {
			if !seen[l.Name] {
				seen[l.Name] = true
				out = append(out, l)
			}
		}
	}
	return out, errors.Join(errs...)
}
