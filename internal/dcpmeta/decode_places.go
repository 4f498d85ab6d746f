package dcpmeta

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// readPlaces reads the location of each chunk and value.
func (d *decoder) readPlaces(c pickle.Cell) error {
	if isNone(c) {
		return nil
	}
	pairs, ok := d.Dict(c)
	if !ok {
		return fmt.Errorf("storage_data is %s", d.describe(c))
	}
	d.files = map[string]int32{}
	d.fileIDs = make([]int32, d.NumStrs())
	d.details = map[pickle.Cell]*meta.Detail{}
	for i := 0; i < len(pairs); i += 2 {
		if err := d.place(pairs[i], pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) place(index, info pickle.Cell) error {
	if class, _ := index.Class(); class != classIndex {
		return fmt.Errorf("an index of storage_data is %s", d.describe(index))
	}
	if class, _ := info.Class(); class != classPlace {
		return fmt.Errorf("a location in storage_data is %s", d.describe(info))
	}
	f, _ := d.Fields(index)
	n, err := d.find(f[0])
	if err != nil {
		return err
	}
	e := &d.entries[n]
	if e.Bytes != nil {
		err = d.location(&e.Bytes.Loc, info)
		e.Bytes.Size = e.Bytes.Loc.Length
	} else {
		err = d.placeChunk(n, f, info)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	return nil
}

// find returns the index of the entry with that name.
func (d *decoder) find(name pickle.Cell) (int, error) {
	id, ok := d.StrID(name)
	if !ok {
		return 0, fmt.Errorf("a name in storage_data is %s", d.describe(name))
	}
	if n := d.byID[id]; n > 0 {
		return int(n) - 1, nil
	}
	text, _ := d.Text(name)
	n, ok := d.byName[string(text)]
	if !ok {
		return 0, fmt.Errorf("storage_data has %q, which state_dict_metadata lacks", text)
	}
	d.byID[id] = int32(n) + 1
	return n, nil
}

func (d *decoder) placeChunk(entry int, index []pickle.Cell, info pickle.Cell) error {
	t := d.entries[entry].Tensor
	i, err := d.findChunk(entry, get(index, 1), get(index, 2))
	if err != nil {
		return err
	}
	loc := &t.Locs[i]
	if err := d.location(loc, info); err != nil {
		return err
	}
	if loc.Length < 0 {
		loc.Length, err = tensor.NumBytes(t.DType, t.Chunks[i].Sizes)
	}
	return err
}

// findChunk returns the chunk at the offset. It tries the hint first.
func (d *decoder) findChunk(entry int, offset, hint pickle.Cell) (int, error) {
	t := d.entries[entry].Tensor
	if isNone(offset) && len(t.Chunks) == 1 {
		return 0, nil
	}
	at, err := d.ints(offset, "an offset in storage_data")
	if err != nil {
		return 0, err
	}
	if h, ok := hint.Int(); ok && h >= 0 && h < int64(len(t.Chunks)) && slices.Equal(t.Chunks[h].Offsets, at) {
		return int(h), nil
	}
	m := d.chunks[entry]
	if m == nil {
		if err := d.Charge(chunkBytes * len(t.Chunks)); err != nil {
			return 0, err
		}
		m = make(map[string]int, len(t.Chunks))
		for i, c := range t.Chunks {
			m[key(c.Offsets)] = i
		}
		d.chunks[entry] = m
	}
	i, ok := m[key(at)]
	if !ok {
		return 0, fmt.Errorf("storage_data has a chunk at %v, which state_dict_metadata lacks", at)
	}
	return i, nil
}

// key returns v as a map key.
func key(v []int64) string {
	b := make([]byte, 0, 8*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, uint64(x))
	}
	return string(b)
}

// location reads a StorageInfo. The length is -1 if hyper_parallel leaves it to
// the file.
func (d *decoder) location(l *meta.Location, c pickle.Cell) error {
	f, _ := d.Fields(c)
	var ok bool
	if l.File, ok = d.file(f[fieldFile]); !ok {
		return fmt.Errorf("relative_path is %s", d.describe(get(f, fieldFile)))
	}
	if l.Offset, ok = f[fieldOffset].Int(); !ok {
		return fmt.Errorf("offset is %s", d.describe(get(f, fieldOffset)))
	}
	if l.Length, ok = f[fieldLength].Int(); !ok {
		return fmt.Errorf("length is %s", d.describe(get(f, fieldLength)))
	}
	if l.Offset < 0 || l.Length < -1 || l.Length < 0 && d.doc.Dialect == Torch {
		return fmt.Errorf("at %d+%d in %q", l.Offset, l.Length, l.File)
	}
	var err error
	l.Detail, err = d.detail(get(f, fieldTransforms), get(f, fieldKey))
	return err
}

// file returns the name of a file. Equal names share one string.
func (d *decoder) file(c pickle.Cell) (string, bool) {
	id, ok := d.StrID(c)
	if !ok {
		return "", false
	}
	if n := d.fileIDs[id]; n > 0 {
		return d.fileNames[n-1], true
	}
	text, _ := d.Text(c)
	if len(text) == 0 {
		return "", false
	}
	n, ok := d.files[string(text)]
	if !ok {
		d.fileNames = append(d.fileNames, string(text))
		n = int32(len(d.fileNames))
		d.files[d.fileNames[n-1]] = n
	}
	d.fileIDs[id] = n
	return d.fileNames[n-1], true
}

// detail reads the rare properties of a location. Locations in one file often
// share them.
func (d *decoder) detail(transforms, tensorKey pickle.Cell) (*meta.Detail, error) {
	if isNone(transforms) && isNone(tensorKey) {
		return nil, nil
	}
	if det, ok := d.details[transforms]; ok && isNone(tensorKey) {
		return det, nil
	}
	var det meta.Detail
	var err error
	if !isNone(transforms) {
		if det.Transforms, err = d.strings(transforms, "transform_descriptors"); err != nil {
			return nil, err
		}
	}
	if det.Key, err = d.optional(tensorKey, "tensor_key"); err != nil {
		return nil, err
	}
	if isNone(tensorKey) {
		d.details[transforms] = &det
	}
	return &det, nil
}

// settle checks that everything has a location. It drops duplicate and empty
// chunks without one.
func (d *decoder) settle() error {
	for i := range d.entries {
		e := &d.entries[i]
		if e.Bytes != nil && e.Bytes.Loc.File == "" {
			return fmt.Errorf("%q has no location in storage_data", e.FQN)
		}
		if e.Bytes != nil && e.Bytes.Loc.Length < 0 {
			return fmt.Errorf("%q: a length of %d", e.FQN, e.Bytes.Loc.Length)
		}
		if e.Tensor == nil {
			continue
		}
		if err := settleTensor(e.Tensor); err != nil {
			return fmt.Errorf("%q: %w", e.FQN, err)
		}
	}
	return nil
}

func settleTensor(t *meta.Tensor) error {
	homeless := slices.IndexFunc(t.Locs, func(l meta.Location) bool { return l.File == "" })
	if homeless < 0 {
		return nil
	}
	placed := map[string]int{}
	for i := range t.Locs {
		if t.Locs[i].File != "" {
			placed[key(t.Chunks[i].Offsets)] = i
		}
	}
	n := 0
	for i, c := range t.Chunks {
		if t.Locs[i].File == "" {
			j, ok := placed[key(c.Offsets)]
			if !c.Empty() && (!ok || !c.Equal(t.Chunks[j])) {
				return fmt.Errorf("the chunk at %v has no location in storage_data", c.Offsets)
			}
			continue
		}
		t.Chunks[n], t.Locs[n] = t.Chunks[i], t.Locs[i]
		n++
	}
	t.Chunks, t.Locs = t.Chunks[:n], t.Locs[:n]
	return nil
}
