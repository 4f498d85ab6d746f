package cairn

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage/publish"
)

// LatestOptions change how Latest works. Nil means the defaults.
type LatestOptions struct {
	// Group has the ranks that call Latest. Rank 0 looks, and all ranks return
	// what it has found. Nil: a single rank.
	Group Group
	// Wait makes Latest wait until no save is under way in the folders. ctx bounds
	// how long it waits.
	Wait bool
	// Waiting, if not nil, is called on rank 0 while Latest waits: after a few seconds, and
	// then in intervals. Its argument wraps ErrUnderWay and names a save.
	Waiting func(err error)
	// Remote is the address of the same run in another store, to which its saves are
	// uploaded; see AsyncOptions.Remote. Latest looks in both. If both have the newest
	// checkpoint, it returns the one in run. Empty: there is no such run.
	Remote string
}

// Found is the result of Latest.
type Found struct {
	// Path is the folder of the checkpoint: a path or a URL, as run is, or
	// LatestOptions.Remote.
	Path string `json:"path"`
	// Step is the step that the checkpoint records or, if it does not record one, the
	// number at the end of the name of a folder below run. Nil: it has neither.
	Step *int64 `json:"step"`
	// SaveID and Time describe the save, if the format records them.
	SaveID string    `json:"save_id,omitempty"`
	Time   time.Time `json:"time,omitzero"`
	// Skipped are the folders with a part of a checkpoint or with a damaged one.
	Skipped []Skipped `json:"skipped"`

	remote bool // it is in LatestOptions.Remote
}

// Skipped is a folder that Latest has not chosen.
type Skipped struct {
	Path     string `json:"path"`
	Problem  string `json:"problem"`
	UnderWay bool   `json:"under_way"` // a living process is saving to it
}

// Latest returns the complete checkpoint with the highest step in the folder run or in a
// folder directly below it, in any format that Open opens. run is an address, as for
// OpenStore. Of checkpoints with equal steps, it returns the one that was saved last. A
// checkpoint is complete if Open opens it and all of its files exist. Latest does not read
// their contents.
//
// The error wraps ErrNotFound if there is no checkpoint and no save is under way: a job
// can then start from the beginning. It wraps ErrUnderWay if there is no complete
// checkpoint yet, ErrUncertain if the only save got no answer to its commit, and ErrCorrupt
// if there are only damaged ones. If ctx ends while Latest
// waits, the error wraps the cause and, on rank 0, ErrUnderWay.
//
// Saves that are under way are recognised by their locks, and in object storage, where they
// take a lock after ten seconds, by the last time at which they wrote it. On file systems
// without locks, Latest does not wait for them.
func Latest(ctx context.Context, run string, opts *LatestOptions) (*Found, error) {
	var o LatestOptions
	if opts != nil {
		o = *opts
	}
	if o.Group == nil {
		o.Group = group.Solo()
	}
	var waitErr error
	f, err := group.Broadcast(ctx, o.Group, "latest", 0, group.Func[*Found]{EncodeFunc: encodeFound, DecodeFunc: decodeFound}, func(ctx context.Context) (*Found, error) {
		if o.Wait {
			if waitErr = waitIdle(ctx, run, &o); waitErr != nil {
				return nil, waitErr
			}
		}
		return latest(ctx, run, o.Remote)
	})
	if err != nil && errors.Is(waitErr, ErrUnderWay) {
		err = waitErr // the step returns the cause of ctx alone
	}
	if err != nil {
		return nil, &Error{Op: "latest", Where: blob.Redact(run), Err: err}
	}
	return f, nil
}

// sentFound is what rank 0 sends. JSON replaces bytes that are not UTF-8, which paths may
// have, so Path and the paths in Skipped are sent as bytes too.
type sentFound struct {
	Found *Found
	Paths [][]byte
}

func encodeFound(f *Found) ([]byte, error) {
	v := sentFound{f, [][]byte{[]byte(f.Path)}}
	for _, s := range f.Skipped {
		v.Paths = append(v.Paths, []byte(s.Path))
	}
	return json.Marshal(v)
}

func decodeFound(b []byte) (*Found, error) {
	var v sentFound
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, err
	}
	if v.Found == nil || len(v.Paths) != 1+len(v.Found.Skipped) {
		return nil, errors.New("rank 0 has sent a malformed result")
	}
	v.Found.Path = string(v.Paths[0])
	for i := range v.Found.Skipped {
		v.Found.Skipped[i].Path = string(v.Paths[1+i])
	}
	return v.Found, nil
}

