// Package meta is the model of a checkpoint: which names it holds, how each
// tensor is cut into chunks, and where the bytes of each chunk are. It is pure
// data and does not depend on planners or files; storage formats translate it to
// and from their own bytes. The contract is in the comments of Metadata and of its
// parts; Validate checks it.
package meta

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrInvalid reports metadata that contradicts itself.
var ErrInvalid = errors.New("invalid metadata")

// Metadata describes a whole checkpoint. It is immutable once it was made:
// planners and storage share it freely.
type Metadata struct {
	// Entries holds one entry for each name, sorted by FQN, no name twice.
	Entries []Entry
	// PlannerData is data that a planner keeps with the checkpoint: a JSON value, or nil. The
	// default planner keeps no data here.
	PlannerData json.RawMessage
	// Storage says how and when the checkpoint was written.
	Storage Storage
	// Missing are the names that cannot be read, because a file is missing or
	// damaged. They are sorted by FQN and not in Entries, apart from names that
	// Missing.Below allows. Readers that need everything call CheckWhole.
	Missing []Missing
}

// Missing is a name that cannot be read, or a file with names that are not known.
type Missing struct {
	FQN string
	// Below means that the names in File are not known. They begin with FQN and a dot, or
	// are FQN. If FQN is empty, they may be any names.
	Below bool
	// File is the file that is missing or damaged. Empty: several, or unknown.
	File string
	Err  error
}

// String returns the name, or a pattern for the names if they are not known.
func (x *Missing) String() string {
	switch {
	case !x.Below:
		return x.FQN
	case x.FQN == "":
		return "*"
	}
	return x.FQN + ".*"
}

// Storage describes a checkpoint as a whole, apart from its contents.
type Storage struct {

	// ID names the store of the checkpoint, for messages.
	ID string
	// SaveID is unique to the save that wrote it.
	SaveID string
	// Step is the training step, by the caller's count. Nil: unknown.
	Step *int64
	// Time is when the save began, in UTC.
	Time time.Time
	// WorldSize is the number of ranks that wrote it. Zero: unknown.
	WorldSize int
	// Writer names the program and version that wrote it.
	Writer string
	// Version is the version of the format it is stored in.
	Version string
	// Tags are the caller's own words.
	Tags map[string]string
	// Notes are sentences about parts that a reader could not check, such as whether files are
	// missing. Nil: the reader could check everything.
	Notes []string
	// Line is the place of the save in the history of its run. Nil: unknown.
	Line *Line
	// Timeline says how long each rank took for the phases of the save. Nil: unknown.
	// Writers take it from storage.Session.
	Timeline Timeline
	// Bases are the names of the folders beside the checkpoint's with files to which it
	// refers. Nil: it stands alone.
	Bases []string
	// StoredBytes is the size of the checkpoint's own files, if some are stored in another
	// form than readers see them. Zero: the files are as readers see them.
	StoredBytes int64
}

// Entry is one name of a checkpoint. Exactly one of Tensor and Bytes is set.
type Entry struct {
	FQN string
	// Path is the position of the value in the nested state that was saved. Nil:
	// the state was flat, and the name is the only key.
	Path   Path
	Tensor *Tensor
	Bytes  *Bytes
}

// Tensor describes a tensor and its chunks.
type Tensor struct {
	Properties
	Shape []int64
	// Chunks are the boxes that were saved. Together they tile the tensor.
	Chunks []tensor.Box
	// Locs are the locations of the chunks, in the order of Chunks. It is nil until
	// the chunks were written.
	Locs []Location
	// Scales is the name of the scales of a quantised tensor, if a recipe has made it. It
	// is not stored; see Metadata.Scales.
	Scales string
}

// Properties are the properties of a tensor beside its shape.
type Properties struct {
	DType tensor.DType
	// RequiresGrad, PinMemory, MemoryFormat and Layout are kept for PyTorch: they
	// have no meaning in cairn. Empty strings mean strided, contiguous tensors.
	RequiresGrad, PinMemory bool
	MemoryFormat, Layout    string
}

// Bytes describes a value that is not a tensor.
type Bytes struct {
	// Codec says how Size bytes encode the value; see package value.
	Codec string
	Size  int64
	// Inline holds the bytes themselves if they are small. Nil: they are at
	// Loc. An empty value is inline and not nil.
	Inline []byte
	Loc    Location
}

