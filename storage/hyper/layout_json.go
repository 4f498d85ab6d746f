package hyper

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// paramJSON is a parameter in a layout file.
type paramJSON struct {
	// DeviceMatrix is what newer versions write, and MeshShape what older ones
	// do.
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

// DecodeLayout returns what a layout file says. What is no layout file is an
// error that wraps ErrLayout.
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
		return nil, fmt.Errorf("%w: something follows after the end", ErrLayout)
	}
	out := Layouts{}
	for key, params := range doc {
		rank, err := strconv.Atoi(key)
		if err != nil || rank < 0 || strconv.Itoa(rank) != key {
			return nil, fmt.Errorf("%w: %q is no rank", ErrLayout, key)
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

// param returns the parameter, if what the file says of it can be.
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
		return p, nil // the rest says nothing then
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

// orNil returns nil for a list of nothing.
func orNil[T any](list []T) []T {
	if len(list) == 0 {
		return nil
	}
	return list
}

// EncodeLayout returns the bytes of a layout file as hyper_parallel's newer
// versions write it. The error wraps ErrLayout where DecodeLayout would refuse
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
