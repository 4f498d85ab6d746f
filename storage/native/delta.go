package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/publish"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// baseFolder is a folder beside the checkpoint that holds files to which it refers.
type baseFolder struct {
	Folder string
	Files  []storage.Reference
}

// deltaFileName returns the name of the delta file of a data file.
func deltaFileName(data string) string { return strings.TrimSuffix(data, dataSuffix) + deltaSuffix }

// addCoded adds the files that are stored as delta files, and the folders to which these
// refer, the newest first. Delta files that store no data file have the hashes of one.
func (r *record) addCoded(coded []storage.Coded) {
	stored := map[string]bool{}
	bases := map[string][]storage.Reference{}
	for _, c := range coded {
		stored[c.Stored] = true
		for _, f := range c.Refers {
			if !slices.Contains(bases[f.Folder], f) {
				bases[f.Folder] = append(bases[f.Folder], f)
			}
		}
		c.Refers = nil
		r.Coded = append(r.Coded, c)
	}
	for folder, files := range bases {
		slices.SortFunc(files, func(a, b storage.Reference) int { return strings.Compare(a.Name, b.Name) })
		r.Bases = append(r.Bases, baseFolder{folder, files})
	}
	newest := func(b *baseFolder) string { return b.Files[len(b.Files)-1].Name } // names begin with the time of the save
	slices.SortFunc(r.Bases, func(a, b baseFolder) int {
		return cmp.Or(strings.Compare(newest(&b), newest(&a)), strings.Compare(a.Folder, b.Folder))
	})
	r.Files = slices.DeleteFunc(r.Files, func(f storage.File) bool {
		hashes := strings.HasSuffix(f.Name, deltaSuffix) && !stored[f.Name]
		if hashes {
			r.Hashes = append(r.Hashes, f)
		}
		return hashes
	})
}

// base is the checkpoint that a save refers to, opened on one rank.
type base struct {
	folder  string
	c       *checkpoint // nil: there is none
	folders []string    // to which segments may refer
	sources map[string]*delta.Source
	warn    func(error)
}

// maxBases bounds the number of folders to which a checkpoint refers.
const maxBases = delta.MaxBodies

// openBase opens the base of the save. If it cannot be used, the save does without it.
func (w *writer) openBase(ctx context.Context) *base {
	b := &base{sources: map[string]*delta.Source{}, warn: w.Session().Warn}
	if w.opts.Base.Folder == "" {
		return b
	}
	b.folder = w.opts.Base.Folder
	if b.warn == nil {
		b.warn = func(error) {}
	}
	c, err := w.findBase(ctx)
	if err != nil {
		b.warn(fmt.Errorf("the save does not refer to %s: %w", b.folder, err))
		return b
	}
	b.c = c
	b.folders = append(b.folders, b.folder)
	_, own, _ := blob.Parent(w.store)
	for _, f := range c.full.Bases {
		if f.Folder != own && len(b.folders) < maxBases {
			b.folders = append(b.folders, f.Folder)
		}
	}
	return b
}

func (w *writer) findBase(ctx context.Context) (*checkpoint, error) {
	folder := w.opts.Base.Folder
	if err := delta.CheckFolder(folder); err != nil {
		return nil, err
	}
	_, own, err := blob.Parent(w.store)
	if err != nil {
		return nil, err
	}
	if own == folder {
		return nil, errors.New("it is the folder that is saved to")
	}
	if err := delta.CheckFolder(own); err != nil { // a removal of the base would not find this checkpoint
		return nil, err
	}
	store, err := blob.Beside(w.store, folder)
	if err != nil {
		return nil, err
	}
	return openCheckpoint(ctx, store, readRecordOnly)
}

// neededBeside returns the names of files in the folder of a checkpoint with the record rec
// to which checkpoints beside it refer. It looks for them only if there can be any.
func neededBeside(ctx context.Context, store blob.Store, rec *record) (map[string]bool, error) {
	possible := len(rec.Coded)+len(rec.Hashes) > 0
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		id, ours := saveOf(info.Name)
		if possible = possible || ours && (id != rec.SaveID || strings.HasSuffix(info.Name, deltaSuffix)); possible {
			return referred(ctx, store)
		}
	}
	return nil, nil
}

