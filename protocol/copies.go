package protocol

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// If several ranks hold a tensor, or the same box of one, one of them writes it, and the
// copies of the others are lost. So each rank computes a checksum of each such copy, and
// the coordinator compares them before the commit. The checksums travel with the results
// of the ranks. They cost little: of a large copy, they cover a sample, because copies
// that diverge differ nearly everywhere.

const (
	// wholeCopy is the size up to which the checksum of a copy covers all of it.
	wholeCopy = 1 << 20
	// A sample has sampleBlocks blocks of sampleBytes, spread evenly, with the first
	// and the last bytes of the copy.
	sampleBytes  = 64 << 10
	sampleBlocks = 8
)

// copySums are the checksums of the copies that this rank holds. A nil copySums computes
// no checksums.
type copySums struct {
	mu   sync.Mutex
	sums map[uint64]uint32 // by key; guarded by mu
}

// add adds the checksum of an item, if its content can be read. An item that cannot be
// read is not compared: if the save needs it, the writer returns the error.
func (c *copySums) add(ctx context.Context, it *plan.WriteItem, d plan.Data) {
	if c == nil || it.Kind == plan.KindBytes || it.MayDiffer || it.NumBytes() == 0 {
		return
	}

	sum, err := sampleSum(it.NumBytes(), func(p []byte, off int64) error {
		if d.Stream != nil {
			return d.Stream.ReadAt(ctx, p, off)
		}
		return d.Tensor.ReadAt(p, off)
	})
	if err != nil {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.sums[copyKey(it.FQN(), it.Box)] = sum
}

// rest adds the checksums of the items of this rank that other ranks write. resolve returns
// their content. final is the plan of this rank.
func (c *copySums) rest(ctx context.Context, local []plan.WriteItem, final *plan.SavePlan, resolve func(it *plan.WriteItem) (plan.Data, error)) error {
	if c == nil || len(local) == len(final.Items) {
		return nil
	}

	own := make(map[plan.ItemKey]bool, len(final.Items))
	for i := range final.Items {
		own[final.Items[i].Key()] = true
	}

	for i := range local {
		it := &local[i]
		if it.Kind == plan.KindBytes || it.MayDiffer || own[it.Key()] {
			continue
		}

		if err := group.ContextError(ctx); err != nil {
			return err
		}

		d, err := resolve(it)
		if err != nil {
			continue // the save does not need it
		}

		c.add(ctx, it, d)
		switch {
		case d.Stream != nil:
			err = d.Stream.Close()
		case d.Release != nil:
			err = d.Release()
		}
		if err != nil {
			return err
		}
	}

	return nil
}

// list returns the checksums.
func (c *copySums) list() []storage.CopySum {
	if c == nil {
		return nil
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	out := make([]storage.CopySum, 0, len(c.sums))
	for key, sum := range c.sums {
		out = append(out, storage.CopySum{Key: key, Sum: sum})
	}

	slices.SortFunc(out, func(a, b storage.CopySum) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// copyKey identifies a box of a tensor.
func copyKey(fqn string, box tensor.Box) uint64 {
	h := fnv.New64a()
	h.Write([]byte(fqn))
	b := make([]byte, 1, 1+16*len(box.Sizes))
	for _, n := range slices.Concat(box.Offsets, box.Sizes) {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	h.Write(b)
	return h.Sum64()
}

// sampleSum returns the checksum of n bytes that readAt reads, or of a sample of them.
func sampleSum(n int64, readAt func(p []byte, off int64) error) (uint32, error) {
	buf := make([]byte, min(n, sampleBytes))
	var sum uint32
	add := func(off int64) error {
		p := buf[:min(int64(len(buf)), n-off)]
		if err := readAt(p, off); err != nil {
			return err
		}
		sum = crc32c.Update(sum, p)
		return nil
	}
	if n <= wholeCopy {
		for off := int64(0); off < n; off += sampleBytes {
			if err := add(off); err != nil {
				return 0, err
			}
		}
		return sum, nil
	}

	for i := range int64(sampleBlocks) {
		if err := add(i * ((n - sampleBytes) / (sampleBlocks - 1))); err != nil {
			return 0, err
		}
	}

	return sum, add(n - sampleBytes)
}

// checkCopies returns an error of type plan.Problems if ranks hold different contents of
// one box of a tensor.
func checkCopies(md *meta.Metadata, results []*storage.WriteResults) error {
	type copyOf struct {
		rank int
		sum  uint32
	}
	first := map[uint64]copyOf{}
	others := map[uint64][]int{} // the ranks with copies that differ from the first
	for rank, r := range results {
		for _, c := range r.Copies {
			f, ok := first[c.Key]
			switch {
			case !ok:
				first[c.Key] = copyOf{rank, c.Sum}
			case f.sum != c.Sum:
				others[c.Key] = append(others[c.Key], rank)
			}
		}
	}

	if len(others) == 0 {
		return nil
	}

	var found plan.Problems
	for i := range md.Entries {
		e := &md.Entries[i]
		if e.Tensor == nil {
			continue
		}

		for _, box := range e.Tensor.Chunks {
			key := copyKey(e.FQN, box)
			ranks := others[key]
			if len(ranks) == 0 {
				continue
			}

			delete(others, key)
			at := ""
			if !slices.Equal(box.Sizes, e.Tensor.Shape) {
				at = fmt.Sprintf(" of %v", box)
			}

			found = append(found, plan.Problem{FQN: e.FQN, Kind: plan.ProblemDisagree, Text: fmt.Sprintf(
				"%s and %s hold different contents%s, of which one would be saved and the others lost: make them equal before the save, give the tensor of each rank its own name, or save it as one that may differ (may_differ in Python)",
				group.RanksText([]int{first[key].rank}), group.RanksText(ranks), at)})
		}
	}

	if len(others) > 0 { // of a planner that changes names after the local plans
		found = append(found, plan.Problem{Kind: plan.ProblemDisagree, Text: fmt.Sprintf("ranks hold different contents of %d tensors", len(others))})
	}
	slices.SortStableFunc(found, func(a, b plan.Problem) int { return strings.Compare(a.FQN, b.FQN) })
	return found
}
