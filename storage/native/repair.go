package native

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/tensor"
)

// RepairOptions change the behaviour of Repair. Nil means the defaults.
type RepairOptions struct {
	// SaveID chooses the save to rebuild. Empty: the one that the record names, or, if there is
	// no readable record, the newest with complete data files.
	SaveID string
	// DryRun makes Repair write no files. The report is the same as without it.
	DryRun bool
	// Force rebuilds even if a readable record and index exist, lets SaveID replace
	// another save that is complete, and gives new checksums to chunks of a data file
	// that is damaged according to the record.
	Force bool
	// Progress, if not nil, receives the number of bytes that were read.
	Progress func(bytes int64)
}

// RepairReport is the result of Repair.
type RepairReport struct {
	SaveID string `json:"save_id"`
	// Rebuilt means that record and index were written, or would be without DryRun.
	// False: they were intact.
	Rebuilt bool `json:"rebuilt"`
	DryRun  bool `json:"dry_run"`
	// Files counts the data files; Tensors, Values and Bytes count their contents.
	Files   int   `json:"files"`
	Tensors int64 `json:"tensors"`
	Values  int64 `json:"values"`
	Bytes   int64 `json:"bytes"`
	// Recomputed counts the chunks with checksums that were computed from the current bytes,
	// because no readable index has them. Damage in them does not show.
	Recomputed int64 `json:"recomputed"`
	// Problems are damaged data files, by the checksums of an index or record that could
	// be read. They stay damaged; verify reports them too.
	Problems []storage.VerifyProblem `json:"problems,omitempty"`
	// Others are the newer saves that were tried first and are not complete, each with
	// the reason.
	Others map[string]string `json:"others,omitempty"`
}

func (r *RepairReport) count(saveID string, files int, t recordTotals) {
	r.SaveID, r.Files, r.Tensors, r.Values, r.Bytes = saveID, files, t.Tensors, t.Values, t.Bytes
}

// Repair rebuilds a lost or damaged record and index from the data files, which describe
// themselves. It keeps the checksums of an index that is still there, as far as it can be
// read, and reports data files that do not match them. Other checksums are computed from the
// bytes as they are now, so damage in them does not show; if the record shows it, Repair
// refuses with storage.ErrCorrupt, unless Force is set. The planner's data of the checkpoint
// is lost with the record. The data files are not touched, and no file is written unless a
// save is complete.
//
// It refuses with blob.ErrLocked to rebuild while a save is under way there, as
// far as the store can tell, and with storage.ErrChanged if saves replace the
// record again and again.
func Repair(ctx context.Context, s blob.Store, opts *RepairOptions) (*RepairReport, error) {
	var o RepairOptions
	if opts != nil {
		o = *opts
	}

	var rep *RepairReport
	var err error
	for range openTries {
		// Replaced between two reads: the next try sees the new one.
		if rep, err = repair(ctx, s, o); !errors.Is(err, storage.ErrChanged) {
			break
		}
	}

	return rep, err
}

func repair(ctx context.Context, s blob.Store, o RepairOptions) (*RepairReport, error) {
	rep := &RepairReport{DryRun: o.DryRun, Others: map[string]string{}}
	rec, whole, err := diagnose(ctx, s)
	if err != nil {
		return nil, err
	}
	if whole && len(rec.Coded) > 0 { // it refers to others, and is as it was written
		rep.count(rec.SaveID, len(rec.Files)-1, rec.Totals)
		return rep, nil
	}

	if whole {
		if err := checkBeforeRepair(ctx, s, rec, o); err != nil {
			return nil, err
		}
	}
	if whole && !o.Force {
		if o.SaveID != "" && o.SaveID != rec.SaveID {
			return nil, fmt.Errorf("%w: save %s in %s is whole; only by force another one replaces it", storage.ErrExists, rec.SaveID, s)
		}
		rep.count(rec.SaveID, len(rec.Files)-1, rec.Totals)
		return rep, nil
	}
	return rep, rebuildRecord(ctx, s, rec, o, rep)
}

