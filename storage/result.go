package storage

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// WriteResults are the places of the items that one rank wrote.
type WriteResults struct {
	// Items holds one result for each item of the rank's final plan, in any
	// order.
	Items []WriteResult
	// Files are the files that the rank wrote.
	Files []File
	// Coded are the files that items refer to and that are stored in another form, in files
	// of Files.
	Coded []Coded
	// Phases are the phases of the rank so far. Their times count from the moment at
	// which the ranks agreed on the plan, so they may be negative. The protocol sets
	// them.
	Phases []meta.Phase
	// Copies identify the contents of the tensors of this rank that other ranks hold too.
	// The protocol sets and compares them.
	Copies []CopySum
}

// CopySum is the checksum of a tensor, or of a box of one, that several ranks hold.
type CopySum struct {
	// Key identifies the name and the box.
	Key uint64
	Sum uint32
}

// WriteResult is the place of the bytes of one item.
type WriteResult struct {
	Index meta.Index
	// Inline holds the bytes of a small value that is stored in the index.
	Inline []byte
	// Loc is where the bytes are. The data that a writer adds by SetStorageData reaches Finish,
	// and the reader finds it in the metadata.
	Loc meta.Location
	// Digest identifies the content of a tensor, if a caller has computed it: a hash of
	// its contiguous bytes. Nil: unknown. Writers do not use it.
	Digest []byte
}

// File is a finished file of a checkpoint.
type File struct {
	Name   string
	Size   int64
	CRC32C uint32
	// Unsummed means that the format records no checksum of the file. CRC32C is
	// not set then.
	Unsummed bool
}

// Coded is a file that is stored in another form, as the file Stored. Stored may have fewer
// bytes, and may refer to files in other folders.
type Coded struct {
	// File is the file that readers see.
	File
	// Stored is the name of the file that was written.
	Stored string
	// Refers are the files that Stored refers to.
	Refers []Reference
	// Referring is the number of saves in a row, up to this one, that refer to others.
	Referring int64
}

// Reference is a file in a folder beside the folder of a checkpoint.
type Reference struct {
	Folder, Name string
	Size         int64
}

// Bytes returns the total size of the files.
func (r *WriteResults) Bytes() int64 {
	var n int64
	for _, f := range r.Files {
		n += f.Size
	}
	return n
}

// ResultCodec encodes results, so that ranks can send them to the coordinator.
type ResultCodec struct{}

// Encode encodes r. It writes the name of each file in r.Files only once, because
// many items refer to it. It does not encode File.Unsummed.
func (ResultCodec) Encode(r *WriteResults) ([]byte, error) {
	size := 0 // an estimate
	for i := range r.Items {
		it := &r.Items[i]
		size += len(it.Index.FQN) + 2*len(it.Index.Offset) + len(it.Inline) + 4*len(it.Loc.Sums) + 20
	}

	w := wire.Writer{B: make([]byte, 0, size)}
	w.Uvarint(uint64(len(r.Files)))
	number := make(map[string]uint64, len(r.Files))
	for i, f := range r.Files {
		number[f.Name] = uint64(i) + 1
		w.String(f.Name)
		w.Uvarint(uint64(f.Size))
		w.U32(f.CRC32C)
	}

	encodeCoded(&w, r.Coded)
	for i, c := range r.Coded {
		number[c.Name] = uint64(len(r.Files)+i) + 1
	}

	w.Uvarint(uint64(len(r.Items)))
	for i := range r.Items {
		encodeResult(&w, &r.Items[i], number)
	}

	w.Uvarint(uint64(len(r.Phases)))
	for _, p := range r.Phases {
		w.String(p.Name)
		w.Varint(int64(p.Start))
		w.Varint(int64(p.End))
		w.Varint(p.Bytes)
	}

	if len(r.Copies) > 0 {
		w.Uvarint(uint64(len(r.Copies)))
	}

	for _, c := range r.Copies {
		w.U64(c.Key)
		w.U32(c.Sum)
	}

	return w.B, nil
}

func encodeCoded(w *wire.Writer, coded []Coded) {
	w.Uvarint(uint64(len(coded)))
	for _, c := range coded {
		w.String(c.Name)
		w.Uvarint(uint64(c.Size))
		w.U32(c.CRC32C)
		w.String(c.Stored)
		w.Uvarint(uint64(len(c.Refers)))

		for _, f := range c.Refers {
			w.String(f.Folder)
			w.String(f.Name)
			w.Uvarint(uint64(f.Size))
		}

		w.Uvarint(uint64(c.Referring))
	}
}

