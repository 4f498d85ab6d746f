package hyper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// LayoutSuffix ends the names of layout files.
const LayoutSuffix = ".layout"

// maxLayout bounds the bytes of a layout file, which is read whole.
const maxLayout = 256 << 20

var (
	// ErrLayout reports a layout file that is invalid.
	ErrLayout = errors.New("invalid layout file")
	// ErrDuplicateRank reports two layout files that describe the same rank.
	ErrDuplicateRank = errors.New("rank in two layout files")
)

// Layouts describe how the parameters of a model are cut, by rank and by the name of
// the parameter. A layout file holds the layouts of one rank.
type Layouts map[int]map[string]Param

// Param describes how one parameter is cut, in hyper_parallel's words.
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
	// Interleaved means that an axis of the name shard.InterleavedAxis counts
	// slices within one device.
	Interleaved bool
	DType       tensor.DType
	// Shape is the shape of the whole parameter.
	Shape []int64
}

// Layout returns the parameter's layout by a rule of cutting, which layout files do not
// record: hyper_parallel's older versions cut only dimensions that divide evenly, its newer
// ones balance. ok is false if the parameter has no layout.
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

// LoadLayout reads the layout file of that name. The error wraps
// fs.ErrNotExist if the file is missing, and ErrLayout if it is invalid.
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

// CombineLayouts reads all layout files at the root of the store and merges them. The
// error wraps ErrDuplicateRank if two of them describe the same rank. If there are no
// layout files, the result is empty.
func CombineLayouts(ctx context.Context, store blob.Store) (Layouts, error) {
	all, _, _, err := combine(ctx, store)
	return all, err
}

// combine is CombineLayouts. It also returns the name of the file of each rank's
// layouts, and all these files.
func combine(ctx context.Context, store blob.Store) (all Layouts, from map[int]string, files []storage.File, err error) {
	all, from = Layouts{}, map[int]string{}
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, nil, nil, err
		}
		if !strings.HasSuffix(info.Name, LayoutSuffix) || strings.Contains(info.Name, "/") {
			continue
		}

		l, err := LoadLayout(ctx, store, info.Name)
		if err != nil {
			return nil, nil, nil, err
		}

		for rank, params := range l {
			if other, ok := from[rank]; ok {
				return nil, nil, nil, fmt.Errorf("%w: rank %d in %s and %s of %s", ErrDuplicateRank, rank, other, info.Name, store)
			}
			all[rank], from[rank] = params, info.Name
		}

		files = append(files, storage.File{Name: info.Name, Size: info.Size, Unsummed: true})
	}

	return all, from, files, nil
}

// cutRules are the rules by which hyper_parallel may have cut lengths that do not
// divide evenly, the likely one first.
var cutRules = []shard.Rule{shard.Balanced, shard.Ceil}

// paramJSON is a parameter in a layout file.
type paramJSON struct {
	// Newer versions write DeviceMatrix, older ones MeshShape.
	DeviceMatrix []int    `json:"device_matrix,omitempty"`
	MeshShape    []int    `json:"mesh_shape,omitempty"`
	TensorMap    []axes   `json:"tensor_map,omitempty"`
	Interleaved  *bool    `json:"interleaved_parallel,omitempty"`
	AliasName    []string `json:"alias_name,omitempty"`
	RankList     []int    `json:"rank_list,omitempty"`
	Type         string   `json:"type"`
	FullShape    []int64  `json:"full_shape"`
}

// axes are the axes that cut one dimension: a number, or a list of several.
type axes []int

// UnmarshalJSON accepts both.
func (a *axes) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]int)(a))
	}
	var n int
	err := json.Unmarshal(b, &n)
	*a = axes{n}
	return err
}

// MarshalJSON writes a single axis as a number, as hyper_parallel does.
func (a axes) MarshalJSON() ([]byte, error) {
	switch len(a) {
	case 0:
		return []byte("-1"), nil
	case 1:
		return json.Marshal(a[0])
	}
	return json.Marshal([]int(a))
}

