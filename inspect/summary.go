package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// Source is a checkpoint that can be described. *cairn.Checkpoint implements it.
type Source interface {
	Info() meta.Storage
	Files() []storage.File
}

// Summary describes a checkpoint as a whole.
type Summary struct {
	// Path is its location, Format the name and version of its format.
	Path   string `json:"path"`
	Format string `json:"format"`
	SaveID string `json:"save_id"`
	Step   *int64 `json:"step"` // nil: unknown
	// Time is the zero time, and WorldSize zero, if they are unknown.
	Time      time.Time `json:"time,omitzero"`
	WorldSize int       `json:"world_size,omitzero"`
	Writer    string    `json:"writer"`
	// Bases are the folders beside the checkpoint's to which it refers, and StoredBytes the
	// bytes of its own files if they hold less than the whole.
	Bases       []string          `json:"refers_to,omitempty"`
	StoredBytes int64             `json:"stored_bytes,omitempty"`
	Tags        map[string]string `json:"tags"`
	// Notes describe the unchecked properties of the checkpoint as a whole.
	Notes  []string `json:"notes,omitempty"`
	Totals Totals   `json:"totals"`
	// FileBytes is the size of all files.
	FileBytes int64 `json:"file_bytes"`
	// DTypes has totals for each dtype, the one with the most bytes first.
	DTypes []DTypeTotals `json:"dtypes"`
	// Files are all files that the commit record names, the index first.
	Files []File `json:"files"`
	// Missing are the names that cannot be read.
	Missing []Missing `json:"missing,omitempty"`
}

// Missing is a name that cannot be read. If a file with names that are not known cannot be
// read, FQN is a pattern such as "scheduler.*".
type Missing struct {
	FQN string `json:"fqn"`
	// File is the file that is missing or damaged. Empty: several, or unknown.
	File    string `json:"file,omitempty"`
	Problem string `json:"problem"`
}

// MissingNames returns the names at or below prefixes that cannot be read. Without
// prefixes, it returns all of them.
func MissingNames(md *meta.Metadata, prefixes ...string) []Missing {
	var out []Missing
	for _, m := range md.Missing {
		if len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return Below(m.FQN, p) }) {
			text := m.Err.Error()
			if f, ok := errors.AsType[*storage.FileError](m.Err); ok {
				text = f.Problem().Text
			}
			out = append(out, Missing{m.String(), m.File, text})
		}
	}

	return out
}

// LostNames returns the entries with data in one of the files, which are missing.
func LostNames(entries []*meta.Entry, files []string) []Missing {
	if len(files) == 0 {
		return nil
	}

	gone := make(map[string]bool, len(files))
	for _, f := range files {
		gone[f] = true
	}

	var out []Missing
	for _, e := range entries {
		lost := map[string]bool{}
		for c := range Chunks(e) {
			if !c.Inline && c.NumBytes > 0 && gone[c.File] {
				lost[c.File] = true
			}
		}

		switch names := slices.Collect(maps.Keys(lost)); len(names) {
		case 0:
		case 1:
			out = append(out, Missing{e.FQN, names[0], "the file is missing"})
		default:
			out = append(out, Missing{e.FQN, "", fmt.Sprintf("%d of its files are missing", len(names))})
		}
	}

	return out
}

// Lose records that files of the checkpoint are missing, and which names cannot
// be read for that reason.
func (s *Summary) Lose(md *meta.Metadata, files []string) {
	for i := range s.Files {
		if f := &s.Files[i]; slices.Contains(files, f.Name) {
			f.Missing = true
			s.FileBytes -= f.Size
		}
	}
	s.Missing = append(s.Missing, LostNames(Select(md), files)...)
}

// Totals count the content of a checkpoint or of a part of it.
type Totals struct {
	Tensors int64 `json:"tensors"`
	Objects int64 `json:"objects"`
	Chunks  int64 `json:"chunks"`
	// Elements and NumBytes are the sums over the items, with a tensor that has several
	// names once.
	Elements int64 `json:"elements"`
	NumBytes int64 `json:"bytes"`
}

// Add counts one item.
func (t *Totals) Add(it *Item) {
	if it.Tied == "" {
		t.NumBytes += it.NumBytes
		t.Elements += it.Elements()
	}

	if it.Kind != KindTensor {
		t.Objects++
		return
	}

	t.Tensors++
	t.Chunks += int64(it.Chunks)
}

// DTypeTotals count the tensors of one dtype.
type DTypeTotals struct {
	DType    string `json:"dtype"`
	Tensors  int64  `json:"tensors"`
	Elements int64  `json:"elements"`
	NumBytes int64  `json:"bytes"`
}