// rebuildRecord rebuilds record and index in place of rec, which is nil if there
// is no readable record.
func rebuildRecord(ctx context.Context, s blob.Store, rec *record, o RepairOptions, rep *RepairReport) error {
	want := o.SaveID
	if want == "" && rec != nil {
		want = rec.SaveID
	}

	if err := commit.CheckIdle(ctx, s, lockFormat); err != nil {
		return err
	}
	if err := refuseDeltas(ctx, s); err != nil {
		return err
	}

	rb, err := chooseSave(ctx, s, want, rep)
	if err != nil {
		return changedOr(ctx, s, rec, err)
	}

	var lock *commit.SaveLock
	if !o.DryRun {
		// From here on no sweep removes the files of this save.
		if lock, err = commit.LockSave(ctx, s, lockFormat, rb.id); err != nil {
			return err
		}
	}

	rep.Recomputed, rep.Problems = 0, nil // of this try
	err = rb.scan(ctx, rec, o, rep)
	if err == nil && !o.DryRun {
		err = rb.write(ctx, rec)
	}

	if err = errors.Join(changedOr(ctx, s, rec, err), lock.Release()); err != nil {
		return err
	}

	rep.Rebuilt = true
	rep.count(rb.id, len(rb.names), totalsOf(rb.md.Entries))
	return nil
}

// changedOr returns err, or an error that wraps storage.ErrChanged if a save has
// replaced the record rec meanwhile: then the files that err is about were removed
// on purpose.
func changedOr(ctx context.Context, s blob.Store, rec *record, err error) error {
	if err == nil || errors.Is(err, storage.ErrChanged) {
		return err
	}
	now, readErr := readRecord(ctx, s)
	if readErr != nil || rec != nil && now.SaveID == rec.SaveID {
		return err
	}
	return fmt.Errorf("%w: %s now holds save %s: %w", storage.ErrChanged, s, now.SaveID, err)
}

// checkBeforeRepair returns an error if a file of the checkpoint is missing or has
// another size. With Force, it also verifies the whole checkpoint, because new checksums
// would hide damage.
func checkBeforeRepair(ctx context.Context, s blob.Store, rec *record, o RepairOptions) error {
	if o.SaveID != "" && o.SaveID != rec.SaveID {
		return nil // the files of another save are used
	}

	have, err := filesOf(ctx, s, rec.SaveID)
	if err != nil {
		return err
	}

	for _, f := range rec.Files {
		size, ok := have[f.Name]
		if !ok {
			return changedOr(ctx, s, rec, fmt.Errorf("%w: data file %s of %s is gone", storage.ErrIncomplete, f.Name, s))
		}
		if size != f.Size {
			return fmt.Errorf("%w: %s of %s has %d bytes, the record says %d", storage.ErrCorrupt, f.Name, s, size, f.Size)
		}
	}

	if !o.Force {
		return nil
	}

	c, err := Format{}.Open(ctx, s)
	if err != nil {
		return err
	}
	defer c.Close()

	rep, err := c.Verify(ctx, o.Progress)
	if err != nil || len(rep.Problems) == 0 {
		return err
	}

	p := rep.Problems[0]
	return fmt.Errorf("%w: %d problems, the first in %s: %s; the index is readable and its checksums are right: repair would only hide it",
		storage.ErrCorrupt, len(rep.Problems), p.File, p.Text)
}

// diagnose returns the record, or nil if it cannot be read, and whether record and
// index are whole. It returns an error if the store fails or the checkpoint has
// another version.
func diagnose(ctx context.Context, s blob.Store) (*record, bool, error) {
	rec, err := readRecord(ctx, s)
	if broken(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}

	c, err := openCheckpoint(ctx, s, readRecord, nil)
	if err == nil {
		defer c.Close()
		rec = c.full // it may be a later one
		if _, err = c.Metadata(ctx); err == nil && len(rec.Coded) > 0 {
			_, err = c.checkFiles(ctx)
		}
	}
	if broken(err) {
		return rec, false, nil
	}
	return rec, err == nil, err
}

// broken reports whether err means that the checkpoint is damaged or missing, and not
// that the store failed.
func broken(err error) bool {
	return errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrIncomplete) || errors.Is(err, storage.ErrNotFound)
}