// Location is a place in a file of the checkpoint.
type Location struct {
	// File is the object's name relative to the checkpoint.
	File string
	// Offset and Length are the range of the bytes in File.
	Offset, Length int64
	// Sums are the checksums of the range's blocks, as the format defines them.
	// Nil: the format has no checksums.
	Sums []uint32
	// Detail has the fields that only some formats need. Nil: none.
	Detail *Detail
}

// Detail is the part of a location that only some formats have.
type Detail struct {
	// Key is the entry's key inside a container file if it is not the FQN.
	Key string
	// Transforms name the transformations of the stored bytes, outermost last.
	Transforms []string
	// StorageData is data that a writer of one's own keeps for its reader. Nil: none.
	StorageData []byte
}

// StorageData returns the data that the writer has kept for its reader, or nil.
func (l *Location) StorageData() []byte {
	if l.Detail == nil {
		return nil
	}
	return l.Detail.StorageData
}

// SetStorageData keeps b, which must not be changed after that. The old Detail, which
// other locations may share, stays as it is.
func (l *Location) SetStorageData(b []byte) {
	var d Detail
	if l.Detail != nil {
		d = *l.Detail
	}
	d.StorageData = b
	l.Detail = &d
}

// Find returns the entry of that name.
func (m *Metadata) Find(fqn string) (*Entry, bool) {
	i, ok := slices.BinarySearchFunc(m.Entries, fqn, func(e Entry, s string) int { return strings.Compare(e.FQN, s) })
	if !ok {
		return nil, false
	}
	return &m.Entries[i], true
}

// Scales returns the scales of a tensor of 8-bit floats that is quantised: its numbers are
// meaningless without them. Unless a recipe names them, they are floating-point numbers with
// the name of the tensor and "_scale_inv" or "_scale".
func (m *Metadata) Scales(e *Entry) (*Entry, bool) {
	if e.Tensor == nil || !e.Tensor.DType.IsFloat() || e.Tensor.DType.Size() != 1 {
		return nil, false
	}
	if e.Tensor.Scales != "" {
		return m.Find(e.Tensor.Scales)
	}

	for _, end := range scaleEnds {
		if s, ok := m.Find(e.FQN + end); ok && s.Tensor != nil && s.Tensor.DType.IsFloat() {
			return s, true
		}
	}

	return nil, false
}

// scaleEnds follow the name of a quantised tensor in the name of its scales.
var scaleEnds = [...]string{"_scale_inv", "_scale"}

// Location returns the location of the chunk or value that i names. It returns false if
// m does not have it, or if it was not written yet.
func (m *Metadata) Location(i Index) (*Location, bool) {
	e, ok := m.Find(i.FQN)
	switch {
	case !ok || (e.Tensor == nil) != (i.Offset == nil):
		return nil, false
	case e.Bytes != nil:
		return &e.Bytes.Loc, true
	case e.Tensor == nil:
		return nil, false
	}

	n, ok := e.Tensor.FindChunk(i.Offset, i.Hint)
	if !ok || n >= len(e.Tensor.Locs) {
		return nil, false
	}
	return &e.Tensor.Locs[n], true
}

// FindMissing returns the missing name that fqn is, or the file that may hold it, if fqn
// is not in Entries.
func (m *Metadata) FindMissing(fqn string) (*Missing, bool) {
	if len(m.Missing) == 0 {
		return nil, false
	}
	if _, ok := m.Find(fqn); ok {
		return nil, false
	}

	for at := fqn; ; at = at[:max(0, strings.LastIndexByte(at, '.'))] {
		i, ok := slices.BinarySearchFunc(m.Missing, at, func(x Missing, s string) int { return strings.Compare(x.FQN, s) })
		for ; ok && i < len(m.Missing) && m.Missing[i].FQN == at; i++ {
			if at == fqn || m.Missing[i].Below {
				return &m.Missing[i], true
			}
		}
		if at == "" {
			return nil, false
		}
	}
}

// WithoutMissing returns a copy of m without the missing names for which drop returns
// true.
func (m *Metadata) WithoutMissing(drop func(x *Missing) bool) *Metadata {
	out := *m
	out.Missing = slices.DeleteFunc(slices.Clone(m.Missing), func(x Missing) bool { return drop(&x) })
	return &out
}