func decodeCoded(r *wire.Reader) []Coded {
	n := r.Count(9) // the minimum size of an encoded file
	if n == 0 {
		return nil
	}

	out := make([]Coded, n)
	for i := range out {
		c := &out[i]
		c.File = File{Name: r.String(), Size: r.Size(), CRC32C: r.U32()}
		c.Stored = r.String()
		c.Refers = make([]Reference, r.Count(3))
		for k := range c.Refers {
			c.Refers[k] = Reference{r.String(), r.String(), r.Size()}
		}
		c.Referring = r.Size()
	}

	return out
}

func encodeResult(w *wire.Writer, it *WriteResult, number map[string]uint64) {
	w.String(it.Index.FQN)
	w.Bool(it.Index.Offset != nil)
	if it.Index.Offset != nil {
		w.Uvarint(uint64(len(it.Index.Offset)))
	}

	for _, o := range it.Index.Offset {
		w.Varint(o)
	}

	w.Varint(int64(it.Index.Hint))
	w.Bool(it.Inline != nil)
	if it.Inline != nil {
		w.Bytes(it.Inline)
	}

	w.Uvarint(number[it.Loc.File]) // 0: not in r.Files, so the name follows
	if number[it.Loc.File] == 0 {
		w.String(it.Loc.File)
	}

	w.Varint(it.Loc.Offset)
	w.Varint(it.Loc.Length)
	w.Uvarint(uint64(len(it.Loc.Sums)))
	for _, s := range it.Loc.Sums {
		w.U32(s)
	}

	encodeDetail(w, it.Loc.Detail)
	w.Bytes(it.Digest)
}

func encodeDetail(w *wire.Writer, d *meta.Detail) {
	w.Bool(d != nil)
	if d == nil {
		return
	}

	w.String(d.Key)
	w.Uvarint(uint64(len(d.Transforms)))
	for _, t := range d.Transforms {
		w.String(t)
	}

	w.Bytes(d.StorageData)
}

// Decode is the inverse of Encode. The error wraps wire.ErrMalformed.
func (ResultCodec) Decode(b []byte) (*WriteResults, error) {
	r := wire.NewReader(b)
	out := &WriteResults{}
	for range r.Count(6) { // the minimum size of an encoded file
		out.Files = append(out.Files, File{Name: r.String(), Size: r.Size(), CRC32C: r.U32()})
	}

	out.Coded = decodeCoded(r)
	names := make([]string, 0, len(out.Files)+len(out.Coded))
	for _, f := range out.Files {
		names = append(names, f.Name)
	}

	for _, c := range out.Coded {
		names = append(names, c.Name)
	}

	n := r.Count(10) // the minimum size of an encoded item
	out.Items = make([]WriteResult, 0, n)
	for range n {
		out.Items = append(out.Items, decodeResult(r, names))
	}

	if n := r.CountMax(meta.MaxPhases); n > 0 {
		out.Phases = make([]meta.Phase, n)
		for i := range out.Phases {
			out.Phases[i] = meta.Phase{
				Name: r.String(), Start: time.Duration(r.Varint()), End: time.Duration(r.Varint()), Bytes: r.Varint(),
			}
		}
	}

	if r.Len() > 0 {
		out.Copies = make([]CopySum, r.Count(12))
		for i := range out.Copies {
			out.Copies[i] = CopySum{r.U64(), r.U32()}
		}
	}

	if err := r.Done(); err != nil {
		return nil, fmt.Errorf("write results: %w", err)
	}
	return out, nil
}

func decodeResult(r *wire.Reader, files []string) WriteResult {
	it := WriteResult{Index: meta.Index{FQN: r.String()}}
	if r.Bool() {
		it.Index.Offset = decodeOffset(r)
	}

	hint := r.Varint()
	if it.Index.Hint = int32(hint); int64(it.Index.Hint) != hint {
		r.Fail("a hint of %d", hint)
	}
	if r.Bool() {
		it.Inline = append([]byte{}, r.Bytes()...)
	}

	it.Loc = decodeLocation(r, files)
	it.Digest = append([]byte(nil), r.Bytes()...)
	return it
}

