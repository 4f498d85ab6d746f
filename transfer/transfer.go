// Package transfer copies checkpoints between stores, file by file. It does not depend on the
// kinds of the stores. From formats it needs only the list of files of a checkpoint, and
// which one is written last. The contract is at Copy.
package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Options change how Copy works. Nil means the defaults.
type Options struct {
	// Overwrite replaces a checkpoint of the target, of the same format. If the files of both have different
	// names, the old checkpoint can be read until the new one is complete. Otherwise
	// there is no checkpoint in the meantime.
	Overwrite bool
	// Replaces, if not empty, is the id of the save that Overwrite may replace. The error wraps
	// storage.ErrChanged if the target holds another save, and storage.ErrExists if files of both
	// have the same names, so that the old checkpoint could not be read in the meantime.
	Replaces string
	// Only, if not nil, has the ids of the saves that Overwrite may replace: see storage.MayReplace.
	Only []string
	// Full reads the whole target when it is complete and verifies it.
	Full bool
	// As is the name of the file in the target, for a checkpoint of one file. Empty: the
	// same.
	As string
	// Memory bounds the buffers. Two of 8 MiB are always used. Zero: 256 MiB.
	Memory int64
	// Parallel bounds the files, and the pieces of a file, that are copied at the same
	// time. Zero: 16.
	Parallel int
	// Group, if not nil, are the ranks that copy together. All of them call Copy, with the
	// same source and target, and return the same report, or an error that names the ranks
	// that failed. They divide the data files by their bytes; rank 0 copies the other files.
	// Planned and Progress receive the bytes of this rank only, without the files that are
	// in the target already.
	Group group.Group
	// Planned, if not nil, receives the bytes of all files before the first one is
	// copied, and Progress the bytes that were copied, or found to be in the target,
	// since the last call. Progress is called from several goroutines at once.
	Planned, Progress func(bytes int64)

	keepOld bool // files of the checkpoint that is replaced stay
}

func (o *Options) withDefaults() Options {
	var out Options
	if o != nil {
		out = *o
	}
	if out.Memory <= 0 {
		out.Memory = 256 << 20
	}
	if out.Parallel <= 0 {
		out.Parallel = 16
	}

	if out.Planned == nil {
		out.Planned = func(int64) {}
	}
	if out.Progress == nil {
		out.Progress = func(int64) {}
	}
	return out
}

// Report describes a copy.
type Report struct {
	Format string `json:"format"`
	SaveID string `json:"save_id,omitempty"`
	// Files and Bytes count all files of the copy.
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
	// KeptFiles were in the target before, complete. ByService were copied by the service
	// of both stores.
	KeptFiles int   `json:"kept_files"`
	KeptBytes int64 `json:"kept_bytes"`
	ByService int   `json:"files_copied_by_service"`
	// Unsummed are the bytes of files without a checksum in the checkpoint. They were compared
	// with the bytes read from the source.
	Unsummed int64 `json:"bytes_without_checksum"`
	// LeftOut are the folders below the checkpoint that do not belong to it, and files
	// of the format that it does not name.
	LeftOut []string `json:"left_out"`
	// Replaced is the id of the save that was replaced, if that is known and another one.
	Replaced string `json:"replaced_save,omitempty"`
	// Removed counts the files of the checkpoint that was replaced.
	Removed int `json:"removed_files"`
	// Verified is the result of reading the target. Nil: Options.Full is not set.
	Verified *storage.VerifyReport `json:"verified,omitempty"`
}

// ErrOccupied reports a target with files that are no checkpoint and would become part of
// the copy.
var ErrOccupied = errors.New("the target holds other files")

// Copy copies the checkpoint at the root of src, in any format, to the root of dst: its
// files, and the other files in its folder, such as config.json, but not those in folders
// below it. The record is written last, on the condition that no other writer has written
// one meanwhile, so the checkpoint appears in dst completely or not at all. Formats
// without a record have no such moment.
//
// Every file is compared with the checksum that the checkpoint has of it before it
// becomes visible, or afterwards if the service of both stores has copied it. If Copy
// fails, the files that are complete stay, and another call copies the other ones: a
// file of the right size and checksum is not copied again.
//
// The error wraps storage.ErrExists if dst holds a checkpoint of another format, or another
// checkpoint and Options.Overwrite is not set, storage.ErrCorrupt if a file is not as the checkpoint
// says, and blob.ErrChanged if src was replaced meanwhile.
func Copy(ctx context.Context, src, dst blob.Store, opts *Options) (*Report, error) {
	j := &job{src: src, dst: dst, opts: opts.withDefaults(), release: func() {}}
	j.pool = work.NewPool(buffer, j.opts.Memory, 2)
	defer func() { j.release() }()

	if g := j.opts.Group; g != nil && g.Size() > 1 {
		return j.together(ctx)
	}
	if err := j.plan(ctx); err != nil {
		return nil, err
	}
	if err := j.look(ctx); err != nil {
		return nil, err
	}

	var err error
	if j.lock, err = commit.LockSave(ctx, dst, j.rep.Format, j.lockID()); err != nil {
		return nil, err
	}
	defer j.lock.Release() // a remaining lock belongs to a dead process soon

	if err := j.copyAll(ctx); err != nil {
		return nil, err
	}
	if err := j.verify(ctx); err != nil {
		return nil, err
	}
	return &j.rep, nil
}