// Select iterates over the entries for which want returns true.
func (m *Metadata) Select(want func(fqn string) bool) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for i := range m.Entries {
			if e := &m.Entries[i]; want(e.FQN) && !yield(e) {
				return
			}
		}
	}
}

// maxLost bounds how many missing names an error lists.
const maxLost = 10

// CheckWhole returns an error that lists the missing names for which want returns
// true, and wraps the reason of the first; nil wants all names. It always lists files with
// names that are not known: want might return true for one of them.
func (m *Metadata) CheckWhole(want func(fqn string) bool) error {
	var first *Missing
	var names []string
	for i := range m.Missing {
		if x := &m.Missing[i]; want == nil || x.Below || want(x.FQN) {
			names = append(names, strconv.Quote(x.String()))
			if first == nil {
				first = x
			}
		}
	}

	switch n := len(names); {
	case n == 0:
		return nil
	case n > maxLost:
		names = append(names[:maxLost], fmt.Sprintf("and %d more", n-maxLost))
	}

	return fmt.Errorf("%s cannot be read: %w", strings.Join(names, ", "), first.Err)
}

// Ties returns the tensors that the checkpoint stores once under several names: it maps
// each of these names, apart from the first in order, to the first. Such tensors have the
// same shape and dtype, and the same chunks at the same locations. Tied weights are saved
// like this.
func (m *Metadata) Ties() map[string]string {
	// Names that are stored once share a key, which cannot be the own name of both.
	if !slices.ContainsFunc(m.Entries, func(e Entry) bool {
		return e.Tensor != nil && slices.ContainsFunc(e.Tensor.Locs, func(l Location) bool { return l.Detail != nil && l.Detail.Key != "" })
	}) {
		return nil
	}

	var out map[string]string
	first := make(map[chunkAt]*Entry, len(m.Entries)) // by the place of the first chunk that has bytes
	for i := range m.Entries {
		e := &m.Entries[i]
		if e.Tensor == nil {
			continue
		}

		j := slices.IndexFunc(e.Tensor.Locs, func(l Location) bool { return l.Length > 0 })
		if j < 0 {
			continue
		}

		at := e.place(j)
		lead, ok := first[at]
		switch {
		case !ok:
			first[at] = e
		case e.tied(lead):
			if out == nil {
				out = map[string]string{}
			}
			out[e.FQN] = lead.FQN
		}
	}

	return out
}

// chunkAt is where a file has a chunk.
type chunkAt struct {
	file, key      string
	offset, length int64
}

// place returns the place of chunk i of a tensor.
func (e *Entry) place(i int) chunkAt {
	l := &e.Tensor.Locs[i]
	p := chunkAt{l.File, e.FQN, l.Offset, l.Length}
	if l.Detail != nil && l.Detail.Key != "" {
		p.key = l.Detail.Key
	}
	return p
}

// tied reports whether e and o are stored once.
func (e *Entry) tied(o *Entry) bool {
	a, b := e.Tensor, o.Tensor
	if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) || len(a.Locs) != len(b.Locs) || len(a.Locs) != len(a.Chunks) || len(b.Locs) != len(b.Chunks) {
		return false
	}

	for i := range a.Locs {
		if !a.Chunks[i].Equal(b.Chunks[i]) || a.Locs[i].Length > 0 && e.place(i) != o.place(i) {
			return false
		}
	}

	return true
}

// Names returns every name in order.
func (m *Metadata) Names() []string {
	out := make([]string, len(m.Entries))
	for i := range m.Entries {
		out[i] = m.Entries[i].FQN
	}
	return out
}

// NumBytes returns the bytes of the contiguous tensor, or of the value; zero for
// an entry that is not valid.
func (e *Entry) NumBytes() int64 {
	if e.Bytes != nil {
		return e.Bytes.Size
	}
	if e.Tensor == nil {
		return 0
	}

	n, err := tensor.NumBytes(e.Tensor.DType, e.Tensor.Shape)
	if err != nil {
		return 0
	}
	return n
}

