package dcpfiles

import (
	"encoding/binary"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// readPlaces reads the location of each chunk and value.
func (d *decoder) readPlaces(c pickle.Cell) {
	if isNone(c) {
		return
	}
	pairs, ok := d.Dict(c)
	if !ok {
		d.fail("storage_data is %s", d.describe(c))
	}
	d.files = map[string]int32{}
	d.fileIDs = make([]int32, d.NumStrs())
	d.details = map[pickle.Cell]*meta.Detail{}
	for i := 0; i < len(pairs); i += 2 {
		d.place(pairs[i], pairs[i+1])
	}
}

func (d *decoder) place(index, info pickle.Cell) {
	if class, _ := index.Class(); class != classIndex {
		d.fail("an index of storage_data is %s", d.describe(index))
	}
	if class, _ := info.Class(); class != classPlace {
		d.fail("a location in storage_data is %s", d.describe(info))
	}
	f, _ := d.Fields(index)
	n := d.find(f[0])
	e := &d.entries[n]
	d.name = e.FQN
	if e.Bytes != nil {
		d.location(&e.Bytes.Loc, info)
		e.Bytes.Size = e.Bytes.Loc.Length
	} else {
		i := d.findChunk(n, get(f, 1), get(f, 2))
		loc := &e.Tensor.Locs[i]
		d.location(loc, info)
		if loc.Length < 0 {
			var err error
			if loc.Length, err = tensor.NumBytes(e.Tensor.DType, e.Tensor.Chunks[i].Sizes); err != nil {
				d.fail("%w", err)
			}
		}
	}
	d.name = ""
}

// find returns the index of the entry with that name.
func (d *decoder) find(name pickle.Cell) int {
	id, ok := d.StrID(name)
	if !ok {
		d.fail("a name in storage_data is %s", d.describe(name))
	}
	if d.byID[id] == 0 {
		text, _ := d.Text(name)
		n, ok := d.byName[string(text)]
		if !ok {
			d.fail("storage_data has %q, which state_dict_metadata lacks", text)
		}
		d.byID[id] = int32(n) + 1
	}
	return int(d.byID[id]) - 1
}

// findChunk returns the chunk at the offset. It tries the hint first.
func (d *decoder) findChunk(entry int, offset, hint pickle.Cell) int {
	t := d.entries[entry].Tensor
	if isNone(offset) && len(t.Chunks) == 1 {
		return 0
	}
	at := d.ints(offset, "an offset in storage_data")
	if h, ok := hint.Int(); ok && h >= 0 && h < int64(len(t.Chunks)) && slices.Equal(t.Chunks[h].Offsets, at) {
		return int(h)
	}
	m := d.chunks[entry]
	if m == nil {
		d.Charge(chunkBytes * len(t.Chunks))
		m = make(map[string]int, len(t.Chunks))
		for i, c := range t.Chunks {
			m[key(c.Offsets)] = i
		}
		d.chunks[entry] = m
	}
	i, ok := m[key(at)]
	if !ok {
		d.fail("storage_data has a chunk at %v, which state_dict_metadata lacks", at)
	}
	return i
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
func (d *decoder) location(l *meta.Location, c pickle.Cell) {
	f, _ := d.Fields(c)
	var ok bool
	if l.File, ok = d.file(f[fieldFile]); !ok {
		d.fail("relative_path is %s", d.describe(get(f, fieldFile)))
	}
	if l.Offset, ok = f[fieldOffset].Int(); !ok {
		d.fail("offset is %s", d.describe(get(f, fieldOffset)))
	}
	if l.Length, ok = f[fieldLength].Int(); !ok {
		d.fail("length is %s", d.describe(get(f, fieldLength)))
	}
	if l.Offset < 0 || l.Length < -1 || l.Length < 0 && d.doc.Dialect == Torch {
		d.fail("at %d+%d in %q", l.Offset, l.Length, l.File)
	}
	l.Detail = d.detail(get(f, fieldTransforms), get(f, fieldKey))
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
func (d *decoder) detail(transforms, tensorKey pickle.Cell) *meta.Detail {
	if isNone(transforms) && isNone(tensorKey) {
		return nil
	}
	if det, ok := d.details[transforms]; ok && isNone(tensorKey) {
		return det
	}
	det := &meta.Detail{Key: d.optional(tensorKey, "tensor_key")}
	if !isNone(transforms) {
		det.Transforms = d.strings(transforms, "transform_descriptors")
	}
	if isNone(tensorKey) {
		d.details[transforms] = det
	}
	return det
}

// settle checks that everything has a location. It drops duplicate and empty
// chunks without one.
func (d *decoder) settle() {
	for i := range d.entries {
		e := &d.entries[i]
		d.name = e.FQN
		switch b := e.Bytes; {
		case b == nil:
			d.settleTensor(e.Tensor)
		case b.Loc.File == "":
			d.fail("no location in storage_data")
		case b.Loc.Length < 0:
			d.fail("a length of %d", b.Loc.Length)
		}
	}
	d.name = ""
}

func (d *decoder) settleTensor(t *meta.Tensor) {
	if !slices.ContainsFunc(t.Locs, func(l meta.Location) bool { return l.File == "" }) {
		return
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
				d.fail("the chunk at %v has no location in storage_data", c.Offsets)
			}
			continue
		}
		t.Chunks[n], t.Locs[n] = t.Chunks[i], t.Locs[i]
		n++
	}
	t.Chunks, t.Locs = t.Chunks[:n], t.Locs[:n]
}
