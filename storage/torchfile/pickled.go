package torchfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/tensor"
)

// pickledWriter writes the files of a training program that has many files of torch.save in one
// folder, such as DeepSpeed. Each rank writes files of its own. The caller has pickled their
// objects as torch.save does: the items of a file are tensors of bytes, with the paths
// [FILE pickle] and, for the storages of the pickle, [FILE 0], [FILE 1] and so on.
//
// The names of the files are given, so a file replaces an older one of the same name as soon as it
// is durable. The pointer is written after all of them. A folder that the pointer names already is
// not written to: an interrupted save would leave files of two saves in it.
type pickledWriter struct {
	*commit.Committer
	store  blob.Store
	format Format
}

var (
	_ storage.Writer          = (*pickledWriter)(nil)
	_ storage.MetadataChecker = (*pickledWriter)(nil)
)

// pickleKey is the last step of the path of a pickle.
const pickleKey = "pickle"

// maxTag bounds the text of a pointer.
const maxTag = 1 << 10

func (f Format) newPickledWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	err := errors.Join(
		o.Check(),
		o.RefuseRankLocal(f.Name()),
		o.RefuseBase(f.Name()),
		storage.RefuseIf(f.File != "" || f.Flat, "the option \"folder\" of the format %s excludes \"file\" and \"flat\"", f.Name()),
		storage.RefuseIf(o.FailIfExists || o.Replaces != nil, "the files of a folder of the format %s replace older ones: the save must allow it", f.Name()),
		blob.CheckName(f.Folder),
	)
	if f.Pointer != "" {
		err = errors.Join(err, blob.CheckName(f.Pointer))
	}
	if err != nil {
		return nil, err
	}

	o.Others = nil // the files are the caller's, whatever is beside them
	prefix := f.Folder + "/"
	files := &commit.Format{
		Name: f.Name(), Prefix: prefix, FixedNames: true,
		Parse: func(name string) (string, bool) { return "", strings.HasPrefix(name, prefix) },
		// The files do not tell which save has written them, so no file is a leftover.
		Identify: func(context.Context, blob.Store, []commit.Leftover) ([]commit.Leftover, error) { return nil, nil },
		Read: func(ctx context.Context, store blob.Store) (*commit.Existing, error) {
			if f.Pointer == "" {
				return nil, storage.ErrNotFound
			}
			_, err := store.Stat(ctx, f.Pointer)
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%w: %w", storage.ErrNotFound, err)
			}
			return &commit.Existing{}, err
		},
	}
	if f.Pointer != "" {
		files.Records = []string{f.Pointer}
	}
	return &pickledWriter{commit.New(store, files, o), store, f}, nil
}

// PrepareLocalPlan returns p, or an error if an item is not a tensor of bytes. The coordinator
// returns an error if the pointer names the folder already.
func (w *pickledWriter) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	if w.Session().Coordinator {
		if err := w.checkPointer(ctx); err != nil {
			return nil, err
		}
	}
	return w.Prepare(ctx, p, func(it *plan.WriteItem) error {
		_, _, err := w.place(it)
		return err
	})
}

// checkPointer returns an error if the pointer names the folder and the folder has files.
func (w *pickledWriter) checkPointer(ctx context.Context) error {
	if w.format.Pointer == "" {
		return nil
	}

	text, err := blob.ReadAll(ctx, w.store, w.format.Pointer, maxTag)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, blob.ErrTooLarge) {
		return nil
	}
	if err != nil || strings.TrimSpace(string(text)) != w.format.Folder {
		return err
	}

	for _, err := range w.store.List(ctx, w.format.Folder+"/") {
		if err != nil {
			return err
		}
		return fmt.Errorf("%w: %s names %s already, and its files cannot be replaced in one step: save under another name, or remove the folder",
			storage.ErrExists, w.format.Pointer, w.format.Folder)
	}
	return nil
}

