package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// rebuild is a save whose description is put together from its data files.
type rebuild struct {
	store blob.Store
	id    string
	names []string // of the data files, by rank and number
	self  *selfDescription
	md    meta.Metadata
	files []storage.File
}

// chooseSave reads the headers of the saves that are here, the newest first,
// until one is complete.
func chooseSave(ctx context.Context, s blob.Store, want string, rep *RepairReport) (*rebuild, error) {
	saves, err := findSaves(ctx, s, want)
	if err != nil {
		return nil, err
	}
	var why strings.Builder
	for _, rb := range saves {
		err := rb.readHeaders(ctx)
		if err == nil {
			return rb, nil
		}
		if !broken(err) && !errors.Is(err, storage.ErrVersion) {
			return nil, err // it may be whole: do not fall back on an older one
		}
		rep.Others[rb.id] = err.Error()
		fmt.Fprintf(&why, "; save %s: %v", rb.id, err)
	}
	if len(saves) == 0 {
		return nil, fmt.Errorf("%w: %s has no data files to repair from", storage.ErrNotFound, s)
	}
	return nil, fmt.Errorf("%w: no save in %s is complete%s", storage.ErrIncomplete, s, why.String())
}

// findSaves returns the saves of which data files are here, or only the wanted
// one, the newest first.
func findSaves(ctx context.Context, s blob.Store, want string) ([]*rebuild, error) {
	bySave := map[string]*rebuild{}
	for info, err := range s.List(ctx, want) {
		if err != nil {
			return nil, err
		}
		id, _, _, ok := parseDataFileName(info.Name)
		if !ok || want != "" && id != want {
			continue
		}
		if bySave[id] == nil {
			bySave[id] = &rebuild{store: s, id: id}
		}
		bySave[id].names = append(bySave[id].names, info.Name)
	}
	out := make([]*rebuild, 0, len(bySave))
	for _, rb := range bySave {
		slices.SortFunc(rb.names, compareDataNames)
		out = append(out, rb)
	}
	slices.SortFunc(out, func(a, b *rebuild) int { return strings.Compare(b.id, a.id) })
	return out, nil
}

// compareDataNames orders the data files of one save by rank and number.
func compareDataNames(a, b string) int {
	_, rankA, numberA, _ := parseDataFileName(a)
	_, rankB, numberB, _ := parseDataFileName(b)
	return cmp.Or(cmp.Compare(rankA, rankB), cmp.Compare(numberA, numberB))
}

// readHeaders puts the entries together from the headers of all data files.
func (rb *rebuild) readHeaders(ctx context.Context) error {
	found := finds{}
	var missing roster
	for _, name := range rb.names {
		h, self, err := readHeader(ctx, rb.store, name)
		if err != nil {
			return err
		}
		if rb.self == nil {
			rb.self = self
		}
		if err := missing.note(rb, name, self); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := found.addFile(name, h, self); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	rb.md.Entries = found.entries()
	return rb.checkComplete(missing.problems(rb.self.Ranks))
}

// checkComplete refuses a save of which something is missing: files, as the
// others tell, or chunks, as the tensors do.
func (rb *rebuild) checkComplete(missing []string) error {
	for i := range rb.md.Entries {
		e := &rb.md.Entries[i]
		if e.Tensor == nil {
			continue
		}
		for _, p := range plan.CheckTiling(e.Tensor.Shape, e.Tensor.Chunks) {
			missing = append(missing, fmt.Sprintf("%q: %s", e.FQN, p.Text))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	const some = 5
	if n := len(missing) - some; n > 0 {
		missing = append(missing[:some:some], fmt.Sprintf("and %d more", n))
	}
	return fmt.Errorf("%w: missing: %s", storage.ErrIncomplete, strings.Join(missing, "; "))
}

// roster says which data files there should be, going by what the others say.
type roster struct {
	left map[int]int // by rank: files that it wrote and that were not seen
}

// note takes down a file of rb's save. What it says must agree with its name and
// with what the first file says about the save.
func (r *roster) note(rb *rebuild, name string, self *selfDescription) error {
	_, rank, number, _ := parseDataFileName(name)
	if self.SaveID != rb.id || self.Rank != rank || self.Number != number || number >= self.Files {
		return fmt.Errorf("%w: it says it is file %d of %d of save %s, rank %d",
			storage.ErrCorrupt, self.Number, self.Files, self.SaveID, self.Rank)
	}
	if f := rb.self; !equalSteps(self.Step, f.Step) || !self.Time.Equal(f.Time) || self.WorldSize != f.WorldSize || self.Ranks != f.Ranks {
		return fmt.Errorf("%w: it contradicts %s about the save", storage.ErrCorrupt, rb.names[0])
	}
	if r.left == nil {
		r.left = map[int]int{}
	}
	if _, seen := r.left[rank]; !seen {
		r.left[rank] = self.Files
	}
	r.left[rank]--
	return nil
}

// equalSteps reports whether two steps are the same, or both unknown.
func equalSteps(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }

// problems returns what is missing where ranks so many wrote; zero is unknown.
func (r *roster) problems(ranks int) []string {
	var out []string
	if n := ranks - len(r.left); ranks > 0 && n != 0 {
		out = append(out, fmt.Sprintf("all files of %d of the %d ranks that wrote", n, ranks))
	}
	for rank, n := range r.left {
		if n != 0 {
			out = append(out, fmt.Sprintf("%d files of rank %d", n, rank))
		}
	}
	slices.Sort(out)
	return out
}

// scan reads the data files and computes their checksums.
func (rb *rebuild) scan(ctx context.Context, progress func(int64)) error {
	items := map[string][]*scanItem{}
	add := func(fqn string, loc *meta.Location, g grid) {
		loc.Sums = make([]uint32, g.tiles())
		items[loc.File] = append(items[loc.File], &scanItem{fqn: fqn, loc: loc, grid: g, sums: loc.Sums})
	}
	for i := range rb.md.Entries {
		e := &rb.md.Entries[i]
		if e.Bytes != nil {
			if e.Bytes.Inline == nil {
				add(e.FQN, &e.Bytes.Loc, gridOf([]int64{e.Bytes.Size}, 1))
			}
			continue
		}
		for i, b := range e.Tensor.Chunks {
			add(e.FQN, &e.Tensor.Locs[i], gridOf(b.Sizes, int64(e.Tensor.DType.Size())))
		}
	}
	for _, name := range rb.names {
		sortItems(items[name])
		size, crc, err := scanFile(ctx, rb.store, name, items[name], progress)
		if err != nil {
			return err
		}
		rb.files = append(rb.files, storage.File{Name: name, Size: size, CRC32C: crc})
	}
	return nil
}

// readHeader reads the header of a data file and what it says about itself.
func readHeader(ctx context.Context, s blob.Store, name string) (*safetensors.Header, *selfDescription, error) {
	r, err := s.Open(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	h, err := safetensors.Decode(func(p []byte, off int64) error { return r.ReadAt(ctx, p, off) }, r.Size())
	if errors.Is(err, safetensors.ErrHeader) {
		return nil, nil, fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, name, err)
	}
	if err != nil {
		return nil, nil, err
	}
	self, err := decodeSelf(h.Metadata[metaSelf])
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return h, self, nil
}