// runFolder is a folder of a run.
type runFolder struct {
	address string // of the folder
	shown   string // the same, for messages
	name    string // empty: the run itself
	store   blob.Store
	remote  bool // it is in LatestOptions.Remote
}

// bothFolders returns the folders of a run and of the remote run, if there is a remote run.
func bothFolders(ctx context.Context, run, remote string) ([]runFolder, error) {
	dirs, err := runFolders(ctx, run)
	if err != nil || remote == "" {
		return dirs, err
	}
	there, err := runFolders(ctx, remote)
	for i := range there {
		there[i].remote = true
	}
	return append(dirs, there...), err
}

// runFolders returns a run and the folders directly below it. A path that does not exist
// has no folders.
func runFolders(ctx context.Context, run string) ([]runFolder, error) {
	path, local, err := file.LocalPath(run)
	if err != nil {
		return nil, err
	}
	store, err := openFolder(ctx, path, local)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := blob.Folders(ctx, store, "")
	if err != nil {
		return nil, err
	}
	out := []runFolder{{address: path, shown: blob.Redact(path), store: store}}
	for _, name := range names {
		// A name that begins with a dot belongs to a file of cairn or of a conversion.
		if strings.HasPrefix(name, ".") {
			continue
		}
		f := runFolder{name: name}
		if local {
			f.address = filepath.Join(path, name)
			f.store, err = file.Open(f.address, nil)
		} else {
			f.address = blob.JoinAddress(path, name)
			f.store, err = blob.NewSub(store, name)
		}
		if err != nil {
			return nil, err
		}
		f.shown = blob.Redact(f.address)
		out = append(out, f)
	}
	return out, nil
}

// openFolder opens the store of a run. A path must name an existing folder.
func openFolder(ctx context.Context, address string, local bool) (blob.Store, error) {
	if !local {
		return blob.OpenAddress(ctx, address)
	}
	if _, err := os.Stat(address); err != nil {
		return nil, err
	}
	return file.Open(address, nil)
}

const (
	// quietWait is how long Latest waits before it calls LatestOptions.Waiting, and
	// waitPause the time between two calls.
	quietWait = 3 * time.Second
	waitPause = 10 * time.Second
)