// Inside returns the tensors inside values: it maps the name of each tensor with a path
// through the path of a value to the name of that value, which refers to the tensor by a
// value.Ref.
func (m *Metadata) Inside() map[string]string {
	values := map[string]*Entry{} // by the names that their paths spell
	for i := range m.Entries {
		if e := &m.Entries[i]; e.Bytes != nil && e.Path != nil {
			values[e.Path.FQN()] = e
		}
	}

	out := map[string]string{}
	if len(values) == 0 {
		return out
	}

	for i := range m.Entries {
		e := &m.Entries[i]
		if e.Tensor == nil || len(e.Path) < 2 {
			continue
		}

		spelled, n := e.Path.FQN(), 0
		for j, s := range e.Path[:len(e.Path)-1] {
			n += len(s.String())
			if v := values[spelled[:n]]; v != nil && v.Path.Equal(e.Path[:j+1]) {
				out[e.FQN] = v.FQN
				break
			}
			n++ // the dot
		}
	}

	return out
}

// Validate returns an error that wraps [ErrInvalid] and lists everything that is
// wrong with m, or nil: names that are invalid, out of order or there twice; entries
// that are want either a tensor or a value; invalid dtypes, shapes, paths, sizes and
// locations; chunks that leave their tensor; a wrong number of locations. Package plan
// checks whether the chunks cover the tensor.
func (m *Metadata) Validate() error {
	var p problems
	if m.PlannerData != nil && !json.Valid(m.PlannerData) {
		p.add("planner data is not JSON")
	}

	for i := range m.Entries {
		e := &m.Entries[i]
		if err := CheckFQN(e.FQN); err != nil {
			p.add("entry %d: %v", i, err)
		}
		if i > 0 {
			p.checkOrder(m.Entries[i-1].FQN, e.FQN)
		}
		p.checkEntry(e)
	}

	if len(p) == 0 {
		return nil
	}
	return p
}

// problems are the errors of some metadata.
type problems []string

// maxSpelled bounds how many problems an error message spells out.
const maxSpelled = 20

// Error lists the problems.
func (p problems) Error() string {
	text := strings.Join(p[:min(len(p), maxSpelled)], "; ")
	if n := len(p) - maxSpelled; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return fmt.Sprintf("%v: %s", ErrInvalid, text)
}

// Unwrap returns ErrInvalid.
func (p problems) Unwrap() error { return ErrInvalid }

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

func (p *problems) checkOrder(a, b string) {
	switch {
	case a == b:
		p.add("%q is there twice", b)
	case a > b:
		p.add("%q comes after %q", b, a)
	}
}

func (p *problems) checkEntry(e *Entry) {
	for _, s := range e.Path {
		if text := s.problem(); text != "" {
			p.add("%q: %s", e.FQN, text)
		}
	}

	if (e.Tensor == nil) == (e.Bytes == nil) {
		p.add("%q: want either a tensor or a value", e.FQN)
	}
	if e.Tensor != nil {
		p.checkTensor(e.FQN, e.Tensor)
	}
	if e.Bytes != nil {
		p.checkBytes(e.FQN, e.Bytes)
	}
}

func (p *problems) checkTensor(fqn string, t *Tensor) {
	if _, err := tensor.NumBytes(t.DType, t.Shape); err != nil {
		p.add("%q: %v", fqn, err)
		return
	}

	for _, c := range t.Chunks {
		if err := c.Check(t.Shape); err != nil {
			p.add("%q: %v", fqn, err)
		}
	}

	if t.Locs != nil && len(t.Locs) != len(t.Chunks) {
		p.add("%q: %d places for %d chunks", fqn, len(t.Locs), len(t.Chunks))
	}

	for i := range t.Locs {
		p.checkLocation(fqn, &t.Locs[i])
	}
}

func (p *problems) checkBytes(fqn string, b *Bytes) {
	if b.Size < 0 || b.Inline != nil && int64(len(b.Inline)) != b.Size {
		p.add("%q: %d bytes, %d of them inline", fqn, b.Size, len(b.Inline))
	}
	p.checkLocation(fqn, &b.Loc)
}

func (p *problems) checkLocation(fqn string, l *Location) {
	if l.Offset < 0 || l.Length < 0 || l.Offset+l.Length < 0 {
		p.add("%q: at %d+%d in %q", fqn, l.Offset, l.Length, l.File)
	}
}
