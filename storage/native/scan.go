package native

import (
	"cmp"
	"context"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/datafile"
)

// scanItem is a chunk or value whose checksums a scan computes.
type scanItem struct {
	fqn  string
	loc  *meta.Location
	grid grid
	sums []uint32
}

// sortItems puts items in the order in which a scan comes to them: empty ones
// before the one that begins where they stand.
func sortItems(items []*scanItem) {
	slices.SortStableFunc(items, func(a, b *scanItem) int {
		return cmp.Or(cmp.Compare(a.loc.Offset, b.loc.Offset), cmp.Compare(a.loc.Length, b.loc.Length))
	})
}

// scanFile reads a whole file in order and computes its CRC and the checksums
// of items, which must be sorted by sortItems and not overlap.
func scanFile(ctx context.Context, s blob.Store, name string, items []*scanItem, progress func(int64)) (size int64, crc uint32, err error) {
	size, err = datafile.Scan(ctx, s, name, func(p []byte, at int64) {
		crc = crc32c.Update(crc, p)
		items = addPiece(items, p, at)
		if progress != nil {
			progress(int64(len(p)))
		}
	})
	return size, crc, err
}

// addPiece adds p, the bytes of a file from at on, to the items it holds bytes
// of. It returns the items that are not complete.
func addPiece(items []*scanItem, p []byte, at int64) []*scanItem {
	end := at + int64(len(p))
	for i, it := range items {
		lo, hi := it.loc.Offset, it.loc.Offset+it.loc.Length
		if lo >= end {
			return items[i:]
		}
		from, to := max(lo, at), min(hi, end)
		if from < to {
			it.grid.add(it.sums, p[from-at:to-at], from-lo)
		}
		if hi > end {
			return items[i:]
		}
	}
	return nil
}
