package torchdcp

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/value"
)

// record is an item as the torch.save file that it becomes.
type record struct {
	item *plan.WriteItem
	size int64
	// like is the first record of the dtype and shape of a tensor.
	like *record
	// slot is which part of the file of such a tensor is the tensor.
	slot int
	// value is a value's file, whole.
	value *datafile.Part
}

// layRecords makes the records of a plan's items, values first, as PyTorch does.
// All values that cannot be written are in the error.
func layRecords(p *plan.SavePlan, data storage.Resolver) ([]*record, error) {
	var values, tensors []*record
	var refused []error
	layer := tensorLayer{}
	for i := range p.Items {
		it := &p.Items[i]
		lay := layer.lay
		if it.Kind == plan.KindBytes {
			lay = func(it *plan.WriteItem) (*record, error) { return layValue(it, data) }
		}
		r, err := lay(it)
		switch {
		case errors.Is(err, storage.ErrNotRepresentable):
			refused = append(refused, err)
		case err != nil:
			return nil, err
		case it.Kind == plan.KindBytes:
			values = append(values, r)
		default:
			tensors = append(tensors, r)
		}
	}
	return append(values, tensors...), errors.Join(refused...)
}

// tensorLayer makes the records of tensors. Those of one dtype and shape have
// files of the same sizes.
type tensorLayer map[string]*record

func (l tensorLayer) lay(it *plan.WriteItem) (*record, error) {
	key := fmt.Sprint(it.Info.DType, it.Box.Sizes)
	like := l[key]
	if like == nil {
		var err error
		if like, err = layTensor(it); err != nil {
			return nil, err
		}
		l[key] = like
	}
	return &record{item: it, size: like.size, like: like}, nil
}

func layTensor(it *plan.WriteItem) (*record, error) {
	l, err := layoutOf(it)
	if err != nil {
		return nil, err
	}
	r := &record{item: it, size: l.Size, slot: -1}
	for i := range l.Parts {
		if l.Parts[i].Slot != nil {
			r.slot = i
		}
	}
	return r, nil
}

// layoutOf lays out the file of a tensor. PyTorch saves them detached.
func layoutOf(it *plan.WriteItem) (*torchsave.Layout, error) {
	l, err := torchsave.Lay(&torchsave.Slot{DType: it.Info.DType, Shape: it.Box.Sizes}, nil)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", it.FQN(), err)
	}
	return l, nil
}

func layValue(it *plan.WriteItem, data storage.Resolver) (*record, error) {
	part, err := dcpfiles.LayValue(it, data, encodeValue)
	if err != nil {
		return nil, err
	}
	return &record{item: it, size: part.Length, value: &part}, nil
}

// encodeValue returns the torch.save file of the value that data encodes.
func encodeValue(it *plan.WriteItem, data []byte) ([]byte, error) {
	v, err := value.Decode(it.Info.Codec, data)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", it.FQN(), err)
	}
	b, err := torchsave.Marshal(v)
	if errors.Is(err, torchsave.ErrValue) {
		return nil, &storage.NotRepresentable{FQN: it.FQN(), Why: err.Error()}
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", it.FQN(), err)
	}
	return b, nil
}

// spread distributes records over files: values one after the other, then tensors
// by size, the largest first, each into the file that is emptiest. Within a file
// values come first, and else all keep their order.
func spread(records []*record, o *options) [][]*record {
	var out [][]*record
	if o.FilePerTensor {
		for _, r := range records {
			out = append(out, []*record{r})
		}
		return out
	}
	for _, part := range distribute(records, o.FilesPerRank) {
		out = append(out, cut(part, o.MaxFileBytes)...)
	}
	return out
}

// distribute distributes records over n files, none of them empty.
func distribute(records []*record, n int) [][]*record {
	order := make([]int, len(records))
	for i := range order {
		order[i] = i
	}
	isValue := func(i int) bool { return records[i].item.Kind == plan.KindBytes }
	slices.SortStableFunc(order, func(a, b int) int {
		if isValue(a) || isValue(b) {
			return cmp.Compare(a, b) // values stand first already
		}
		return cmp.Compare(records[b].size, records[a].size)
	})
	bins, sizes := make([][]int, n), make([]int64, n)
	for k, i := range order {
		to := k % n
		if !isValue(i) {
			to = slices.Index(sizes, slices.Min(sizes))
			sizes[to] += records[i].size
		}
		bins[to] = append(bins[to], i)
	}
	var out [][]*record
	for _, b := range bins {
		slices.Sort(b)
		var f []*record
		for _, i := range b {
			f = append(f, records[i])
		}
		if len(f) > 0 {
			out = append(out, f)
		}
	}
	return out
}

// cut begins a new file wherever one would have more than so many bytes.
func cut(records []*record, most int64) [][]*record {
	var out [][]*record
	var size int64
	for _, r := range records {
		if len(out) == 0 || r.size > most-size {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], r)
		size += r.size
	}
	return out
}