// write replaces rec by a new index and record, unless another record has appeared
// or a data file has disappeared meanwhile.
func (rb *rebuild) write(ctx context.Context, rec *record) error {
	rb.md.Storage = meta.Storage{
		SaveID: rb.id, Step: rb.self.Step, Time: rb.self.Time, WorldSize: rb.self.WorldSize,
		Writer: rb.self.Writer, Tags: rb.self.Tags,
	}
	if rec != nil && rec.SaveID == rb.id {
		rb.md.PlannerData = rec.PlannerData
	}

	return commit.Locked(ctx, rb.store, func() error {
		cond, err := replaces(ctx, rb.store)
		if err != nil {
			return err
		}

		now, err := readRecord(ctx, rb.store)
		if err != nil && !broken(err) {
			return err
		}
		if err == nil && (rec == nil || now.SaveID != rec.SaveID) {
			return fmt.Errorf("%w: %s now holds save %s", storage.ErrChanged, rb.store, now.SaveID)
		}

		have, err := filesOf(ctx, rb.store, rb.id)
		if err != nil {
			return err
		}

		if err := commit.CheckFiles(have, []*storage.WriteResults{{Files: rb.files}}); err != nil {
			return err
		}

		err = commitIf(ctx, rb.store, &rb.md, rb.files, cond)
		if errors.Is(err, blob.ErrChanged) || errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %w", storage.ErrChanged, err)
		}
		return err
	})
}

// replaces returns the condition of a record that replaces the current record, or no
// condition if there is no record.
func replaces(ctx context.Context, s blob.Store) (*blob.CreateOptions, error) {
	info, err := s.Stat(ctx, recordName)
	if errors.Is(err, fs.ErrNotExist) {
		return &blob.CreateOptions{IfAbsent: true}, nil
	}
	return &blob.CreateOptions{IfVersion: info.Version}, err
}

// rebuild is a save that is described again from its data files.
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