// refuseDeltas returns an error if a store holds a data file in the form of a delta file. A
// repair would leave it out.
func refuseDeltas(ctx context.Context, store blob.Store) error {
	infos := map[string]bool{}
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return err
		}
		infos[info.Name] = true
	}
	for name := range infos {
		stem, ok := strings.CutSuffix(name, deltaSuffix)
		if _, ours := parseDataOrDelta(name); ok && ours && !infos[stem+dataSuffix] {
			return fmt.Errorf("%w: %s of %s stores a data file that refers to other checkpoints, and its record or index cannot be rebuilt", errors.ErrUnsupported, name, store)
		}
	}
	return nil
}

// Needed returns the names of files at the root of a store to which checkpoints in the
// folders beside it refer. They are not removed when the checkpoint there is replaced.
func Needed(ctx context.Context, store blob.Store) (map[string]bool, error) {
	rec, err := readRecordOnly(ctx, store)
	switch {
	case err == nil:
		return neededBeside(ctx, store, rec)
	case errors.Is(err, storage.ErrNotFound), errors.Is(err, storage.ErrCorrupt), errors.Is(err, storage.ErrVersion):
		return neededBeside(ctx, store, &record{}) // the files may still be there
	}
	return nil, err
}

// CheckUnreferred returns an error that wraps storage.ErrInUse if a checkpoint in a folder
// beside the store refers to the checkpoint in it.
func CheckUnreferred(ctx context.Context, store blob.Store) error {
	names, err := Needed(ctx, store)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%w: other checkpoints of the run refer to %s; 'cairn flatten' makes them stand alone", storage.ErrInUse, store)
	}
	return err
}

// neededForSweeps is referred without the folders that this process may not read. A folder of
// checkpoints may be beside private folders of others, such as in /tmp.
func neededForSweeps(ctx context.Context, store blob.Store) (map[string]bool, error) {
	return referredBy(ctx, store, func(err error) bool { return errors.Is(err, fs.ErrPermission) })
}

// referred returns the names of files in the folder of a checkpoint to which checkpoints in
// the folders beside it refer.
func referred(ctx context.Context, store blob.Store) (map[string]bool, error) {
	return referredBy(ctx, store, func(error) bool { return false })
}

// referredBy is referred without the folders whose record cannot be read for a reason that
// skip accepts.
func referredBy(ctx context.Context, store blob.Store, skip func(error) bool) (map[string]bool, error) {
	parent, own, err := blob.Parent(store)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil // nothing is beside it
	}
	if err != nil {
		return nil, err
	}
	folders, err := blob.Folders(ctx, parent, "")
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	soon, err := publish.Referring(ctx, store)
	if err != nil {
		return nil, err
	}
	if soon { // a save is about to refer to some of the files
		for info, err := range store.List(ctx, "") {
			if err != nil {
				return nil, err
			}
			out[info.Name] = true
		}
	}
	for _, name := range folders {
		if name == own || blob.CheckName(name) != nil {
			continue
		}
		at, err := blob.NewSub(parent, name)
		if err != nil {
			return nil, err
		}
		rec, err := readRecordOnly(ctx, at)
		if errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrCorrupt) || err != nil && skip(err) {
			continue
		}
		if err != nil { // a record of a later version may refer to anything
			return nil, err
		}
		for _, b := range rec.Bases {
			for _, f := range b.Files {
				if b.Folder == own {
					out[f.Name] = true
				}
			}
		}
	}
	return out, nil
}

// Whole returns a view of a checkpoint in which all of its files are stored as they are
// and refer to no other folder. It returns store if that is so in the store itself, or if
// there is no checkpoint of this format that can be opened.
func Whole(ctx context.Context, store blob.Store) blob.Store {
	rec, err := readRecordOnly(ctx, store)
	if err != nil || len(rec.Coded) == 0 {
		return store
	}
	w, err := newWhole(store, rec)
	if err != nil {
		return store
	}
	return w.view()
}

// holdBases keeps the folders to which the results refer from being removed, and checks that
// the files are there. From the commit on, the record shows that they are needed; the
// caller calls release after it.
func (w *writer) holdBases(ctx context.Context, results []*storage.WriteResults) (release func(), err error) {
	var held []func()
	free := func() {
		for _, f := range held {
			f()
		}
	}
	defer func() {
		if err != nil {
			free()
		}
	}()
	var rec record
	for _, r := range results {
		rec.addCoded(r.Coded)
	}
	for _, b := range rec.Bases {
		at, err := blob.Beside(w.store, b.Folder)
		if err != nil {
			return nil, err
		}
		if err := checkBases(ctx, w.store, []baseFolder{b}); err != nil { // a lock would make the folder
			return nil, err
		}
		err = publish.Locked(ctx, at, func() error { // in which a save that replaces the base removes files
			done, err := publish.ReadingNow(ctx, at)
			if err != nil {
				return fmt.Errorf("the save refers to %s: %w", at, err)
			}
			held = append(held, done)
			return checkBases(ctx, w.store, []baseFolder{b})
		})
		if err != nil {
			return nil, err
		}
	}
	return free, nil
}

