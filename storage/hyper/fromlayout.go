package hyper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// fromLayouts describes the checkpoint of layout files and the files of tensors
// beside them. It returns nil if there are no layout files.
func fromLayouts(ctx context.Context, store blob.Store) (*reading.Source, error) {
	layouts, from, files, err := combine(ctx, store)
	if errors.Is(err, ErrLayout) || errors.Is(err, ErrDuplicateRank) {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if err != nil {
		return nil, err
	}
	if len(layouts) == 0 {
		return nil, nil
	}
	b := &builder{layouts: layouts, a: newArchive(store), data: map[int]string{}}
	if err := b.findData(ctx, store, from); err != nil {
		return nil, err
	}
	names := slices.Compact(slices.Sorted(maps.Values(b.data)))
	if err := b.a.open(ctx, names); err != nil {
		return nil, err
	}
	md, err := b.metadata()
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, store, err)
	}
	return b.a.source(md, files, names), nil
}

// builder makes metadata of layouts.
type builder struct {
	layouts Layouts
	a       *archive
	data    map[int]string // the file of each rank's tensors
}

// findData finds each rank's file of tensors: under hyper_parallel's name, or
// the one with the name of the layout file, if that describes this rank alone.
func (b *builder) findData(ctx context.Context, store blob.Store, from map[int]string) error {
	alone := map[string]int{}
	for _, name := range from {
		alone[name]++
	}
	for rank, name := range from {
		tries := []string{dataFileName(rank, "", 0, tensorSuffix)}
		if alone[name] == 1 {
			tries = append(tries, strings.TrimSuffix(name, LayoutSuffix)+tensorSuffix)
		}
		for _, try := range tries {
			_, err := store.Stat(ctx, try)
			if err == nil {
				b.data[rank] = try
				break
			}
			if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if b.data[rank] == "" {
			return fmt.Errorf("%w: %s has the layout of rank %d in %s, but no file of its tensors: %s", storage.ErrIncomplete, store, rank, name, strings.Join(tries, " or "))
		}
	}
	return nil
}

// metadata describes all parameters.
func (b *builder) metadata() (*meta.Metadata, error) {
	ranks := slices.Sorted(maps.Keys(b.layouts))
	params := map[string][]int{} // the ranks that have each
	for _, r := range ranks {
		for name := range b.layouts[r] {
			params[name] = append(params[name], r)
		}
	}
	md := &meta.Metadata{Storage: meta.Storage{WorldSize: len(ranks), Version: "hyper_parallel layout"}}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		t, err := b.tensor(name, params[name])
		if err != nil {
			return nil, plan.Named(name, err)
		}
		md.Entries = append(md.Entries, meta.Entry{FQN: name, Tensor: t})
	}
	return md, nil
}

// tensor describes one parameter from the shares of some ranks. Of equal shares
// the share of the lowest rank counts.
func (b *builder) tensor(name string, ranks []int) (*meta.Tensor, error) {
	first := b.layouts[ranks[0]][name]
	t := &meta.Tensor{Properties: meta.Properties{DType: first.DType}, Shape: first.Shape}
	seen := map[string]bool{}
	for _, r := range ranks {
		p := b.layouts[r][name]
		if p.DType != t.DType || !slices.Equal(p.Shape, t.Shape) {
			return nil, fmt.Errorf("rank %d has %v %v, rank %d has %v %v", ranks[0], t.DType, t.Shape, r, p.DType, p.Shape)
		}
		c := b.a.files[b.data[r]]
		if c.err != nil {
			return nil, c.err
		}
		h, ok := c.tensors[name]
		if !ok {
			continue
		}
		parts, err := partsOf(&p, r, &h)
		if err != nil {
			return nil, err
		}
		for _, part := range parts {
			if at := part.Box.String(); !seen[at] {
				seen[at] = true
				b.add(name, t, r, &h, part)
			}
		}
	}
	if len(t.Chunks) == 0 {
		return nil, fmt.Errorf("no rank has any of it")
	}
	return t, nil
}

// partsOf returns the parts of a parameter that a rank's tensor holds. The layout file
// does not record how uneven lengths were cut, but the tensor's shape shows it.
func partsOf(p *Param, rank int, h *held) ([]shard.Part, error) {
	if p.DType != h.region.DType {
		return nil, fmt.Errorf("rank %d has %v, its layout says %v", rank, h.region.DType, p.DType)
	}
	for _, rule := range cutRules {
		l, ok := p.Layout(rule)
		if !ok {
			if !slices.Equal(h.shape, p.Shape) {
				break
			}
			return []shard.Part{{Box: tensor.Whole(p.Shape), Local: make([]int64, len(p.Shape))}}, nil
		}
		local, err := l.LocalShape(p.Shape, rank)
		if err != nil {
			return nil, err
		}
		if slices.Equal(local, h.shape) {
			return l.Parts(p.Shape, rank)
		}
	}
	return nil, fmt.Errorf("rank %d has %v, which is no share of %v by its layout", rank, h.shape, p.Shape)
}

// add adds a chunk.
func (b *builder) add(name string, t *meta.Tensor, rank int, h *held, part shard.Part) {
	at := h.part(part.Local, part.Box)
	b.a.parts[chunkKey{name, len(t.Chunks)}] = at
	t.Chunks = append(t.Chunks, part.Box)
	t.Locs = append(t.Locs, meta.Location{File: b.data[rank], Offset: at.Offset, Length: at.End - at.Offset})
}