// waitIdle waits until no save is under way in the folders of a run and of the remote one.
func waitIdle(ctx context.Context, run string, o *LatestOptions) error {
	next := time.Now().Add(quietWait)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := checkIdle(context.WithoutCancel(ctx), run, o.Remote) // so that its error names the save
		if !errors.Is(err, ErrUnderWay) {
			return err
		}
		if now := time.Now(); o.Waiting != nil && now.After(next) {
			o.Waiting(err)
			next = now.Add(waitPause)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// checkIdle returns an error that wraps ErrUnderWay if a save is under way in a folder of
// a run or of the remote one.
func checkIdle(ctx context.Context, run, remote string) error {
	dirs, err := bothFolders(ctx, run, remote)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := publish.CheckUnderWay(ctx, dir.store); err != nil {
			return err
		}
	}
	return nil
}

// parallelFolders is how many folders of a run are opened at the same time.
const parallelFolders = 8

// latest returns the newest checkpoint in the folders of a run and of the remote one.
func latest(ctx context.Context, run, remote string) (*Found, error) {
	dirs, err := bothFolders(ctx, run, remote)
	if err != nil {
		return nil, err
	}
	each, errs := make([]*Found, len(dirs)), make([]error, len(dirs))
	err = work.Each(ctx, len(dirs), parallelFolders, func(ctx context.Context, i int) error {
		each[i], errs[i] = found(ctx, &dirs[i])
		return nil
	})
	if err != nil {
		return nil, err
	}
	var best *Found
	var problems []error
	skipped := []Skipped{}
	for i, dir := range dirs {
		f, err := each[i], errs[i]
		switch {
		case err == nil:
			if f.Step == nil && dir.name != "" { // the name of a run says nothing about steps
				f.Step = numberOf(dir.name)
			}
			if best == nil || f.compare(best) > 0 {
				best = f
			}
		case errors.Is(err, ErrIncomplete), errors.Is(err, ErrCorrupt):
			skipped = append(skipped, Skipped{Path: dir.address, Problem: err.Error(), UnderWay: errors.Is(err, ErrUnderWay)})
			problems = append(problems, err)
		case !errors.Is(err, ErrNotFound):
			return nil, err
		}
	}
	if best == nil {
		return nil, noneOf(problems, len(dirs))
	}
	best.Skipped = skipped
	return best, nil
}

// noneOf returns the error for folders without a complete checkpoint.
func noneOf(problems []error, folders int) error {
	for _, kind := range []error{ErrUnderWay, ErrUncertain, ErrCorrupt} {
		if i := slices.IndexFunc(problems, func(err error) bool { return errors.Is(err, kind) }); i >= 0 {
			return fmt.Errorf("no complete checkpoint (folders searched: %d): %w", folders, problems[i])
		}
	}
	if len(problems) > 0 { // their saves are over and will never be complete
		return fmt.Errorf("%w (folders searched: %d, with a part of a checkpoint: %d): %v", ErrNotFound, folders, len(problems), problems[0])
	}
	if folders == 0 {
		return fmt.Errorf("%w: there is no such folder", ErrNotFound)
	}
	return fmt.Errorf("%w (folders searched: %d)", ErrNotFound, folders)
}

// found describes the checkpoint in a folder. Files of a checkpoint may be missing because
// a save has replaced it since it was opened. So found looks again, until the same save has
// missing files twice.
func found(ctx context.Context, dir *runFolder) (*Found, error) {
	var last *Found
	for {
		f, missing, err := look(ctx, dir)
		if err != nil || len(missing) == 0 {
			return f, err
		}
		if last != nil && last.SaveID == f.SaveID && last.Time.Equal(f.Time) {
			return nil, fmt.Errorf("%s: %w: %d files are missing, such as %s", dir.shown, ErrCorrupt, len(missing), missing[0])
		}
		last = f
	}
}

// look opens the checkpoint in a folder and returns its missing files.
func look(ctx context.Context, dir *runFolder) (*Found, []string, error) {
	c, err := Open(ctx, dir.store)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	missing, err := c.MissingFiles(ctx)
	if err != nil {
		return nil, nil, err
	}
	info := c.Info()
	return &Found{Path: dir.address, Step: info.Step, SaveID: info.SaveID, Time: info.Time, remote: dir.remote}, missing, nil
}

// numberOf returns the number at the end of a folder's name, or nil.
func numberOf(name string) *int64 {
	n, err := strconv.ParseInt(name[len(strings.TrimRight(name, "0123456789")):], 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// compare orders checkpoints: see newer. Of equal ones, a remote one comes first, and then
// the names decide.
func (f *Found) compare(g *Found) int {
	tier := func(f *Found) int {
		if f.remote {
			return -1
		}
		return 0
	}
	return cmp.Or(f.newer(g), cmp.Compare(tier(f), tier(g)), strings.Compare(f.Path, g.Path))
}

// newer orders checkpoints by step, then by time. One without a step comes first.
func (f *Found) newer(g *Found) int {
	step := func(f *Found) int64 {
		if f.Step == nil {
			return -1
		}
		return *f.Step
	}
	return cmp.Or(cmp.Compare(step(f), step(g)), f.Time.Compare(g.Time))
}

// OpenNearest returns the store of a checkpoint that is at several addresses, such as a
// local folder and a URL to which it was uploaded, for Load and Open. The nearest address
// comes first. OpenNearest returns the first one at which the checkpoint is complete, as
// for Latest, unless a later one holds a newer save: one with a higher step or, if the
// steps are equal, a later time. An address that cannot be read is passed over if another
// one has a complete checkpoint.
//
// If no address has a complete checkpoint, the error wraps ErrNotFound, ErrUnderWay,
// ErrCorrupt or the reason why an address cannot be read. Ranks on several hosts may get
// different stores.
func OpenNearest(ctx context.Context, addresses ...string) (blob.Store, error) {
	each, errs := make([]*Found, len(addresses)), make([]error, len(addresses))
	stores := make([]blob.Store, len(addresses))
	err := work.Each(ctx, len(addresses), parallelFolders, func(ctx context.Context, i int) error {
		if stores[i], errs[i] = openAddress(ctx, addresses[i]); errs[i] == nil {
			each[i], errs[i] = found(ctx, &runFolder{address: addresses[i], shown: blob.Redact(addresses[i]), store: stores[i]})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	best := -1
	for i, f := range each {
		if f != nil && (best < 0 || f.newer(each[best]) > 0) {
			best = i
		}
	}
	if best >= 0 {
		return stores[best], nil
	}
	for _, absent := range []bool{false, true} { // other errors are more important
		for i, err := range errs {
			if err != nil && absent == errors.Is(err, ErrNotFound) {
				return nil, &Error{Op: "open", Where: blob.Redact(addresses[i]), Err: err}
			}
		}
	}
	return nil, wrap("open", nil, errNoStore)
}
