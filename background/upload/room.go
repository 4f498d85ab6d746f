package upload

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Room bounds the bytes in the local folder of a run, which has a folder for each
// checkpoint. It makes room for a checkpoint by removing older ones that the remote run
// has too. It removes a checkpoint only after it has looked into the remote store and
// found the same save there, with all of its files.
type Room struct {
	Ceiling int64
	Dir     string     // path of the local run
	Name    string     // folder of the new checkpoint, in both runs
	Remote  blob.Store // the remote run; nil: it cannot be opened
	// Copies means that every rank writes all that it holds, even if another rank holds
	// the same.
	Copies bool
	// Uploads waits for the oldest upload of this job that is under way. It returns false
	// if no upload is under way.
	Uploads func(ctx context.Context) bool
	// Err, if not nil, is the error of this rank: it takes part in Fits, which fails.
	Err error
	// Warn receives errors that do no harm.
	Warn func(error)

	leads bool // this rank makes room for the ranks that use the same folder
}

// Bounds of the bytes of a checkpoint beside the bytes of its items: entries of an
// index and headers, alignment, checksums, and a record.
const (
	itemOverhead = 4096
	nameOverhead = 4
	byteOverhead = 256 // one byte more for each 256
	rankOverhead = 64 << 10
)

// share is the message of one rank to rank 0.
type share struct {
	Leader int    `json:"leader"`
	Items  []byte `json:"items"` // for each item: its hash and its size
}

// encodeItems returns the items of a plan for rank 0, which finds the items that several
// ranks hold.
func encodeItems(p *plan.SavePlan) []byte {
	var out []byte
	for i := range p.Items {
		it := &p.Items[i]
		h := fnv.New64a()
		fmt.Fprint(h, it.Kind, it.FQN(), it.Box)
		n := it.NumBytes()
		out = binary.LittleEndian.AppendUint64(out, h.Sum64())
		out = binary.LittleEndian.AppendUint64(out, uint64(n+n/byteOverhead+itemOverhead+nameOverhead*int64(len(it.FQN()))))
	}
	return out
}

// needs returns an upper bound of the bytes that the ranks of each leader write.
func (r *Room) needs(all []share) []int64 {
	type key struct {
		leader int
		hash   uint64
	}
	seen, out := map[key]bool{}, make([]int64, len(all))
	for _, s := range all {
		if s.Leader < 0 || s.Leader >= len(all) {
			continue
		}
		out[s.Leader] += rankOverhead
		for b := s.Items; len(b) >= 16; b = b[16:] {
			k := key{s.Leader, binary.LittleEndian.Uint64(b)}
			if !seen[k] || r.Copies {
				out[s.Leader] += int64(binary.LittleEndian.Uint64(b[8:]))
			}
			seen[k] = true
		}
	}
	return out
}

// Fits makes room for a checkpoint of which this rank holds the items of a plan. All ranks
// of g call it, and all return the same. If it returns false, the checkpoint would exceed
// the ceiling in a local folder, and no more checkpoints can be removed there.
func (r *Room) Fits(ctx context.Context, g group.Group, p *plan.SavePlan) (bool, error) {
	var own marked
	defer own.release()
	marks, err := group.Decide(ctx, g, "mark", group.JSON[mark](), group.JSON[[]mark](),
		func(ctx context.Context) (mark, error) {
			if r.Err != nil {
				return mark{}, r.Err
			}
			return own.put(ctx, r.Dir)
		},
		func(_ context.Context, all []mark) ([]mark, error) { return all, nil })
	if err != nil {
		return false, err
	}
	need, err := group.Assign(ctx, g, "room", group.JSON[share](), group.JSON[int64](),
		func(ctx context.Context) (share, error) {
			leader, err := own.lowest(ctx, marks)
			r.leads = leader == g.Rank()
			return share{leader, encodeItems(p)}, err
		},
		func(_ context.Context, all []share) ([]int64, error) { return r.needs(all), nil })
	if err != nil {
		return false, err
	}
	return group.Decide(ctx, g, "make room", group.JSON[bool](), group.JSON[bool](),
		func(ctx context.Context) (bool, error) { return !r.leads || r.make(ctx, need), context.Cause(ctx) },
		func(_ context.Context, all []bool) (bool, error) { return !slices.Contains(all, false), nil })
}

// Trim removes checkpoints if the ceiling is exceeded, because the new one was larger than
// expected.
func (r *Room) Trim(ctx context.Context) {
	if r.leads {
		r.Uploads = func(context.Context) bool { return false }
		r.make(ctx, 0)
	}
}

// markPrefix begins the names of the locks that are marks.
const markPrefix = "tier-"