func decodeOffset(r *wire.Reader) []int64 {
	n := r.CountMax(tensor.MaxDims)
	if n > r.Len() { // each number takes at least one byte
		r.Fail("%d dimensions in %d bytes", n, r.Len())
		return nil
	}

	out := make([]int64, n)
	for i := range out {
		out[i] = r.Varint()
	}

	return out
}

func decodeLocation(r *wire.Reader, files []string) meta.Location {
	var l meta.Location
	if f := r.CountMax(len(files)); f > 0 {
		l.File = files[f-1]
	} else {
		l.File = r.String()
	}

	l.Offset, l.Length = r.Varint(), r.Varint()
	if raw := r.Raw(4 * r.Count(4)); len(raw) > 0 {
		l.Sums = make([]uint32, len(raw)/4)
		for i := range l.Sums {
			l.Sums[i] = binary.LittleEndian.Uint32(raw[4*i:])
		}
	}

	if r.Bool() {
		l.Detail = &meta.Detail{Key: r.String()}
		for range r.Count(1) {
			l.Detail.Transforms = append(l.Detail.Transforms, r.String())
		}
		l.Detail.StorageData = append([]byte(nil), r.Bytes()...)
	}
	return l
}

// Locate returns the entries of md with the locations from the results of the ranks.
// A writer's Finish records these entries. md is not changed. Every chunk and value
// must have a location. If several ranks wrote it (see [plan.EveryHolder]), Locate
// uses the location of the highest rank. The error wraps meta.ErrInvalid.
func Locate(md *meta.Metadata, results []*WriteResults) ([]meta.Entry, error) {
	l := locating{entries: make([]meta.Entry, len(md.Entries)), first: make([]int, len(md.Entries))}
	missing := 0
	for i, e := range md.Entries {
		l.entries[i], l.first[i] = e, missing
		if e.Tensor != nil {
			t := *e.Tensor
			t.Locs = make([]meta.Location, len(t.Chunks))
			l.entries[i].Tensor = &t
			missing += len(t.Chunks)
		} else {
			b := *e.Bytes
			l.entries[i].Bytes = &b
			missing++
		}
	}

	by := make([]int, missing) // for each chunk and value: the rank that wrote it plus 1, or 0
	for rank, r := range results {
		for i := range r.Items {
			at, err := l.place(&r.Items[i])
			if err == nil && by[at] == rank+1 {
				err = fmt.Errorf("%w: %v was written twice", meta.ErrInvalid, r.Items[i].Index)
			}
			if err != nil {
				return nil, fmt.Errorf("result of rank %d: %w", rank, err)
			}

			if by[at] == 0 {
				missing--
			}
			by[at] = rank + 1
		}
	}

	if missing != 0 {
		return nil, fmt.Errorf("%w: chunks or values that no rank has written: %d", meta.ErrInvalid, missing)
	}
	return l.entries, nil
}

// locating is the state of a call of Locate.
type locating struct {
	entries []meta.Entry
	first   []int // the number of each entry's first chunk, or of its value
	next    int   // the entry after the entry of the last result
}

// place stores the location of one result in its entry. It returns the number of the
// chunk or value.
func (l *locating) place(r *WriteResult) (int, error) {
	n, ok := l.next, true
	if n == len(l.entries) || l.entries[n].FQN != r.Index.FQN { // most results are sorted by name
		n, ok = slices.BinarySearchFunc(l.entries, r.Index.FQN, func(e meta.Entry, s string) int { return strings.Compare(e.FQN, s) })
	}

	if !ok {
		return 0, fmt.Errorf("%w: %v is not in the plan", meta.ErrInvalid, r.Index)
	}

	l.next = n + 1
	e := &l.entries[n]
	if e.Bytes != nil {
		e.Bytes.Inline, e.Bytes.Loc = r.Inline, r.Loc
		return l.first[n], nil
	}

	i, ok := e.Tensor.FindChunk(r.Index.Offset, r.Index.Hint)
	if !ok {
		return 0, fmt.Errorf("%w: %v is not in the plan", meta.ErrInvalid, r.Index)
	}

	e.Tensor.Locs[i] = r.Loc
	return l.first[n] + i, nil
}

// NewSaveID returns the id of a save that begins at t. Ids sort by time, in seconds.
// random distinguishes saves that begin in the same second, so the caller should pass
// a new random number for each save. Ids consist of lower-case letters, digits and
// dashes, which every file system and object store allows in names.
func NewSaveID(t time.Time, random uint32) string {
	return fmt.Sprintf("%s-%08x", t.UTC().Format("20060102t150405"), random)
}