// item is a file to be copied.
type item struct {
	blob.Info        // of the source
	to        string // name in the target
	sum       uint32
	summed    bool // sum comes from the checkpoint
	stage     int
}

// job is a copy.
type job struct {
	src, dst blob.Store
	opts     Options
	pool     *work.Pool
	rep      Report
	items    []item   // in the order of their stages
	beside   []string // files of the checkpoint that readers can do without
	have     map[string]blob.Info
	old      []string         // files of the checkpoint that is replaced, the record first
	lock     *commit.SaveLock // of the target
	release  func()           // ends the lock of the source
	service  atomic.Int64
}

// lockID returns the name of the copy in the lock of the target.
func (j *job) lockID() string {
	if j.rep.SaveID != "" {
		return j.rep.SaveID
	}
	return "copy"
}

// plan lists the files of the source.
func (j *job) plan(ctx context.Context) error {
	src, format, err := formats.Locate(ctx, j.src)
	if err != nil {
		return commit.Explain(ctx, src, err)
	}

	j.src = src
	if g := j.opts.Group; g == nil || g.Rank() == 0 {
		release, err := commit.Reading(ctx, j.src)
		if err != nil {
			return err
		}
		j.release = release
	}

	all, err := list(ctx, j.src) // before the checkpoint is opened, so that a later change is noticed
	if err != nil {
		return err
	}

	c, err := formats.Open(ctx, j.src, nil)
	if err != nil {
		return err
	}
	defer c.Close()

	j.rep.Format, j.rep.SaveID = format, c.Storage().SaveID
	j.rep.LeftOut = []string{}
	sums := map[string]storage.File{}
	for _, f := range c.Files() {
		sums[f.Name] = f
		if have, ok := all[f.Name]; !ok || have.Size != f.Size {
			return fmt.Errorf("%w: %s of %s is missing or has another size", storage.ErrCorrupt, f.Name, j.src)
		}
	}

	for _, name := range storage.StoredFiles(c) {
		if _, ok := sums[name]; !ok {
			j.beside = append(j.beside, name)
		}
	}

	for _, info := range all {
		j.add(info, sums)
	}

	if len(sums) == 1 { // its only file makes it a checkpoint
		for i := range j.items {
			if _, ok := sums[j.items[i].Name]; ok {
				j.items[i].stage = max(j.items[i].stage, 1)
			}
		}
	}

	if len(j.items) > 1 && j.opts.As != "" {
		return fmt.Errorf("%s has %d files: it cannot become the file %s", j.src, len(j.items), j.opts.As)
	}

	slices.SortFunc(j.items, func(a, b item) int {
		if a.stage != b.stage {
			return a.stage - b.stage
		}
		return strings.Compare(a.Name, b.Name)
	})
	slices.Sort(j.rep.LeftOut)
	j.rep.LeftOut = slices.Compact(j.rep.LeftOut)
	return nil
}

// add adds a file of the source, unless it does not belong to the copy.
func (j *job) add(info blob.Info, sums map[string]storage.File) {
	f, named := sums[info.Name]
	it := item{Info: info, to: info.Name, sum: f.CRC32C, summed: named && !f.Unsummed, stage: formats.WriteOrder(j.rep.Format, info.Name)}
	isRecord := it.stage > 1
	if info.Name == storage.NotesFile && j.opts.As != "" {
		j.rep.LeftOut = append(j.rep.LeftOut, info.Name) // a single file has no folder for it
		return
	}

	if folder, _, below := strings.Cut(info.Name, "/"); below && !named {
		j.rep.LeftOut = append(j.rep.LeftOut, folder+"/")
		return
	}
	if !named && !isRecord && formats.Knows(j.rep.Format, info.Name) && !slices.Contains(j.beside, info.Name) {
		j.rep.LeftOut = append(j.rep.LeftOut, info.Name)
		return
	}

	if j.opts.As != "" {
		it.to = j.opts.As
	}

	j.items = append(j.items, it)
	j.rep.Files++
	j.rep.Bytes += info.Size
	if !it.summed && (named || !isRecord) { // cairn.json has its own
		j.rep.Unsummed += info.Size
	}
}

