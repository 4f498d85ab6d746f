package zarr

import (
	"encoding/json"
	"slices"
	"strings"
)

// metadata2 is the content of .zarray.
type metadata2 struct {
	Format     int                  `json:"zarr_format"`
	Shape      []int64              `json:"shape"`
	Chunks     []int64              `json:"chunks"`
	DType      json.RawMessage      `json:"dtype"`
	Order      string               `json:"order"`
	Compressor *struct{ ID string } `json:"compressor"`
	Filters    json.RawMessage      `json:"filters"`
	Fill       json.RawMessage      `json:"fill_value"`
	Separator  *string              `json:"dimension_separator"`
}

// Parse2 decodes the metadata of an array of zarr 2.
func Parse2(b []byte) (*Array, error) {
	var m metadata2
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, malformed("%s: %w", Metadata2, err)
	}
	if m.Format != 2 {
		return nil, unsupported("%s has the format %d; want 2", Metadata2, m.Format)
	}

	a := &Array{Version: 2, Shape: m.Shape, Chunk: m.Chunks, separator: ".", single: "0"}
	var err error
	if a.Type, err = type2(m.DType); err != nil {
		return nil, err
	}
	if m.Separator != nil {
		a.separator = *m.Separator
	}

	switch {
	case a.separator != "." && a.separator != "/":
		return nil, malformed("dimension_separator %.20q", a.separator)
	case !null(m.Filters) && string(m.Filters) != "[]":
		return nil, unsupported("the filters %.100s", m.Filters)
	case m.Compressor != nil && m.Compressor.ID != "zstd":
		return nil, unsupported("the compressor %.100q", m.Compressor.ID)
	case m.Order == "F":
		for d := range a.Shape {
			a.Codec.Order = append(a.Codec.Order, len(a.Shape)-1-d)
		}
	case m.Order != "C":
		return nil, malformed("order %.20q", m.Order)
	}

	a.Codec.Zstd = m.Compressor != nil
	a.setFill(m.Fill)
	return a, a.check()
}

// type2 returns the type of that name in zarr 2: a name of NumPy, with the byte order, or of
// TensorStore.
func type2(raw json.RawMessage) (Type, error) {
	var name string
	if err := json.Unmarshal(raw, &name); err != nil || name == "" {
		return Type{}, unsupported("the dtype %.100s", raw)
	}

	t, ok := types[name]
	if order := name[0]; strings.IndexByte("<>|", order) >= 0 {
		t, ok = types[numpyTypes[name[1:]]]
		if ok && t.DType.Size() > 1 && order != '<' {
			return Type{}, unsupported("the dtype %q: want little-endian", name)
		}
	}
	if !ok {
		return Type{}, unsupported("the dtype %.100q", name)
	}
	t.Name = name
	return t, nil
}