// close closes the base.
func (b *base) close() {
	if b.c != nil {
		b.c.Close()
	}
	for _, s := range b.sources {
		if s != nil {
			s.Close()
		}
	}
}

// code decides how a data file is stored: as a delta file if it has a base, and otherwise as
// it is, with its hashes beside it.
func (b *base) code(ctx context.Context, f *dataFile, to *publish.DataFile) error {
	ranges := []delta.Range{{Len: int64(len(f.header)), Width: 1}}
	found := false
	for i := range f.items {
		it := &f.items[i]
		r := delta.Range{Len: it.length, Width: max(1, elementSize(it.item))}
		var err error
		if r.Base, r.BaseOff, err = b.find(ctx, it); err != nil {
			return err
		}
		found = found || r.Base != nil
		ranges = append(ranges, r)
	}
	if !found {
		h := delta.NewHasher(ranges)
		to.Seen = h.Add
		to.Beside = func(crc uint32) publish.File {
			return publish.File{Name: deltaFileName(f.name), Data: h.Finish(f.name, f.size, crc).Append(nil)}
		}
		return nil
	}
	to.Coder = &coder{Encoder: delta.NewEncoder(ranges, b.folders), name: f.name}
	return nil
}

// find returns where the base has an earlier state of an item.
func (b *base) find(ctx context.Context, it *placed) (*delta.Source, int64, error) {
	if b.c == nil || it.length == 0 || it.item.Kind == plan.KindBytes {
		return nil, 0, nil
	}
	e, ok, err := b.c.Find(ctx, it.item.FQN())
	if ctx.Err() != nil {
		return nil, 0, context.Cause(ctx)
	}
	if err != nil || !ok || e.Tensor == nil || e.Tensor.DType != it.item.Info.DType {
		return nil, 0, nil
	}
	i, ok := e.Tensor.FindChunk(it.item.Box.Offsets, 0)
	if !ok || !slices.Equal(e.Tensor.Chunks[i].Sizes, it.item.Box.Sizes) {
		return nil, 0, nil
	}
	l := &e.Tensor.Locs[i]
	s, err := b.source(ctx, l.File)
	if s == nil || l.Length != it.length {
		return nil, 0, err
	}
	return s, l.Offset, nil
}

// source opens a data file of the base. It returns nil if the file cannot be used.
func (b *base) source(ctx context.Context, name string) (*delta.Source, error) {
	if s, ok := b.sources[name]; ok {
		return s, nil
	}
	b.sources[name] = nil
	stored := deltaFileName(name)
	coded := slices.ContainsFunc(b.c.full.Coded, func(c storage.Coded) bool { return c.Name == name })
	hashed := slices.ContainsFunc(b.c.full.Hashes, func(f storage.File) bool { return f.Name == stored })
	if !coded && !hashed {
		return nil, nil
	}
	s, err := delta.OpenSource(ctx, b.c.raw, b.folder, name, stored, !coded)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		b.warn(fmt.Errorf("the save does not refer to %s of %s: %w", name, b.folder, err))
		return nil, nil
	}
	b.sources[name] = s
	return s, nil
}

// coder implements publish.Coder.
type coder struct {
	*delta.Encoder
	name string // of the data file
}

var _ publish.Coder = (*coder)(nil)

// Name returns the name of the delta file.
func (c *coder) Name() string { return deltaFileName(c.name) }

// Finish returns the end of the delta file.
func (c *coder) Finish(size int64, crc uint32) ([]byte, storage.Coded) {
	t := c.Encoder.Finish(size, crc)
	out := storage.Coded{File: storage.File{Name: c.name, Size: size, CRC32C: crc}, Stored: c.Name()}
	for _, f := range t.Files {
		out.Refers = append(out.Refers, storage.Reference(f))
	}
	return t.Append(nil), out
}

// whole is a store with a checkpoint whose data files are stored as delta files. It shows
// the data files as if they were stored whole, and the record without references. Other
// names are those of the store. It is read-only. It is not a blob.Wrapper, because the
// store behind it has other objects.
type whole struct {
	blob.Store
	rec    *record                  // without references
	record []byte                   // its bytes
	coded  map[string]storage.Coded // by the name of the data file
	stored map[string]bool          // the names of the delta files
	bases  []baseFolder
}

