package inspect

import (
	"encoding/json"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Columns describes many names compactly: a column for each property, with an element for
// each name.
type Columns struct {
	Names []string `json:"names"`
	// DTypes and Shapes are the different dtypes and shapes of the tensors. DType and Shape
	// are the places of those of each name, -1 for an object.
	DTypes []string  `json:"dtypes"`
	DType  []int32   `json:"dtype"`
	Shapes [][]int64 `json:"shapes"`
	Shape  []int32   `json:"shape"`
	// Bytes are the sizes as in Item, and Chunks the numbers of chunks.
	Bytes  []int64 `json:"bytes"`
	Chunks []int32 `json:"chunks"`
	// Roles are the roles of the names.
	Roles []Role `json:"role"`
	// Tied has, by the place of the name, the first name of a tensor that the checkpoint
	// stores once under several names.
	Tied map[int]string `json:"tied"`
	// Values has, by the place of the name, the first 80 bytes of an object as Repr prints it,
	// if the object is part of the index.
	Values map[int]string `json:"values"`
}

// columnRepr is the limit of the reprs in Columns.
const columnRepr = 80

// NewColumns describes entries, which are in the order of their names.
func NewColumns(entries []*meta.Entry) *Columns {
	n := len(entries)
	c := &Columns{
		Names: make([]string, n), DTypes: []string{}, DType: make([]int32, n), Shapes: [][]int64{}, Shape: make([]int32, n),
		Bytes: make([]int64, n), Chunks: make([]int32, n), Roles: make([]Role, n), Tied: map[int]string{}, Values: map[int]string{},
	}

	dtypes, shapes := map[tensor.DType]int32{}, map[string]int32{}
	var key []byte
	for i, e := range entries {
		c.Names[i], c.Bytes[i], c.DType[i], c.Shape[i], c.Chunks[i], c.Roles[i] = e.FQN, e.NumBytes(), -1, -1, 1, RoleOf(e)
		if e.Tensor == nil {
			c.addValue(i, e.Bytes)
			continue
		}

		d, ok := dtypes[e.Tensor.DType]
		if !ok {
			d = int32(len(c.DTypes))
			dtypes[e.Tensor.DType] = d
			c.DTypes = append(c.DTypes, e.Tensor.DType.String())
		}

		key = appendInts(key[:0], e.Tensor.Shape)
		s, ok := shapes[string(key)]
		if !ok {
			s = int32(len(c.Shapes))
			shapes[string(key)] = s
			c.Shapes = append(c.Shapes, nonNil(slices.Clone(e.Tensor.Shape)))
		}
		c.DType[i], c.Shape[i], c.Chunks[i] = d, s, int32(len(e.Tensor.Chunks))
	}

	ties := tiesOf(entries)
	if len(ties) > 0 {
		for i, name := range c.Names {
			if first, ok := ties[name]; ok {
				c.Tied[i] = first
			}
		}
	}
	return c
}

// tiesOf returns Metadata.Ties of entries.
func tiesOf(entries []*meta.Entry) map[string]string {
	md := meta.Metadata{Entries: make([]meta.Entry, len(entries))}
	for i, e := range entries {
		md.Entries[i] = *e
	}
	return md.Ties()
}

func (c *Columns) addValue(i int, b *meta.Bytes) {
	if b == nil || b.Inline == nil {
		return
	}
	if v, err := value.Decode(b.Codec, b.Inline); err == nil {
		c.Values[i] = Repr(v, columnRepr)
	}
}

// MarshalJSON implements json.Marshaler. AppendJSON is faster.
func (c *Columns) MarshalJSON() ([]byte, error) { return c.AppendJSON(nil), nil }

var _ json.Marshaler = (*Columns)(nil)

// AppendJSON appends the columns as JSON to b. Names that are not UTF-8 have U+FFFD for each
// wrong byte, and no character has a meaning in HTML.
func (c *Columns) AppendJSON(b []byte) []byte {
	size := 256
	for _, n := range c.Names {
		size += len(n) + 24
	}

	b = slices.Grow(b, size)
	b = appendList(append(b, `{"names":`...), c.Names, appendJSONString)
	b = appendList(append(b, `,"dtypes":`...), c.DTypes, appendJSONString)
	b = appendInts(append(b, `,"dtype":`...), c.DType)
	b = appendList(append(b, `,"shapes":`...), c.Shapes, appendInts[int64])
	b = appendInts(append(b, `,"shape":`...), c.Shape)
	b = appendInts(append(b, `,"bytes":`...), c.Bytes)
	b = appendInts(append(b, `,"chunks":`...), c.Chunks)
	b = appendInts(append(b, `,"role":`...), c.Roles)
	b = appendMap(append(b, `,"tied":`...), c.Tied)
	b = appendMap(append(b, `,"values":`...), c.Values)
	return append(b, '}')
}

// appendList appends a list. one appends an element.
func appendList[E any](b []byte, v []E, one func(b []byte, e E) []byte) []byte {
	b = append(b, '[')
	for i, e := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = one(b, e)
	}
	return append(b, ']')
}

func appendInts[E ~int32 | int64](b []byte, v []E) []byte {
	return appendList(b, v, func(b []byte, e E) []byte { return strconv.AppendInt(b, int64(e), 10) })
}

// appendMap appends a map in the order of its keys.
func appendMap(b []byte, m map[int]string) []byte {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}

	slices.Sort(keys)
	b = append(b, '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendInt(append(b, '"'), int64(k), 10), `":`...)
		b = appendJSONString(b, m[k])
	}

	return append(b, '}')
}

// appendJSONString appends s as a string of JSON. It escapes the same characters as
// encoding/json.
func appendJSONString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0 // of the bytes that are not yet appended
	for i := 0; i < len(s); {
		c, n := rune(s[i]), 1
		if c >= utf8.RuneSelf {
			c, n = utf8.DecodeRuneInString(s[i:])
		}

		i += n
		var escaped string
		switch {
		case c == '"':
			escaped = `\"`
		case c == '\\':
			escaped = `\\`
		case c == utf8.RuneError && n == 1:
			escaped = `\ufffd`
		case c < ' ' || c == '<' || c == '>' || c == '&':
			escaped = `\u00` + string(hex[c>>4]) + string(hex[c&15])
		case c == '\u2028' || c == '\u2029':
			escaped = `\u202` + string(hex[c&15])
		default:
			continue
		}

		b = append(append(b, s[start:i-n]...), escaped...)
		start = i
	}

	return append(append(b, s[start:]...), '"')
}