// mark identifies the folder of a rank for the other ranks.
type mark struct {
	Token string `json:"token"` // of a lock in the folder; empty: it has no locks
	Place string `json:"place"` // host and path
}

// marked is a local folder with the mark of this rank.
type marked struct {
	mark
	store *file.Store
	lock  blob.HeldLock // nil: the folder has no locks
}

// put puts the mark into a folder.
func (m *marked) put(ctx context.Context, dir string) (mark, error) {
	var err error
	if m.store, err = file.Open(dir, nil); err != nil {
		return mark{}, err
	}
	host, _ := os.Hostname() // empty: the path alone counts
	m.mark = mark{Token: markPrefix + strings.ToLower(crand.Text()), Place: host + ":" + dir}
	if m.lock, err = m.store.TryLock(ctx, m.Token, nil); err != nil {
		m.Token = ""
	}
	m.sweep(ctx)
	return m.mark, nil
}

// sweep removes the marks of processes that were killed. They do no harm, so errors do not
// matter.
func (m *marked) sweep(ctx context.Context) {
	locks, _ := m.store.Locks(ctx, "")
	for _, l := range locks {
		if l.Owner != blob.OwnerDead || !strings.HasPrefix(l.Name, markPrefix) {
			continue
		}
		if dead, err := m.store.TryLock(ctx, l.Name, nil); err == nil {
			_ = dead.Release()
		}
	}
}

// lowest returns the lowest rank with a mark in the folder. Host and path count only if
// there are no locks: several hosts may have the same name.
func (m *marked) lowest(ctx context.Context, all []mark) (int, error) {
	locks, err := m.store.Locks(ctx, "")
	return slices.IndexFunc(all, func(x mark) bool {
		if x.Token == "" || m.Token == "" {
			return x.Place == m.Place
		}
		return x.Token == m.Token || slices.ContainsFunc(locks, func(l blob.Lock) bool { return l.Name == x.Token })
	}), err
}

func (m *marked) release() {
	if m.lock != nil {
		_ = m.lock.Release() // a lock that stays belongs to a dead process
	}
}

// make makes room for a number of bytes. It reports whether there is room.
func (r *Room) make(ctx context.Context, need int64) bool {
	if need > r.Ceiling {
		return false
	}
	for ctx.Err() == nil {
		used, err := r.used()
		if err != nil {
			r.Warn(err)
			return false
		}
		if used+need <= r.Ceiling {
			return true
		}
		if !r.removeOldest(ctx) && !r.Uploads(ctx) {
			return false
		}
	}
	return false
}

// used returns the bytes of all files of the local run. It leaves out folders that this user
// may not read, such as lost+found.
func (r *Room) used() (int64, error) {
	dir, err := filepath.EvalSymlinks(r.Dir) // WalkDir does not follow a link
	if err != nil {
		return 0, ignoreGone(err)
	}
	var n int64
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) && path != dir {
			return nil
		}
		if err != nil || !e.Type().IsRegular() {
			return ignoreGone(err)
		}
		fi, err := e.Info()
		if err == nil {
			n += fi.Size()
		}
		return ignoreGone(err)
	})
	return n, err
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeOldest removes the oldest local checkpoint that the remote run has too. It returns
// false if there is no such checkpoint, or if the remote store fails.
func (r *Room) removeOldest(ctx context.Context) bool {
	if r.Remote == nil {
		return false
	}
	for _, c := range r.local() {
		if SameFolder(c.dir, r.Remote, c.name) {
			continue // it is the only copy
		}
		there, err := r.remote(ctx, c.name)
		if err != nil {
			r.Warn(fmt.Errorf("the copy of %s cannot be looked up: %w", c.dir, err))
			return false
		}
		if there == nil {
			continue
		}
		removed, err := c.remove(ctx, there)
		if err != nil {
			r.Warn(fmt.Errorf("%s stays: %w", c.dir, err))
		}
		if removed {
			return true
		}
	}
	return false
}

// SameFolder reports whether a folder is the folder of that name in a run, perhaps through
// links.
func SameFolder(dir string, run blob.Store, name string) bool {
	f, ok := blob.As[*file.Store](run)
	if !ok {
		return false
	}
	other := filepath.Join(f.Dir(), name)
	if filepath.Clean(dir) == other {
		return true
	}
	a, errA := os.Stat(dir)
	b, errB := os.Stat(other)
	if errA != nil || errB != nil { // one of them does not exist: look at the folders above
		a, errA = os.Stat(filepath.Dir(dir))
		b, errB = os.Stat(f.Dir())
		return errA == nil && errB == nil && os.SameFile(a, b) && filepath.Base(dir) == name
	}
	return os.SameFile(a, b)
}