var (
	_ blob.Store        = (*whole)(nil)
	_ blob.Locker       = (*whole)(nil)
	_ blob.FolderLister = (*whole)(nil)
	_ blob.Cooler       = (*whole)(nil)
)

// slowWhole is a whole over a store with expensive requests.
type slowWhole struct{ *whole }

var (
	_ blob.GapReader = slowWhole{}
	_ blob.Knower    = slowWhole{}
)

// ReadGap implements blob.GapReader.
func (w slowWhole) ReadGap() int64 {
	g, _ := blob.As[blob.GapReader](w.Store)
	return g.ReadGap()
}

// view returns w, with the capabilities of the store behind it.
func (w *whole) view() blob.Store {
	if _, slow := blob.As[blob.GapReader](w.Store); slow {
		return slowWhole{w}
	}
	return w
}

// newWhole returns the view of a checkpoint with the record rec.
func newWhole(store blob.Store, rec *record) (*whole, error) {
	w := &whole{Store: store, rec: rec.alone(), coded: map[string]storage.Coded{}, stored: map[string]bool{}, bases: rec.Bases}
	for _, c := range rec.Coded {
		w.coded[c.Name] = c
		w.stored[c.Stored] = true
	}
	var err error
	w.record, err = encodeRecord(w.rec)
	return w, err
}

// Create implements blob.Store.
func (w *whole) Create(_ context.Context, name string, _ *blob.CreateOptions) (blob.Writer, error) {
	return nil, w.readOnly("create", name)
}

// Remove implements blob.Store.
func (w *whole) Remove(_ context.Context, name string) error { return w.readOnly("remove", name) }

func (w *whole) readOnly(op, name string) error {
	return &blob.Error{Op: op, Store: w.String(), Name: name, Err: errors.ErrUnsupported}
}

// Open implements blob.Store.
func (w *whole) Open(ctx context.Context, name string) (blob.Reader, error) {
	if c, ok := w.coded[name]; ok {
		r, err := delta.Open(ctx, w.Store, c.Stored)
		if err != nil {
			return nil, err
		}
		if r.Size() != c.Size {
			r.Close()
			return nil, fmt.Errorf("%w: %s of %s holds a file of %d bytes, the record says %d", storage.ErrCorrupt, c.Stored, w.Store, r.Size(), c.Size)
		}
		return r, nil
	}
	if w.stored[name] {
		return nil, &blob.Error{Op: "open", Store: w.String(), Name: name, Err: fs.ErrNotExist}
	}
	r, err := w.Store.Open(ctx, name)
	if err != nil || name != recordName {
		return r, err
	}
	return &recordReader{Reader: r, data: w.record}, nil
}

// recordReader reads the record without references. The reader of the record itself
// tells its version.
type recordReader struct {
	blob.Reader
	data []byte
}

func (r *recordReader) Size() int64 { return int64(len(r.data)) }

// Version implements blob.VersionReader.
func (r *recordReader) Version() string {
	if v, ok := r.Reader.(blob.VersionReader); ok {
		return v.Version()
	}
	return ""
}

func (r *recordReader) ReadAt(_ context.Context, p []byte, off int64) error {
	if off < 0 || off > int64(len(r.data)-len(p)) {
		return &blob.Error{Op: "read", Name: recordName, Err: blob.ErrRange}
	}
	copy(p, r.data[off:])
	return nil
}

// OpenKnown implements blob.Knower.
func (w slowWhole) OpenKnown(ctx context.Context, o blob.Info) (blob.Reader, error) {
	if _, ok := w.coded[o.Name]; ok || o.Name == recordName {
		return w.Open(ctx, o.Name)
	}
	return blob.OpenKnown(ctx, w.Store, o)
}

// Stat implements blob.Store.
func (w *whole) Stat(ctx context.Context, name string) (blob.Info, error) {
	c, ok := w.coded[name]
	switch {
	case ok:
		info, err := w.Store.Stat(ctx, c.Stored)
		if err != nil {
			return blob.Info{}, err
		}
		return blob.Info{Name: name, Size: c.Size, ModTime: info.ModTime}, nil
	case w.stored[name]:
		return blob.Info{}, &blob.Error{Op: "stat", Store: w.String(), Name: name, Err: fs.ErrNotExist}
	}
	info, err := w.Store.Stat(ctx, name)
	if err == nil && name == recordName {
		info.Size = int64(len(w.record))
	}
	return info, err
}