// PrepareGlobalPlan returns ps, unless two ranks have the same file.
func (w *pickledWriter) PrepareGlobalPlan(_ context.Context, ps []*plan.SavePlan) ([]*plan.SavePlan, error) {
	owner := map[string]int{}
	for rank, p := range ps {
		for i := range p.Items {
			file, _, err := w.place(&p.Items[i])
			if err != nil {
				return nil, err
			}
			if first, ok := owner[file]; ok && first != rank {
				return nil, &storage.NotRepresentable{FQN: p.Items[i].FQN(), Why: fmt.Sprintf("a file of torch.save is written by one rank, and ranks %d and %d have it", first, rank)}
			}
			owner[file] = rank
		}
	}
	return ps, nil
}

// CheckMetadata refuses planner data.
func (w *pickledWriter) CheckMetadata(md *meta.Metadata) error {
	return storage.RefusePlannerData(Format{}.Name(), md)
}

// place returns the file of an item and its position in it: -1 is the pickle.
func (w *pickledWriter) place(it *plan.WriteItem) (file string, at int, err error) {
	refuse := func(why string) (string, int, error) {
		return "", 0, &storage.NotRepresentable{FQN: it.FQN(), Why: why}
	}
	path := it.Info.Path
	if len(path) != 2 || path[0].List || path[1].List {
		return refuse("the path of a part of a pickled file has two keys: the file and the part")
	}
	if it.Kind == plan.KindBytes || it.Info.DType != tensor.Uint8 || len(it.Info.Shape) != 1 || checkWhole(it) != nil {
		return refuse("a part of a pickled file is a whole tensor of bytes with one dimension")
	}
	if err := blob.CheckName(path[0].Key); err != nil {
		return refuse(err.Error())
	}
	if path[1].Key == pickleKey {
		return path[0].Key, -1, nil
	}
	if at, err = strconv.Atoi(path[1].Key); err != nil || at < 0 {
		return refuse(fmt.Sprintf("%q is neither %q nor the number of a storage", path[1].Key, pickleKey))
	}
	return path[0].Key, at, nil
}

// WriteData writes the files of this rank. Each is visible when it is durable.
func (w *pickledWriter) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	parts := map[string]map[int]*plan.WriteItem{}
	for i := range p.Items {
		it := &p.Items[i]
		file, at, err := w.place(it)
		if err != nil {
			return nil, err
		}
		if parts[file] == nil {
			parts[file] = map[int]*plan.WriteItem{}
		}
		parts[file][at] = it
	}

	var files []*commit.DataFile
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		f, err := layPickled(w.format.Folder+"/"+name, parts[name])
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return w.Write(ctx, files, data, p.NumBytes())
}

// layPickled lays out a file of its items: the pickle has the number -1, and the storages the numbers
// from 0 on.
func layPickled(name string, items map[int]*plan.WriteItem) (*commit.DataFile, error) {
	c := &collected{items: map[*torchsave.Slot]*plan.WriteItem{}}
	slots := make([]*torchsave.Slot, len(items))
	for i := range slots {
		it := items[i-1]
		if it == nil {
			return nil, fmt.Errorf("%w: of %d parts of %s, number %d is missing", plan.ErrState, len(items), name, i-1)
		}
		slots[i] = &torchsave.Slot{DType: it.Info.DType, Shape: it.Info.Shape}
		c.items[slots[i]] = it
	}
	return c.file(torchsave.LayPickled(name, slots[0], slots[1:]), &commit.Held{Name: name}), nil
}

// Finish writes the pointer, if there is one.
func (w *pickledWriter) Finish(ctx context.Context, md *meta.Metadata, results []*storage.WriteResults) error {
	if _, err := storage.Locate(md, results); err != nil {
		return err
	}
	if err := errors.Join(w.CheckMetadata(md), storage.RefuseStorageData(Format{}.Name(), results)); err != nil {
		return err
	}
	if w.format.Pointer == "" {
		return w.CommitFiles(ctx, results)
	}
	return w.Commit(ctx, commit.File{Name: w.format.Pointer, Data: []byte(w.format.Folder)}, results)
}
