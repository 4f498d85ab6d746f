package hyper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// LayoutSuffix ends the names of layout files.
const LayoutSuffix = ".layout"

// maxLayout bounds the bytes of a layout file, which is read whole.
const maxLayout = 256 << 20

var (
	// ErrLayout reports a layout file that is none, or contradicts itself.
	ErrLayout = errors.New("invalid layout file")
	// ErrDuplicateRank reports two layout files that tell of one rank.
	ErrDuplicateRank = errors.New("rank in two layout files")
)

// Layouts say how the parameters of a model are cut, by rank and by the name of
// the parameter: what layout files hold, one rank in each.
type Layouts map[int]map[string]Param

// Param says how one parameter is cut, in hyper_parallel's words.
type Param struct {
	// Device is the length of each axis of the device matrix. Nil: the parameter
	// has no layout, and each rank has the whole of it.
	Device []int
	// TensorMap has the axes that cut each dimension; see shard.Matrix.
	TensorMap [][]int
	// Names are the names of the axes.
	Names []string
	// Ranks are the ranks of the matrix in row-major order. Nil: 0, 1, 2, ….
	Ranks []int
	// Interleaved says that an axis of the name shard.InterleavedAxis counts
	// slices within one device.
	Interleaved bool
	DType       tensor.DType
	// Shape is that of the whole parameter.
	Shape []int64
}

// Layout returns the parameter's layout by a rule of cutting, which layout files
// do not tell: hyper_parallel's older versions cut only what divides evenly, its
// newer ones balance. A parameter without a layout has none.
func (p *Param) Layout(rule shard.Rule) (l shard.Matrix, ok bool) {
	if p.Device == nil {
		return shard.Matrix{}, false
	}
	l = shard.Matrix{Device: p.Device, TensorMap: p.TensorMap, Ranks: p.Ranks, Names: p.Names, Rule: rule}
	if p.Interleaved {
		l.Interleaved = shard.InterleavedAxis
	}
	return l, true
}

// ParamOf returns the description of a tensor that is cut by m. The rule is not
// kept.
func ParamOf(m shard.Matrix, d tensor.DType, shape []int64) Param {
	return Param{
		Device: m.Device, TensorMap: m.TensorMap, Names: m.Names, Ranks: m.Ranks,
		Interleaved: m.Interleaved != "", DType: d, Shape: shape,
	}
}

// LoadLayout reads the layout file of that name. A missing one is an error that
// wraps fs.ErrNotExist, one that is none wraps ErrLayout.
func LoadLayout(ctx context.Context, store blob.Store, name string) (Layouts, error) {
	b, err := blob.ReadAll(ctx, store, name, maxLayout)
	if err != nil {
		return nil, err
	}
	l, err := DecodeLayout(b)
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", name, store, err)
	}
	return l, nil
}

// SaveLayout writes a layout file of that name, or replaces it.
func SaveLayout(ctx context.Context, store blob.Store, name string, l Layouts) error {
	b, err := EncodeLayout(l)
	if err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, store, name, b, nil)
	return err
}

// SaveLayouts writes one layout file for each rank, rank0.layout and so on.
func SaveLayouts(ctx context.Context, store blob.Store, l Layouts) error {
	for _, rank := range slices.Sorted(maps.Keys(l)) {
		if err := SaveLayout(ctx, store, fmt.Sprintf("rank%d%s", rank, LayoutSuffix), Layouts{rank: l[rank]}); err != nil {
			return err
		}
	}
	return nil
}

// CombineLayouts reads all layout files at the root of the store and puts them
// together. A rank that two of them tell of is an error that wraps
// ErrDuplicateRank. Where there is none the result is empty.
func CombineLayouts(ctx context.Context, store blob.Store) (Layouts, error) {
	all, _, err := combine(ctx, store)
	return all, err
}

// combine is CombineLayouts, and says which file each rank's layouts are from.
func combine(ctx context.Context, store blob.Store) (Layouts, map[int]string, error) {
	names, err := layoutNames(ctx, store)
	if err != nil {
		return nil, nil, err
	}
	all, from := Layouts{}, map[int]string{}
	for _, name := range names {
		l, err := LoadLayout(ctx, store, name)
		if err != nil {
			return nil, nil, err
		}
		for rank, params := range l {
			if other, ok := from[rank]; ok {
				return nil, nil, fmt.Errorf("%w: rank %d in %s and %s of %s", ErrDuplicateRank, rank, other, name, store)
			}
			all[rank], from[rank] = params, name
		}
	}
	return all, from, nil
}

// layoutNames returns the names of the layout files at the root of the store.
func layoutNames(ctx context.Context, store blob.Store) ([]string, error) {
	var out []string
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(info.Name, LayoutSuffix) && !strings.Contains(info.Name, "/") {
			out = append(out, info.Name)
		}
	}
	return out, nil
}

// cutRules are how hyper_parallel may have cut what does not divide evenly, the
// likely one first.
var cutRules = []shard.Rule{shard.Balanced, shard.Ceil}