// remote returns the checkpoint of that name in the remote run, or nil if it is not whole.
func (r *Room) remote(ctx context.Context, name string) (*complete, error) {
	store, err := blob.NewSub(r.Remote, name)
	if err != nil {
		return nil, err
	}
	return whole(ctx, store)
}

// copied is a local checkpoint, or the part of one that ranks of this host have written.
type copied struct {
	name, dir string
	time      time.Time // of its newest file
}

// local returns the folders of the local run, the oldest first, without the new one.
func (r *Room) local() []copied {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		r.Warn(err)
	}
	var out []copied
	for _, e := range entries {
		if !e.IsDir() || e.Name() == r.Name || strings.HasPrefix(e.Name(), ".") || blob.CheckName(e.Name()) != nil {
			continue
		}
		c := copied{name: e.Name(), dir: filepath.Join(r.Dir, e.Name())}
		files, _ := os.ReadDir(c.dir) // without them it cannot be removed
		for _, f := range files {
			if fi, err := f.Info(); err == nil && fi.ModTime().After(c.time) {
				c.time = fi.ModTime()
			}
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b copied) int {
		if d := a.time.Compare(b.time); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	})
	return out
}

// remove removes the files that the remote run has too, if both are of the same save. It
// removes no other files, and none at all while a save is under way or if other checkpoints
// refer to it.
func (c *copied) remove(ctx context.Context, there *complete) (removed bool, err error) {
	store, err := file.Open(c.dir, nil)
	if err != nil {
		return false, err
	}
	err = commit.Locked(ctx, store, func() error {
		if err := commit.CheckUnderWay(ctx, store); err != nil {
			return ignoreUnderWay(err)
		}
		if needed, err := formats.Needed(ctx, store); len(needed) > 0 || err != nil {
			return err // local checkpoints refer to it, which the remote run may lack
		}
		names, err := there.common(ctx, store)
		for _, name := range names {
			if err := store.Remove(ctx, name); err != nil {
				return err
			}
			removed = true
		}
		if err == nil && removed && there.noted {
			err = store.Remove(ctx, storage.NotesFile)
		}
		return err
	})
	_ = os.Remove(c.dir) // other files keep it
	return removed, err
}

func ignoreUnderWay(err error) error {
	if errors.Is(err, storage.ErrUnderWay) {
		return nil
	}
	return err
}

// complete is a checkpoint that has all of its files.
type complete struct {
	format, saveID string
	sizes          map[string]int64 // of its files
	noted          bool             // it has notes; see package run
}

// whole returns the checkpoint in a store. It is nil if the store has no checkpoint, if a file is
// missing, if it cannot be read, or if it does not record its save. An error comes from
// the store.
func whole(ctx context.Context, store blob.Store) (*complete, error) {
	c, err := formats.Open(ctx, store, nil)
	if err != nil {
		for _, absent := range []error{storage.ErrNotFound, storage.ErrIncomplete, storage.ErrCorrupt, storage.ErrVersion, storage.ErrUnderWay} {
			if errors.Is(err, absent) {
				return nil, nil
			}
		}
		return nil, err
	}
	defer c.Close()

	out := &complete{saveID: c.Storage().SaveID, sizes: map[string]int64{}}
	if out.saveID == "" {
		return nil, nil
	}
	if out.format, err = formats.Detect(ctx, store); err != nil {
		return nil, err
	}

	have := map[string]int64{}
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		have[info.Name] = info.Size
		out.noted = out.noted || info.Name == storage.NotesFile
		if formats.WriteOrder(out.format, info.Name) > 1 { // a record need not name itself
			out.sizes[info.Name] = info.Size
		}
	}

	for _, f := range c.Files() {
		if size, ok := have[f.Name]; !ok || size != f.Size {
			return nil, nil
		}
		out.sizes[f.Name] = f.Size
	}
	return out, nil
}

// common returns the files of a local store that belong to the same save, the record
// first. A store of a rank without the record has data files; their names contain the
// id of their save.
func (there *complete) common(ctx context.Context, local blob.Store) ([]string, error) {
	var names []string
	record := false
	for info, err := range local.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		isRecord := formats.WriteOrder(there.format, info.Name) > 1
		record = record || isRecord
		if size, ok := there.sizes[info.Name]; ok && size == info.Size && (isRecord || strings.Contains(info.Name, there.saveID)) {
			names = append(names, info.Name)
		}
	}
	if record {
		c, err := formats.Open(ctx, local, nil)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		if c.Storage().SaveID != there.saveID {
			return nil, nil
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return formats.WriteOrder(there.format, b) - formats.WriteOrder(there.format, a)
	})
	return names, nil
}