// DecodeLayout decodes a layout file. The error wraps ErrLayout.
func DecodeLayout(data []byte) (Layouts, error) {
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%w: not UTF-8", ErrLayout)
	}

	d := json.NewDecoder(bytes.NewReader(data))
	var doc map[string]map[string]paramJSON
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLayout, err)
	}

	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: there is data after the end", ErrLayout)
	}

	out := Layouts{}
	for key, params := range doc {
		rank, err := strconv.Atoi(key)
		if err != nil || rank < 0 || strconv.Itoa(rank) != key {
			return nil, fmt.Errorf("%w: %q is not a rank", ErrLayout, key)
		}

		out[rank] = make(map[string]Param, len(params))
		for name, j := range params {
			p, err := j.param(rank)
			if err != nil {
				return nil, fmt.Errorf("%w: rank %d: %q: %w", ErrLayout, rank, name, err)
			}
			if err := meta.CheckFQN(name); err != nil {
				return nil, fmt.Errorf("%w: rank %d: %w", ErrLayout, rank, err)
			}
			out[rank][name] = p
		}
	}

	return out, nil
}

// param returns the parameter, or an error if its description is invalid.
func (j *paramJSON) param(rank int) (Param, error) {
	d, err := tensor.ParseDType(j.Type)
	if err != nil {
		return Param{}, err
	}

	if j.FullShape == nil {
		return Param{}, fmt.Errorf("no full_shape")
	}
	if _, err := tensor.NumBytes(d, j.FullShape); err != nil {
		return Param{}, err
	}
	if len(j.DeviceMatrix) > 0 && len(j.MeshShape) > 0 {
		return Param{}, fmt.Errorf("both device_matrix and mesh_shape")
	}

	p := Param{DType: d, Shape: j.FullShape}
	if p.Device = append(j.DeviceMatrix, j.MeshShape...); len(p.Device) == 0 {
		p.Device = nil
		return p, nil // the rest has no meaning then
	}

	p.Names, p.Ranks = orNil(j.AliasName), orNil(j.RankList)
	p.Interleaved = j.Interleaved != nil && *j.Interleaved

	for _, a := range j.TensorMap {
		if len(a) == 0 {
			a = axes{-1}
		}
		p.TensorMap = append(p.TensorMap, a)
	}

	if l, ok := p.Layout(cutRules[0]); ok {
		_, err = l.Parts(p.Shape, rank)
	}
	return p, err
}

// orNil returns nil for an empty list.
func orNil[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

// EncodeLayout returns the bytes of a layout file as hyper_parallel's newer
// versions write it. The error wraps ErrLayout if DecodeLayout would refuse
// them.
func EncodeLayout(l Layouts) ([]byte, error) {
	doc := make(map[string]map[string]paramJSON, len(l))
	for rank, params := range l {
		if rank < 0 {
			return nil, fmt.Errorf("%w: rank %d", ErrLayout, rank)
		}

		out := make(map[string]paramJSON, len(params))
		for name, p := range params {
			j := jsonOf(&p)
			if _, err := j.param(rank); err != nil {
				return nil, fmt.Errorf("%w: rank %d: %q: %w", ErrLayout, rank, name, err)
			}
			if err := meta.CheckFQN(name); err != nil {
				return nil, fmt.Errorf("%w: rank %d: %w", ErrLayout, rank, err)
			}
			out[name] = *j
		}

		doc[strconv.Itoa(rank)] = out
	}

	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLayout, err)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n")), nil
}

func jsonOf(p *Param) *paramJSON {
	j := &paramJSON{
		DeviceMatrix: p.Device, AliasName: p.Names, RankList: p.Ranks,
		Type: "torch." + p.DType.String(), FullShape: append([]int64{}, p.Shape...),
	}
	if p.Device == nil {
		return j
	}

	j.Interleaved = &p.Interleaved
	for _, a := range p.TensorMap {
		j.TensorMap = append(j.TensorMap, a)
	}

	return j
}