// named is an extension of zarr 3: a name, or an object with a name and a configuration.
type named struct {
	Name          string          `json:"name"`
	Configuration json.RawMessage `json:"configuration"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *named) UnmarshalJSON(b []byte) error {
	if json.Unmarshal(b, &n.Name) == nil {
		return nil
	}
	type plain named
	return json.Unmarshal(b, (*plain)(n))
}

// configure decodes the configuration, which may be absent.
func (n *named) configure(into any) error {
	if null(n.Configuration) {
		return nil
	}
	if err := json.Unmarshal(n.Configuration, into); err != nil {
		return malformed("the configuration of %.100q: %w", n.Name, err)
	}
	return nil
}

// metadata3 is the content of zarr.json.
type metadata3 struct {
	Format       int             `json:"zarr_format"`
	Node         string          `json:"node_type"`
	Shape        []int64         `json:"shape"`
	DType        named           `json:"data_type"`
	Grid         named           `json:"chunk_grid"`
	Keys         named           `json:"chunk_key_encoding"`
	Codecs       []named         `json:"codecs"`
	Fill         json.RawMessage `json:"fill_value"`
	Transformers []named         `json:"storage_transformers"`
}

// Parse3 decodes the metadata of an array of zarr 3.
func Parse3(b []byte) (*Array, error) {
	var m metadata3
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, malformed("%s: %w", Metadata3, err)
	}

	a := &Array{Version: 3, Shape: m.Shape}
	var ok bool
	a.Type, ok = types[m.DType.Name]
	a.Type.Name = m.DType.Name
	switch {
	case m.Format != 3:
		return nil, unsupported("%s has the format %d; want 3", Metadata3, m.Format)
	case m.Node != "array":
		return nil, unsupported("the node type %.100q; want array", m.Node)
	case !ok:
		return nil, unsupported("the data type %.100q", m.DType.Name)
	case len(m.Transformers) > 0:
		return nil, unsupported("the storage transformer %.100q", m.Transformers[0].Name)
	case m.Grid.Name != "regular":
		return nil, unsupported("the chunk grid %.100q", m.Grid.Name)
	}

	var g struct {
		Shape []int64 `json:"chunk_shape"`
	}
	if err := m.Grid.configure(&g); err != nil {
		return nil, err
	}
	a.Chunk = g.Shape
	if err := a.check(); err != nil {
		return nil, err
	}
	if err := a.setKeys(&m.Keys); err != nil {
		return nil, err
	}
	a.setFill(m.Fill)
	return a, a.setCodecs(m.Codecs)
}

// setKeys sets the encoding of keys.
func (a *Array) setKeys(n *named) error {
	switch n.Name {
	case "default":
		a.separator, a.single = "/", "c"
	case "v2":
		a.separator, a.single = ".", "0"
	default:
		return unsupported("the chunk key encoding %.100q", n.Name)
	}

	var c struct {
		Separator string `json:"separator"`
	}
	if err := n.configure(&c); err != nil {
		return err
	}
	switch c.Separator {
	case "":
	case ".", "/":
		a.separator = c.Separator
	default:
		return malformed("the separator %.20q", c.Separator)
	}

	if n.Name == "default" {
		a.prefix = "c" + a.separator
	}
	return nil
}

// setCodecs sets the codecs of a cell: sharding_indexed, or the codecs of a chunk.
func (a *Array) setCodecs(list []named) (err error) {
	if len(list) == 0 || list[0].Name != "sharding_indexed" {
		a.Codec, err = a.codec(list)
		return err
	}
	if len(list) > 1 {
		return unsupported("the codec %.100q after sharding_indexed", list[1].Name)
	}

	var c struct {
		Shape  []int64 `json:"chunk_shape"`
		Codecs []named `json:"codecs"`
		Index  []named `json:"index_codecs"`
		At     string  `json:"index_location"`
	}
	if err := list[0].configure(&c); err != nil {
		return err
	}

	s := &Shards{Chunk: c.Shape, AtStart: c.At == "start"}
	switch {
	case c.At != "" && c.At != "start" && c.At != "end":
		return malformed("index_location %.20q", c.At)
	case len(s.Chunk) != len(a.Chunk):
		return malformed("shards of %v with inner chunks of %v", a.Chunk, s.Chunk)
	}
	if err := checkChunk(a.Type.DType, s.Chunk); err != nil {
		return err
	}
	for d, n := range a.Chunk {
		if n%s.Chunk[d] != 0 {
			return malformed("inner chunks of %v do not divide shards of %v", s.Chunk, a.Chunk)
		}
	}

	if s.Codec, err = a.codec(c.Codecs); err != nil {
		return err
	}
	switch names := codecNames(c.Index); {
	case slices.Equal(names, []string{"bytes", "crc32c"}):
		s.Sum = true
	case !slices.Equal(names, []string{"bytes"}):
		return unsupported("the index codecs %.100q", names)
	}
	if err := littleEndian(&c.Index[0]); err != nil {
		return err
	}
	a.Shards = s
	return nil
}

func codecNames(list []named) []string {
	out := make([]string, len(list))
	for i, n := range list {
		out[i] = n.Name
	}
	return out
}

// codec decodes the codecs of a chunk: any number of transpose, bytes, and perhaps zstd.
func (a *Array) codec(list []named) (c Codec, err error) {
	for len(list) > 0 && list[0].Name == "transpose" {
		if c.Order != nil {
			return c, unsupported("two codecs transpose")
		}
		if c.Order, err = transposed(&list[0], len(a.Shape)); err != nil {
			return c, err
		}
		list = list[1:]
	}

	names := codecNames(list)
	switch {
	case slices.Equal(names, []string{"bytes", "zstd"}):
		c.Zstd = true
	case !slices.Equal(names, []string{"bytes"}):
		return c, unsupported("the codecs %.100q", names)
	}
	return c, littleEndian(&list[0])
}

// transposed returns the order of the dimensions of a codec transpose.
func transposed(n *named, dims int) ([]int, error) {
	var c struct {
		Order []int `json:"order"`
	}
	if err := n.configure(&c); err != nil {
		return nil, err
	}
	sorted := slices.Sorted(slices.Values(c.Order))
	for i, d := range sorted {
		if i != d {
			return nil, malformed("the order %v of transpose", c.Order)
		}
	}
	if len(sorted) != dims {
		return nil, malformed("the order %v of transpose for %d dimensions", c.Order, dims)
	}
	return c.Order, nil
}

// littleEndian checks the configuration of the codec bytes.
func littleEndian(n *named) error {
	var c struct {
		Endian string `json:"endian"`
	}
	if err := n.configure(&c); err != nil {
		return err
	}
	if c.Endian != "" && c.Endian != "little" {
		return unsupported("the byte order %.20q", c.Endian)
	}
	return nil
}