// list returns the objects of a store by their names.
func list(ctx context.Context, s blob.Store) (map[string]blob.Info, error) {
	out := map[string]blob.Info{}
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		out[info.Name] = info
	}
	return out, nil
}

// record returns the file that commits the checkpoint. ok is false if the format has no such
// file.
func (j *job) record() (it *item, ok bool) {
	last := &j.items[len(j.items)-1]
	return last, last.stage > 0 || len(j.items) == 1
}

// look lists the target, and refuses a checkpoint there that must not be replaced.
func (j *job) look(ctx context.Context) (err error) {
	if j.have, err = list(ctx, j.dst); err != nil {
		return err
	}
	if len(j.have) == 0 {
		return nil
	}

	if j.opts.As == "" {
		// Files that an interrupted removal has left would become part of the copy, and
		// another process would remove them.
		finished, err := formats.FinishRemovals(ctx, j.dst)
		if err == nil && finished.Files > 0 {
			j.have, err = list(ctx, j.dst)
		}
		if err != nil {
			return err
		}
	}

	if j.opts.As != "" {
		if _, exists := j.have[j.opts.As]; exists && !j.opts.Overwrite {
			return j.unlessSame(ctx)
		}
		return nil // other files of the folder do not matter
	}

	if err := j.checkOthers(ctx, j.have); err != nil {
		return err
	}

	dst := j.dst
	if rec, ok := j.record(); ok && j.rep.Format == formats.Torch { // other files of the folder are other checkpoints
		dst = blob.NewSingle(dst, rec.to)
	}

	old, err := formats.Open(ctx, dst, nil)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		if _, unsupported := errors.AsType[*formats.UnsupportedError](err); unsupported {
			return fmt.Errorf("%w: %w", ErrOccupied, err)
		}
		return nil
	case err != nil && (errors.Is(err, storage.ErrUnderWay) || ctx.Err() != nil):
		return err
	case errors.Is(err, storage.ErrIncomplete):
		return nil
	}

	if err == nil {
		defer old.Close()
	}

	rec, hasRecord := j.record()
	_, occupied := j.have[rec.to]
	if err != nil && !(occupied && hasRecord) {
		return nil // a part of a copy: files without their record
	}

	if !j.opts.Overwrite {
		return j.unlessSame(ctx)
	}
	if !j.mayReplace(old) {
		if err := j.unlessSame(ctx); err != nil {
			return storage.NotOurs(j.dst.String(), nil)
		}
		return nil
	}
	return j.replaces(ctx, old)
}

// mayReplace reports whether the options allow the copy to replace the checkpoint old, which is nil if
// it cannot be opened.
func (j *job) mayReplace(old storage.Checkpoint) bool {
	if j.opts.Only == nil || old == nil {
		return j.opts.Only == nil
	}
	rec, _ := j.record()
	return storage.MayReplace(j.opts.Only, cmp.Or(old.Storage().SaveID, commit.Remembered(j.dst, rec.to)))
}

// checkOthers returns an error that wraps storage.ErrExists if the target, which has the files
// have, holds files of a checkpoint in another format. The copy would not replace them.
func (j *job) checkOthers(ctx context.Context, have map[string]blob.Info) error {
	if j.opts.As != "" {
		return nil // other files of the folder do not matter
	}
	return formats.CheckOthersOf(ctx, j.dst, maps.Keys(have), j.rep.Format, func(name string) bool {
		return slices.ContainsFunc(j.items, func(it item) bool { return it.to == name })
	})
}

// unlessSame returns an error that wraps ErrExists unless the target has the same record,
// which makes it the same checkpoint, or the same files if there is no record.
func (j *job) unlessSame(ctx context.Context) error {
	compare := j.items
	if _, ok := j.record(); ok {
		compare = compare[len(compare)-1:]
	}

	for i := range compare {
		same, err := j.same(ctx, &compare[i])
		if err != nil {
			return err
		}
		if !same {
			return fmt.Errorf("%w: %s holds another one", storage.ErrExists, j.dst)
		}
	}

	return nil
}