// List implements blob.Store.
func (w *whole) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		data := map[string]storage.Coded{} // by the name of the delta file
		for _, c := range w.coded {
			data[c.Stored] = c
		}
		var all []blob.Info
		for info, err := range w.Store.List(ctx, "") {
			if err != nil {
				yield(blob.Info{}, err)
				return
			}
			if c, ok := data[info.Name]; ok {
				info = blob.Info{Name: c.Name, Size: c.Size, ModTime: info.ModTime}
			} else if w.stored[info.Name] {
				continue
			}
			if info.Name == recordName {
				info.Size = int64(len(w.record))
			}
			if strings.HasPrefix(info.Name, prefix) {
				all = append(all, info)
			}
		}
		slices.SortFunc(all, func(a, b blob.Info) int { return strings.Compare(a.Name, b.Name) })
		for _, info := range all {
			if !yield(info, nil) {
				return
			}
		}
	}
}

// Folders implements blob.FolderLister.
func (w *whole) Folders(ctx context.Context, dir string) ([]string, error) {
	return blob.Folders(ctx, w.Store, dir)
}

// TryLock implements blob.Locker.
func (w *whole) TryLock(ctx context.Context, name string, note []byte) (blob.HeldLock, error) {
	l, ok := blob.As[blob.Locker](w.Store)
	if !ok {
		return nil, w.readOnly("lock", name)
	}
	return l.TryLock(ctx, name, note)
}

// Locks implements blob.Locker.
func (w *whole) Locks(ctx context.Context, dir string) ([]blob.Lock, error) {
	l, ok := blob.As[blob.Locker](w.Store)
	if !ok {
		return nil, nil
	}
	return l.Locks(ctx, dir)
}

// Cool implements blob.Cooler. It also drops the files that a data file refers to.
func (w *whole) Cool(ctx context.Context, name string) error {
	c, ok := w.coded[name]
	if !ok {
		return cool(ctx, w.Store, name)
	}
	errs := []error{cool(ctx, w.Store, c.Stored)}
	for _, b := range w.bases {
		at, err := blob.Beside(w.Store, b.Folder)
		errs = append(errs, err)
		for _, f := range b.Files {
			if err == nil {
				errs = append(errs, cool(ctx, at, f.Name))
			}
		}
	}
	return errors.Join(errs...)
}

func cool(ctx context.Context, s blob.Store, name string) error {
	c, ok := blob.As[blob.Cooler](s)
	if !ok {
		return &blob.Error{Op: "cool", Store: s.String(), Name: name, Err: errors.ErrUnsupported}
	}
	return c.Cool(ctx, name)
}

// origins returns the end of a text about damaged chunks of a data file: which files of
// other folders hold bytes of them. It is empty if the file refers to no other.
func (c *checkpoint) origins(ctx context.Context, file string, bad []reading.ChunkID) string {
	if c.whole == nil || c.whole.coded[file].Stored == "" {
		return ""
	}
	r, err := delta.Open(ctx, c.raw, c.whole.coded[file].Stored)
	if err != nil {
		return ""
	}
	defer r.Close()
	var names []string
	for _, id := range bad {
		names = append(names, r.Origins(id.Loc().Offset, id.Loc().Length)...)
	}
	if len(bad) == 0 {
		names = r.Origins(0, r.Size())
	}
	slices.Sort(names)
	if names = slices.Compact(names); len(names) == 0 {
		return ""
	}
	return "; its bytes are also in " + strings.Join(names, ", ")
}

// checkBases returns an error that wraps storage.ErrCorrupt if a file to which the
// checkpoint in store refers is gone or has another size.
func checkBases(ctx context.Context, store blob.Store, bases []baseFolder) error {
	for _, b := range bases {
		at, err := blob.Beside(store, b.Folder)
		if err != nil {
			return fmt.Errorf("%s refers to the folder %s beside it: %w", store, b.Folder, err)
		}
		for _, f := range b.Files {
			info, err := at.Stat(ctx, f.Name)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return fmt.Errorf("%w: %s refers to %s of %s, which is gone: %w", storage.ErrCorrupt, store, f.Name, at, err)
			case err != nil:
				return err
			case info.Size != f.Size:
				return fmt.Errorf("%w: %s refers to %s of %s, which has %d bytes instead of %d", storage.ErrCorrupt, store, f.Name, at, info.Size, f.Size)
			}
		}
	}
	return nil
}