// File is one file of a checkpoint.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"bytes"`
	// CRC32C is the checksum of the whole file, eight hexadecimal digits. Empty:
	// the format keeps no checksum.
	CRC32C string `json:"crc32c,omitempty"`
	// Chunks counts the chunks and objects in the file.
	Chunks int64 `json:"chunks"`
	// Missing is set if the file does not exist; see Summary.Lose.
	Missing bool `json:"missing,omitempty"`
}

// Summarize describes the checkpoint src with the metadata md.
func Summarize(src Source, md *meta.Metadata) *Summary {
	s := src.Info()
	out := &Summary{
		Path: s.ID, Format: s.Version, SaveID: s.SaveID, Step: s.Step, Time: s.Time, WorldSize: s.WorldSize,
		Writer: s.Writer, Bases: s.Bases, StoredBytes: s.StoredBytes, Tags: s.Tags, Notes: s.Notes, Missing: MissingNames(md),
	}
	if out.Tags == nil {
		out.Tags = map[string]string{}
	}

	perFile := chunksPerFile(md)
	for _, f := range src.Files() {
		file := File{Name: f.Name, Size: f.Size, Chunks: perFile[f.Name]}
		if !f.Unsummed {
			file.CRC32C = fmt.Sprintf("%08x", f.CRC32C)
		}
		out.Files = append(out.Files, file)
		out.FileBytes += f.Size
	}

	out.add(md)
	return out
}

func chunksPerFile(md *meta.Metadata) map[string]int64 {
	out := map[string]int64{}
	for i := range md.Entries {
		e := &md.Entries[i]
		if e.Tensor == nil {
			out[e.Bytes.Loc.File]++
			continue
		}
		for j := range e.Tensor.Locs {
			out[e.Tensor.Locs[j].File]++
		}
	}

	return out
}

// add counts all names.
func (s *Summary) add(md *meta.Metadata) {
	ties, dtypes := md.Ties(), map[string]*DTypeTotals{}
	for i := range md.Entries {
		e := &md.Entries[i]
		it := Item{Kind: KindObject, NumBytes: e.NumBytes(), Tied: ties[e.FQN]} // NewItem would decode objects
		if e.Tensor == nil {
			s.Totals.Add(&it)
			continue
		}

		it.Kind, it.DType, it.Shape, it.Chunks = KindTensor, e.Tensor.DType.String(), e.Tensor.Shape, len(e.Tensor.Chunks)
		var t Totals
		t.Add(&it)
		s.Totals.Add(&it)

		d, ok := dtypes[it.DType]
		if !ok {
			d = &DTypeTotals{DType: it.DType}
			dtypes[it.DType] = d
		}
		d.Tensors, d.Elements, d.NumBytes = d.Tensors+1, d.Elements+t.Elements, d.NumBytes+t.NumBytes
	}

	s.DTypes = []DTypeTotals{}
	for _, d := range dtypes {
		s.DTypes = append(s.DTypes, *d)
	}

	slices.SortFunc(s.DTypes, func(a, b DTypeTotals) int {
		return cmp.Or(cmp.Compare(b.NumBytes, a.NumBytes), strings.Compare(a.DType, b.DType))
	})
}

// Node is a node of the tree that the dots in the names form: everything below
// one prefix.
type Node struct {
	// Name is the part of the name between two dots, FQN everything up to here.
	// Both are empty at the root.
	Name string `json:"name"`
	FQN  string `json:"fqn"`
	// Totals count everything at and below this node, including the levels beyond
	// depth.
	Totals Totals `json:"totals"`
	// Item is the item with exactly this name, or nil.
	Item *Item `json:"item,omitempty"`
	// Children are the nodes one level below, in the order of their names,
	// numbers by value.
	Children []*Node `json:"children,omitempty"`
}

// Tree arranges items below the prefix root (see Below) as a tree of at most
// depth levels under the node of root. A depth of zero means only that node, a
// negative depth all levels. The items are shared, not copied.
func Tree(items []*Item, root string, depth int) *Node {
	root = strings.TrimSuffix(root, ".")
	top := &Node{Name: root[strings.LastIndexByte(root, '.')+1:], FQN: root}
	start := len(root) + 1
	if root == "" {
		start = 0 // the first names have no dot before them
	}
	top.fill(items, start, depth)
	return top
}

// fill adds the items at and below n. The part of their names below n begins at start.
func (n *Node) fill(items []*Item, start, depth int) {
	below := map[string][]*Item{}
	for _, it := range items {
		n.Totals.Add(it)
		if it.FQN == n.FQN {
			n.Item = it
		} else if depth != 0 {
			name, _, _ := strings.Cut(it.FQN[start:], ".")
			below[name] = append(below[name], it)
		}
	}

	for name, items := range below {
		c := &Node{Name: name, FQN: items[0].FQN[:start+len(name)]}
		c.fill(items, start+len(name)+1, depth-1)
		n.Children = append(n.Children, c)
	}

	slices.SortFunc(n.Children, func(a, b *Node) int { return compareParts(a.Name, b.Name) })
}