// replaces notes the files of the checkpoint old that the copy replaces, which is nil if
// it cannot be opened.
func (j *job) replaces(ctx context.Context, old storage.Checkpoint) error {
	if old != nil && old.Storage().SaveID != j.rep.SaveID {
		j.rep.Replaced = old.Storage().SaveID
	}

	if id := j.opts.Replaces; id != "" && j.rep.Replaced != id {
		return fmt.Errorf("%w: %s no longer holds the save %s", storage.ErrChanged, j.dst, id)
	}
	if rec, ok := j.record(); ok && j.rep.Format == formats.Torch {
		j.old = []string{rec.to}
		return nil
	}

	format, err := formats.Detect(ctx, j.dst)
	if err != nil {
		return err
	}

	for name := range j.have {
		if formats.WriteOrder(format, name) > 0 && !strings.Contains(name, "/") {
			j.old = append(j.old, name)
		}
	}

	slices.SortFunc(j.old, func(a, b string) int { return formats.WriteOrder(format, b) - formats.WriteOrder(format, a) })
	if old != nil {
		for _, name := range storage.StoredFiles(old) {
			if !slices.Contains(j.old, name) {
				j.old = append(j.old, name)
			}
		}
	}
	return nil
}

// retract removes the record of the old checkpoint if other files of it would be changed
// before the new record is written, so that no reader sees a mixture. It returns todo,
// with the record if that is to be written now.
func (j *job) retract(ctx context.Context, todo []item) ([]item, error) {
	changes := slices.ContainsFunc(todo, func(it item) bool { return it.stage == 0 && slices.Contains(j.old, it.to) })
	if !changes {
		return todo, nil
	}
	if j.inPlace() { // the file is its own source
		return nil, fmt.Errorf("%w: a file of %s has another checksum than its record says", storage.ErrCorrupt, j.dst)
	}
	if j.opts.Replaces != "" {
		return nil, fmt.Errorf("%w: %s holds another one, and files of both have the same names", storage.ErrExists, j.dst)
	}

	name := j.old[0]
	if err := j.dst.Remove(ctx, name); err != nil {
		return nil, err
	}

	delete(j.have, name)
	rec, _ := j.record()
	if rec.to == name && todo[len(todo)-1].to != name {
		todo = append(todo, *rec)
		j.rep.KeptFiles--
		j.rep.KeptBytes -= rec.Size
	}
	return todo, nil
}

// inPlace reports whether the source is the target.
func (j *job) inPlace() bool { return j.src.String() == j.dst.String() }

// leftovers removes the files of the old checkpoint that the new one does not have.
func (j *job) leftovers(ctx context.Context) error {
	old := slices.DeleteFunc(slices.Clone(j.old), func(name string) bool {
		return slices.ContainsFunc(j.items, func(it item) bool { return it.to == name })
	})
	if len(old) == 0 || j.opts.keepOld {
		return nil
	}
	return commit.Locked(ctx, j.dst, func() error { return j.removeOld(ctx, old) })
}

// removeOld removes files of the old checkpoint, apart from those to which others refer.
func (j *job) removeOld(ctx context.Context, old []string) error {
	needed, err := formats.Needed(ctx, j.dst)
	if err != nil {
		return fmt.Errorf("the copy is complete, but files of the old checkpoint stay: %w", err)
	}

	for _, name := range old {
		if needed[name] {
			continue
		}
		if err := j.dst.Remove(ctx, name); err != nil {
			return fmt.Errorf("the copy is complete, but a file of the old checkpoint stays: %w", err)
		}
		j.rep.Removed++
	}

	return nil
}

// verify reads the target if the options say so.
func (j *job) verify(ctx context.Context) error {
	if !j.opts.Full {
		return nil
	}

	store := j.dst
	if j.opts.As != "" {
		store = blob.NewSingle(store, j.opts.As)
	}

	c, err := formats.Open(ctx, store, nil)
	if err != nil {
		err = fmt.Errorf("the copy cannot be opened: %w", err)
	} else {
		defer c.Close()
	}

	if g := j.opts.Group; g != nil {
		err = group.Each(ctx, g, "verify", func(context.Context) error { return err })
	}
	if err != nil {
		return err
	}

	if j.rep.Verified, err = protocol.Verify(ctx, protocol.RankVerify{Group: j.opts.Group, Checkpoint: c}); err != nil {
		return err
	}
	if n := len(j.rep.Verified.Problems); n > 0 {
		p := j.rep.Verified.Problems[0]
		return fmt.Errorf("%w: the copy has %d problems: %s: %s", storage.ErrCorrupt, n, p.File, p.Text)
	}
	return nil
}