// readHeaders puts the entries together from the headers of all data files. It returns
// an error if files or chunks of the save are missing.
func (rb *rebuild) readHeaders(ctx context.Context) error {
	found := finds{}
	left := map[int]int{} // by rank: files that it wrote and that were not read
	for _, name := range rb.names {
		h, self, err := readHeader(ctx, rb.store, name)
		if err != nil {
			return err
		}

		if rb.self == nil {
			rb.self = self
		}

		if err := errors.Join(rb.checkSelf(name, self), found.addFile(name, h, self)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}

		if _, seen := left[self.Rank]; !seen {
			left[self.Rank] = self.Files
		}
		left[self.Rank]--
	}

	known, err := readKnown(ctx, rb.store, rb.id)
	if err != nil {
		return err
	}

	rb.md.Entries = found.entries(known)
	var missing []string
	if n := rb.self.Ranks - len(left); rb.self.Ranks > 0 && n != 0 { // zero: unknown
		missing = append(missing, fmt.Sprintf("all files of %d of the %d ranks that wrote", n, rb.self.Ranks))
	}

	for _, rank := range slices.Sorted(maps.Keys(left)) {
		if n := left[rank]; n != 0 {
			missing = append(missing, fmt.Sprintf("%d files of rank %d", n, rank))
		}
	}

	for i := range rb.md.Entries {
		if e := &rb.md.Entries[i]; e.Tensor != nil {
			for _, p := range plan.CheckCoverage(e.Tensor.Shape, e.Tensor.Chunks) {
				missing = append(missing, fmt.Sprintf("%q: %s", e.FQN, p.Text))
			}
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

// checkSelf returns an error if the header of a data file contradicts the name of the
// file or the header of the first file.
func (rb *rebuild) checkSelf(name string, self *selfDescription) error {
	_, rank, number, _ := parseDataFileName(name)
	if self.SaveID != rb.id || self.Rank != rank || self.Number != number || number >= self.Files {
		return fmt.Errorf("%w: it says it is file %d of %d of save %s, rank %d",
			storage.ErrCorrupt, self.Number, self.Files, self.SaveID, self.Rank)
	}

	f := rb.self
	sameStep := self.Step == f.Step || self.Step != nil && f.Step != nil && *self.Step == *f.Step
	if !sameStep || !self.Time.Equal(f.Time) || self.WorldSize != f.WorldSize || self.Ranks != f.Ranks {
		return fmt.Errorf("%w: it contradicts %s about the save", storage.ErrCorrupt, rb.names[0])
	}
	return nil
}

// scan reads the data files and computes their checksums. Chunks and values keep the
// checksums that the index has for them, and the files of rec keep the checksums in rec: scan
// adds to rep which of them do not match.
func (rb *rebuild) scan(ctx context.Context, rec *record, o RepairOptions, rep *RepairReport) error {
	recorded := map[string]uint32{} // checksums of files
	if rec != nil && rec.SaveID == rb.id {
		for _, f := range rec.Files {
			recorded[f.Name] = f.CRC32C
		}
	}

	items := map[string][]*scanItem{}
	for id := range reading.Chunks(rb.md.Entries) {
		it := newScanItem(id)
		items[it.loc.File] = append(items[it.loc.File], it)
	}

	ties := rb.md.Ties()
	for _, name := range rb.names {
		items[name] = joinTied(items[name], ties)
		sortItems(items[name])
		s := &scan{items: items[name]}
		size, err := reading.Scan(ctx, rb.store, name, func(p []byte, at int64) {
			s.add(p, at)
			if o.Progress != nil {
				o.Progress(int64(len(p)))
			}
		})
		if err != nil {
			return err
		}

		var bad []reading.ChunkID
		fresh := int64(0)
		for _, it := range items[name] {
			for _, id := range it.ids() {
				switch loc := id.Loc(); {
				case loc.Sums == nil:
					loc.Sums = it.sums
					fresh++
				case !slices.Equal(loc.Sums, it.sums):
					bad = append(bad, id)
				}
			}
		}

		crc, ok := recorded[name]
		if !ok {
			crc = s.crc
		}

		text := fmt.Sprintf("its checksum is %08x, the record says %08x", s.crc, crc)
		switch {
		case crc != s.crc && fresh > 0 && !o.Force:
			return fmt.Errorf("%w: %s of %s: %s: new checksums would hide the damage from loads; only by force it gets them", storage.ErrCorrupt, name, rb.store, text)
		case crc == s.crc:
			text = "its bytes do not match the checksums in the index"
		}

		if crc != s.crc || len(bad) > 0 {
			rep.Problems = append(rep.Problems, storage.VerifyProblem{File: name, FQNs: reading.Names(bad), Text: text})
		}
		rep.Recomputed += fresh
		rb.files = append(rb.files, storage.File{Name: name, Size: size, CRC32C: crc})
	}

	return nil
}

// readKnown returns the entries of the index of a save, by name, as far as they can be
// read. A damaged block costs the entries in it, a missing index all of them.
func readKnown(ctx context.Context, s blob.Store, saveID string) (map[string]*meta.Entry, error) {
	r, err := s.Open(ctx, indexFileName(saveID))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()

	x, err := openIndex(ctx, r)
	if broken(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexFileName(saveID), err)
	}

	known := map[string]*meta.Entry{}
	entries := make([]meta.Entry, x.tail.entries)
	for i, b := range x.blocks {
		err := x.decodePiece(ctx, i, i+1, entries)
		if broken(err) {
			continue
		}
		if err != nil {
			return nil, err
		}

		for j := b.before; j < b.before+b.entries; j++ {
			known[entries[j].FQN] = &entries[j]
		}
	}

	return known, nil
}

// readHeader reads the header of a data file and its description of the file.
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

// FilePart is a chunk of a tensor in a data file.
type FilePart struct {
	FQN            string
	DType          tensor.DType
	Box            tensor.Box
	Offset, Length int64 // in the file
}

// FileParts returns the tensors in a data file as the file describes them, in the order of their bytes. If a
// tensor has several names, it has one of them.
func FileParts(ctx context.Context, s blob.Store, name string) ([]FilePart, error) {
	h, self, err := readHeader(ctx, s, name)
	if err != nil {
		return nil, err
	}
	var out []FilePart
	for _, he := range h.Entries {
		it := self.Items[he.Name]
		if it.DType == "" {
			continue // a value
		}
		at := h.Size + he.Begin
		e, err := it.entry(he, meta.Location{Offset: at, Length: he.End - he.Begin})
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %q: %w", storage.ErrCorrupt, name, he.Name, err)
		}
		out = append(out, FilePart{e.FQN, e.Tensor.DType, e.Tensor.Chunks[0], at, he.End - he.Begin})
	}
	slices.SortFunc(out, func(a, b FilePart) int { return cmp.Compare(a.Offset, b.Offset) })
	return out, nil
}

// finds are the entries that data files describe, by name.
type finds map[string]*find

// find is one name, with the chunks that were found of it.
type find struct {
	meta.Entry
	chunks []foundChunk
}

// foundChunk is a chunk, with its number in the index.
type foundChunk struct {
	number int32
	box    tensor.Box
	loc    meta.Location
}

// addFile adds the contents of one data file.
func (f finds) addFile(file string, h *safetensors.Header, self *selfDescription) error {
	for _, v := range self.Values {
		e := meta.Entry{FQN: v.FQN, Path: meta.Path(v.Path)}
		e.Bytes = &meta.Bytes{Codec: v.Codec, Size: int64(len(v.Data)), Inline: append([]byte{}, v.Data...)}
		if err := f.add(e, 0); err != nil {
			return err
		}
	}

	for _, he := range h.Entries {
		it, ok := self.Items[he.Name]
		if !ok {
			return fmt.Errorf("%w: it does not describe %q", storage.ErrCorrupt, he.Name)
		}

		e, err := it.entry(he, meta.Location{File: file, Offset: h.Size + he.Begin, Length: he.End - he.Begin})
		if err != nil {
			return fmt.Errorf("%w: %q: %w", storage.ErrCorrupt, he.Name, err)
		}

		if err := f.add(e, it.Chunk); err != nil {
			return err
		}

		for i := range it.Tied {
			t, err := it.Tied[i].entry(&e, he.Name)
			if err != nil {
				return fmt.Errorf("%w: %q: %w", storage.ErrCorrupt, he.Name, err)
			}
			if err := f.add(t, it.Tied[i].Chunk); err != nil {
				return err
			}
		}
	}

	return nil
}

// add adds an entry, or its chunk to the entry of the same name. number is the number of
// the chunk in the index.
func (f finds) add(e meta.Entry, number int32) error {
	have, ok := f[e.FQN]
	if !ok {
		have = &find{Entry: e}
		f[e.FQN] = have
	}

	switch {
	case e.Bytes != nil && have.Path.Equal(e.Path) && sameValue(have.Bytes, e.Bytes):
		// The first, or a copy that another rank wrote.
		have.chunks = append(have.chunks, foundChunk{loc: e.Bytes.Loc})
	case ok && (have.Tensor == nil || e.Tensor == nil || have.Tensor.Properties != e.Tensor.Properties ||
		!slices.Equal(have.Tensor.Shape, e.Tensor.Shape) || !have.Path.Equal(e.Path)):
		return fmt.Errorf("%w: it contradicts another file, or itself, about %q", storage.ErrCorrupt, e.FQN)
	case e.Tensor != nil:
		have.chunks = append(have.chunks, foundChunk{number, e.Tensor.Chunks[0], e.Tensor.Locs[0]})
	}

	return nil
}

// sameValue reports whether both are values, and one may be a copy of the other.
func sameValue(a, b *meta.Bytes) bool {
	return a != nil && b != nil && a.Codec == b.Codec && a.Size == b.Size && bytes.Equal(a.Inline, b.Inline)
}

// entries returns all entries in the order of their names, and their chunks in the order of
// their numbers. Of the copies of a chunk that several ranks wrote, it uses one. An entry of
// the index, which known has by its name, is used as it is if the data files have its chunks.
func (f finds) entries(known map[string]*meta.Entry) []meta.Entry {
	out := make([]meta.Entry, 0, len(f))
	for _, fqn := range slices.Sorted(maps.Keys(f)) {
		if k := known[fqn]; k != nil && f[fqn].has(k) {
			out = append(out, *k)
			continue
		}

		e, chunks := f[fqn].Entry, f[fqn].chunks
		slices.SortStableFunc(chunks, func(a, b foundChunk) int { return cmp.Compare(a.number, b.number) })
		chunks = slices.CompactFunc(chunks, func(a, b foundChunk) bool { return a.number == b.number && a.box.Equal(b.box) })
		if e.Tensor != nil {
			e.Tensor.Chunks, e.Tensor.Locs = nil, nil
		}

		for _, c := range chunks {
			if e.Tensor == nil {
				break // Bytes has the location of the first copy
			}
			e.Tensor.Chunks = append(e.Tensor.Chunks, c.box)
			e.Tensor.Locs = append(e.Tensor.Locs, c.loc)
		}

		out = append(out, e)
	}

	return out
}

// has reports whether the data files have the tensor or value e, and each of its chunks
// at the place that e names.
func (f *find) has(e *meta.Entry) bool {
	type place struct {
		file, key      string
		offset, length int64
	}
	placeOf := func(l *meta.Location) place { return place{l.File, keyOf(l), l.Offset, l.Length} }
	at := make(map[place]foundChunk, len(f.chunks))
	for _, c := range f.chunks {
		at[placeOf(&c.loc)] = c
	}

	if !f.Path.Equal(e.Path) || (f.Tensor == nil) != (e.Tensor == nil) {
		return false
	}
	if e.Bytes != nil {
		_, ok := at[placeOf(&e.Bytes.Loc)]
		// The bytes of an inline value have a checksum in the index, but not in the header.
		return ok && f.Bytes.Codec == e.Bytes.Codec && (f.Bytes.Inline == nil) == (e.Bytes.Inline == nil)
	}

	if f.Tensor.Properties != e.Tensor.Properties || !slices.Equal(f.Tensor.Shape, e.Tensor.Shape) {
		return false
	}

	for i, box := range e.Tensor.Chunks {
		if c, ok := at[placeOf(&e.Tensor.Locs[i])]; !ok || !c.box.Equal(box) {
			return false
		}
	}

	return true
}

// entry returns an entry with the one chunk, or the value, that s describes. he is its
// entry in the header of the file, and loc its location.
func (s *selfItem) entry(he safetensors.Entry, loc meta.Location) (meta.Entry, error) {
	e := meta.Entry{FQN: he.Name, Path: meta.Path(s.Path)}
	sizes := he.Shape
	if s.FQN != "" {
		e.FQN, sizes = s.FQN, s.Sizes
		loc.Detail = &meta.Detail{Key: he.Name}
	}

	if err := meta.CheckFQN(e.FQN); err != nil {
		return e, err
	}
	if s.DType == "" {
		e.Bytes = &meta.Bytes{Codec: s.Codec, Size: loc.Length, Loc: loc}
		return e, nil
	}

	d, err := tensor.ParseDType(s.DType)
	if err != nil {
		return e, err
	}

	if name, _ := safetensors.StockName(d); s.FQN == "" && name != he.DType {
		return e, fmt.Errorf("it is %v and %s", d, he.DType)
	}

	box := tensor.Box{Offsets: s.Offsets, Sizes: sizes}
	if err := box.Check(s.Shape); err != nil {
		return e, err
	}

	if n, err := tensor.NumBytes(d, sizes); err != nil || n != loc.Length {
		return e, fmt.Errorf("%v of %v in %d bytes", sizes, d, loc.Length)
	}

	e.Tensor = &meta.Tensor{Shape: s.Shape, Chunks: []tensor.Box{box}, Locs: []meta.Location{loc}}
	e.Tensor.Properties = meta.Properties{
		DType: d, RequiresGrad: s.RequiresGrad, MemoryFormat: s.MemoryFormat, Layout: s.Layout, PinMemory: s.PinMemory,
	}
	return e, nil
}

// entry returns the entry of a further name of the tensor e. The chunk of e is stored under
// key.
func (t *selfTied) entry(e *meta.Entry, key string) (meta.Entry, error) {
	out := meta.Entry{FQN: t.FQN, Path: meta.Path(t.Path)}
	if e.Tensor == nil {
		return out, errors.New("a value has the names of a tensor")
	}

	if err := meta.CheckFQN(t.FQN); err != nil {
		return out, err
	}

	loc := e.Tensor.Locs[0]
	loc.Detail = &meta.Detail{Key: key}
	out.Tensor = &meta.Tensor{Shape: e.Tensor.Shape, Chunks: slices.Clone(e.Tensor.Chunks), Locs: []meta.Location{loc}}
	out.Tensor.Properties = meta.Properties{
		DType: e.Tensor.DType, RequiresGrad: t.RequiresGrad, MemoryFormat: t.MemoryFormat, Layout: t.Layout, PinMemory: t.PinMemory,
	}
	return out, nil
}
