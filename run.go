package cairn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/transfer"
)

// Policy says which checkpoints of a Run are kept. Package run has its rules, such as
// run.Last.
type Policy = run.Policy

// ParsePolicy returns the policy of a text such as "last 3, every 5000 steps, best 2 by
// loss"; see docs/runs.md. The error wraps ErrOptions and names the word that is wrong.
func ParsePolicy(text string) (Policy, error) { return run.ParsePolicy(text) }

// The parts of a Run; see package run.
type (
	// RunCheckpoint is a checkpoint of a Run, in one or both of its places.
	RunCheckpoint = run.Checkpoint
	// Notes are the tags and metrics of a checkpoint.
	Notes = run.Notes
	// PruneOptions change how Run.Prune works.
	PruneOptions = run.PruneOptions
	// PruneReport describes the work of Run.Prune.
	PruneReport = run.Report
	// Export says what a checkpoint is converted into after its save, and where. ParseExport returns it.
	Export = run.Export
)

// ParseExport returns the export of a text such as "hf/llama to s3://bucket/models with /models/Llama-3.1-8B at
// 200MB/s"; see docs/runs.md. The error wraps ErrOptions.
func ParseExport(text string) (Export, error) { return run.ParseExport(text) }

// RunOptions describe a Run. Nil means the defaults.
type RunOptions struct {
	// Group has the ranks that save to the run. Nil: a job of one rank.
	Group Group
	// Remote is the address of the run in another store, to which its checkpoints are
	// uploaded. Empty: there is none.
	Remote string
	// LocalBytes is AsyncOptions.LocalBytes of SaveAsync.
	LocalBytes int64
	// Keep is the policy of the run, and KeepRemote of the remote run. The zero Policy keeps
	// all checkpoints.
	Keep, KeepRemote Policy
	// Save says when a save is due, for the method Due: by the rules run.EverySteps and run.Every. The
	// zero Policy: there is no Due.
	Save Policy
	// Memory says when a save to the memory of the hosts of the job is due, in the words of Save, for restarts
	// that lose few steps: Run.Memory returns the run there. Load and Latest of the run then find the newest checkpoint in
	// either place. The zero Policy: there is none. See docs/memory.md.
	Memory Policy
	// Copies is how many other hosts keep a copy of each file in memory; zero: one. CopyRate bounds the bytes
	// per second that a host receives for copies; zero: there is no bound.
	Copies   int
	CopyRate int64
	// Toward is an address of rank 0, host:port, by which the ranks find the network of the copies. CAIRN_NET
	// overrides it. Empty: all ranks are on one host.
	Toward string
	// Export converts checkpoints into another form after their saves and uploads, each into a folder of its name
	// at the address of the export. The program cairn, which must be in PATH, does it in the background, in a process
	// of its own. Exports that fail are repeated after the next save. The zero Export: there are none.
	Export Export
	// ExportEvery chooses the saves that are exported, in the words of Save. The zero Policy: all of them.
	ExportEvery Policy
	// Alone makes every checkpoint stand alone. Otherwise, if the run has no remote run and is a
	// folder or Remember is set, a save in the native format refers to the checkpoint before it,
	// instead of writing unchanged bytes again, as long as that pays; see SaveOptions.Base.
	Alone bool
	// Remember keeps the bytes that this rank saves in memory until the next save, which then
	// compares with them instead of reading the checkpoint before it. It takes as much memory
	// as this rank writes. Checkpoints of a run in object storage refer to each other only with
	// Remember. It cannot be combined with Alone or Remote.
	Remember bool
	// Stager holds the memory of SaveAsync. Nil: the Run makes one, which Close closes.
	Stager *Stager
}

// Run is the checkpoints of one training: folders below one folder, or below an address in
// object storage, and perhaps a second time in another store. It names the folders of new
// checkpoints, removes the ones that its policies do not keep, and repeats failed uploads.
// All ranks of a job make one with the same address. NewRun makes one; its methods are
// safe for concurrent use.
//
// After a save and its upload, rank 0 keeps the run in order in the background: it writes
// the policies into the file cairn-run.json, where the commands of cairn find them, uploads
// complete checkpoints that the remote run lacks, and removes checkpoints. It does not
// remove checkpoints from a folder while this process writes a save. Problems go to
// Observer.Warned and Logger of the save.
type Run struct {
	address string
	options RunOptions
	group   Group
	tender  run.Tender // after Save
	line    run.Line
	chain   run.Chain
	kept    *delta.Cache // nil: this process does not remember saved bytes
	due     *run.Due     // nil: there is no RunOptions.Save
	exports *run.Exporting
	export  saver.Exporter // after Save
	memory  *Run           // nil: there is no RunOptions.Memory
	beside  *Run           // the run that has this one in memory, or nil
	ctx     context.Context
	stop    context.CancelCauseFunc

	mu     sync.Mutex
	stager *Stager     // guarded by mu; nil: not made yet
	closed bool        // guarded by mu
	job    *memory.Job // of a run in memory, after join; guarded by mu
	loaded *run.Loaded // guarded by mu; the checkpoint that was loaded since the last save, or nil
}

// NewRun returns the run at an address, as for OpenStore. The run need not exist: NewRun does
// not read or write it. The error wraps ErrOptions if a policy makes no sense.
func NewRun(address string, opts *RunOptions) (*Run, error) {
	var o RunOptions
	if opts != nil {
		o = *opts
	}

	inMemory := blob.Scheme(address) == "memory"
	err := errors.Join(o.Keep.Check(), o.KeepRemote.Check(), refuse(
		option{"RunOptions.KeepRemote", o.Remote == "" && !o.KeepRemote.KeepsAll(), "has no effect without RunOptions.Remote"},
		option{"RunOptions.LocalBytes", o.LocalBytes < 0, "is negative"},
		option{"RunOptions.LocalBytes", o.LocalBytes != 0 && o.Remote == "", "has no effect without RunOptions.Remote"},
		option{"RunOptions.Remember", o.Remember && o.Alone, "has no effect with RunOptions.Alone"},
		option{"RunOptions.Remember", o.Remember && o.Remote != "", "has no effect with RunOptions.Remote"},
		option{"the address", address == "", "of the run is empty"},
		option{"RunOptions.Copies", o.Copies < 0, "is negative"},
		option{"RunOptions.CopyRate", o.CopyRate < 0, "is negative"},
		option{"RunOptions.Copies, CopyRate or Toward", (o.Copies != 0 || o.CopyRate != 0 || o.Toward != "") && !inMemory && o.Memory.KeepsAll(), "has no effect without RunOptions.Memory"},
		option{"RunOptions.Memory", inMemory && !o.Memory.KeepsAll(), "has no effect: the run is in memory"},
		option{"RunOptions.Remote", inMemory && o.Remote != "", "cannot be combined with a run in memory"},
	))

	r := &Run{address: address, options: o, group: o.Group, stager: o.Stager}
	if path, local, pathErr := file.LocalPath(address); pathErr != nil {
		err = errors.Join(err, pathErr)
	} else if local {
		r.address = path
	} else if inMemory {
		r.address = blob.LongForm(address)
	}

	if !o.Save.KeepsAll() {
		var dueErr error
		r.due, dueErr = run.NewDue(o.Save)
		err = errors.Join(err, dueErr)
	}
	exports, exportErr := run.NewExporting(o.Export, o.ExportEvery, r.address, o.Remote)
	r.exports = exports
	if err := errors.Join(err, exportErr); err != nil {
		return nil, &Error{Op: "run", Where: blob.Redact(address), Err: err}
	}

	if r.group == nil {
		r.group = group.Solo()
	}
	if o.Remember {
		r.kept = delta.NewCache(0)
	}

	r.ctx, r.stop = context.WithCancelCause(context.Background())
	if !o.Memory.KeepsAll() {
		if r.memory, err = besideOf(r); err != nil {
			return nil, &Error{Op: "run", Where: blob.Redact(address), Err: err}
		}
	}
	return r, nil
}

// Address returns the address of the run.
func (r *Run) Address() string { return r.address }

// wrap adds the operation and the address to err.
func (r *Run) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Where: blob.Redact(r.address), Err: err}
}

// open opens the run. Without options, it has the settings that are stored in its folder.
func (r *Run) open(ctx context.Context) (*run.Run, run.Settings, error) {
	return run.OpenSettings(ctx, r.address, r.settings())
}

func (r *Run) settings() run.Settings {
	return run.Settings{Remote: r.options.Remote, Keep: r.options.Keep, KeepRemote: r.options.KeepRemote}
}

// place returns the store of a new checkpoint, and its membership in the run, for the work after
// the save. All ranks use the step of rank 0. begin, if not nil, is called on rank 0 and may
// change m.Name.
func (r *Run) place(ctx context.Context, o *SaveOptions, begin func(_ context.Context, m *run.Member)) (blob.Store, *run.Member, error) {
	m := &run.Member{Address: r.address, Settings: r.settings(), Line: &r.line, Chain: &r.chain, Exclusive: o.FailIfExists, Exporting: r.exports}
	r.mu.Lock()
	m.Loaded, r.loaded = r.loaded, nil
	r.mu.Unlock()
	var err error
	m.Name, err = group.Broadcast(ctx, r.group, "folder", 0, group.JSON[string](), func(ctx context.Context) (string, error) {
		if o.Step == nil || *o.Step < 0 {
			return "", fmt.Errorf("%w: SaveOptions.Step is not set or negative: it names the folder of the checkpoint", ErrOptions)
		}
		m.Name = run.FolderName(*o.Step)
		if begin != nil {
			begin(ctx, m)
		}
		return m.Name, nil
	})
	var store blob.Store
	if err == nil {
		store, err = openAddress(ctx, blob.JoinAddress(r.address, m.Name))
	}
	if err != nil {
		r.stillLoaded(m)
	}
	return store, m, err
}

// stillLoaded notes that the checkpoint that was loaded is the parent of the next save: the save m
// did not take place.
func (r *Run) stillLoaded(m *run.Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loaded == nil {
		r.loaded = m.Loaded
	}
}

// Save saves state as the checkpoint of its step, which SaveOptions.Step must contain, in a
// folder such as step-000005000. If that folder has the checkpoint that the job has loaded or
// saved last, without tags, the save replaces it. Any other checkpoint stays, and the save
// goes to a folder such as step-000005000~2; SaveReport.Folder says which. Otherwise it is
// like the function Save. Group is the group of the run. When Save returns, the upload and
// the removal of other checkpoints are still to be done: the next Save does not wait for
// them, and Close does.
func (r *Run) Save(ctx context.Context, state State, opts *SaveOptions) (*SaveReport, error) {
	var o SaveOptions
	if opts != nil {
		o = *opts
	}

	o.Group, o.ofRun = r.group, true
	if err := refuse(option{"SaveOptions.RankLocal", o.RankLocal != nil, "cannot be used in a Run: it needs a group"}); err != nil {
		return nil, r.wrap("save", err)
	}
	if r.isMemory() {
		return r.saveToMemory(ctx, state, o)
	}

	store, m, err := r.place(ctx, &o, func(ctx context.Context, m *run.Member) {
		o.line = m.Begin(ctx, o.Step, time.Now().UTC(), o.warn)
	})
	if err != nil {
		return nil, r.wrap("save", err)
	}

	r.refer(m, store, &o)
	o.member = m
	report, err := Save(ctx, store, state, &o)
	if err != nil {
		return nil, err
	}

	report.Folder = m.Name
	if r.group.Rank() == 0 {
		m.Committed(report.SaveID)
		r.tender.Tend(r.ctx, m, nil, func(done *run.Tended, err error) {
			if attrs := done.Attrs(); len(attrs) > 0 && o.Logger != nil {
				o.Logger.LogAttrs(r.ctx, slog.LevelInfo, "run: kept in order", attrs...)
			}
			if err != nil {
				o.warn(err)
			}
		})
		if r.exports != nil || len(o.Exports) > 0 {
			r.export.Export(r.ctx, r.address, func(err error) {
				if err != nil {
					o.warn(err)
				}
			})
		}
	}
	return report, nil
}

// refer sets SaveOptions.Base of a save to store, and SaveOptions.Format if the bytes are
// remembered.
func (r *Run) refer(m *run.Member, store blob.Store, o *SaveOptions) {
	remember := r.options.Remember
	if o.Base != nil || r.options.Alone || r.options.Remote != "" || blob.Scheme(r.address) != "file" && !remember || o.Writer != nil {
		return
	}
	f, ok := o.format().(native.Format)
	if !ok {
		return
	}
	m.Refer, m.Remember = true, remember
	if !remember {
		o.Base = r.chain.Next(m.Name)
		return
	}
	o.Base = r.chain.NextRemembered(m.Name, store)
	f.Segments = r.kept
	o.Format = f
}

// warn reports a problem that does not make the load fail.
func (o *LoadOptions) warn(err error) { warn(o.Observer, o.Logger, err) }

func warn(to *Observer, logger *slog.Logger, err error) {
	if to != nil && to.Warned != nil {
		to.Warned(err)
	}
	if logger != nil {
		logger.Warn("run: warning", "error", err)
	}
}

// SaveAsync is Save in the background; see the function SaveAsync. The run sets Group, Remote,
// LocalBytes and Stager of the options.
func (r *Run) SaveAsync(ctx context.Context, state State, opts *AsyncOptions) (*Pending, error) {
	var o AsyncOptions
	if opts != nil {
		o = *opts
	}

	err := refuse(
		option{"SaveOptions.RankLocal", o.RankLocal != nil, "cannot be used in a Run: it needs a group"},
		option{"AsyncOptions.Remote", o.Remote != "", "is RunOptions.Remote in a Run"},
		option{"AsyncOptions.LocalBytes", o.LocalBytes != 0, "is RunOptions.LocalBytes in a Run"},
		option{"AsyncOptions.Stager", o.Stager != nil, "is RunOptions.Stager in a Run"},
	)

	if err == nil {
		o.Stager, err = r.stagerOf()
	}
	if err != nil {
		return nil, r.wrap("save", err)
	}

	if r.isMemory() {
		if err := r.join(ctx); err != nil {
			return nil, r.wrap("save", err)
		}
	}
	store, m, err := r.place(ctx, &o.SaveOptions, nil) // the Runner calls Begin
	if err != nil {
		return nil, r.wrap("save", err)
	}

	o.Group, o.LocalBytes, o.member, o.ofRun = r.group, r.options.LocalBytes, m, true
	o.copies = r.copies(m.Name)
	format := o.Format
	r.refer(m, store, &o.SaveOptions)
	if o.Stager.options.Process != nil {
		o.Format = format // the saver process remembers
	}
	if r.options.Remote != "" {
		o.Remote = blob.JoinAddress(r.options.Remote, m.Name)
	}

	p, err := SaveAsync(ctx, store, state, &o)
	if err != nil || p.over() && errors.Is(p.err, ErrSkipped) {
		r.stillLoaded(m)
	}
	return p, err
}

// stagerOf returns the Stager of the run, and makes one if need be.
func (r *Run) stagerOf() (*Stager, error) {
	if r.beside != nil {
		return r.beside.stagerOf() // which has one state in memory for both
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("%w: the Run is closed", ErrOptions)
	}
	var err error
	if r.stager == nil {
		r.stager, err = NewStager(nil)
	}
	return r.stager, err
}

// Latest returns the newest complete checkpoint of the run, in both of its places; see the
// function Latest. All ranks call it. Nil options mean the defaults; Group and Remote are
// those of the run.
func (r *Run) Latest(ctx context.Context, opts *LatestOptions) (*Found, error) {
	var o LatestOptions
	if opts != nil {
		o = *opts
	}
	if err := r.join(ctx); err != nil {
		return nil, r.wrap("latest", err)
	}
	if o.Group = r.group; r.memory != nil {
		// Checkpoints in memory are commits of the same history, so a rewind of the run counts after them.
		o.Remote = r.address
		found, err := Latest(ctx, r.memory.address, &o)
		if r.options.Remote == "" || !errors.Is(err, ErrNotFound) {
			return found, err
		}
	}
	o.Remote = r.options.Remote
	return Latest(ctx, r.address, &o)
}

// Load loads the newest complete checkpoint of the run into state; see the function Load.
// All ranks call it. Observer and Logger receive a warning for each damaged or incomplete
// checkpoint that was passed over. The error wraps ErrNotFound if there is no checkpoint: the
// training can begin at its beginning.
func (r *Run) Load(ctx context.Context, state State, opts *LoadOptions) (*LoadReport, error) {
	var o LoadOptions
	if opts != nil {
		o = *opts
	}
	o.Group = r.group
	found, err := r.Latest(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, s := range found.Skipped {
		if r.group.Rank() == 0 && !s.UnderWay {
			o.warn(fmt.Errorf("%s was passed over: %s", blob.Redact(s.Path), s.Problem))
		}
	}
	return r.loadFrom(ctx, found.Path, state, &o)
}

// loadFrom loads the checkpoint at an address of the run. The job goes on from it.
func (r *Run) loadFrom(ctx context.Context, path string, state State, o *LoadOptions) (*LoadReport, error) {
	if err := r.join(ctx); err != nil {
		return nil, r.wrap("load", err)
	}
	store, err := openAddress(ctx, path)
	if err != nil {
		return nil, r.wrap("load", err)
	}
	report, err := Load(ctx, store, state, o)
	if err == nil {
		of := r
		if r.memory != nil && blob.Scheme(path) == "memory" {
			of = r.memory
		}
		_, name := blob.SplitAddress(path)
		of.goOn(name, report.SaveID)
	}
	return report, err
}

// goOn notes that the job goes on from a checkpoint of the run.
func (r *Run) goOn(folder, saveID string) {
	r.chain.Loaded(folder)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded = &run.Loaded{Folder: folder, SaveID: saveID}
}

// LoadStep is Load of the checkpoint that Step returns. The training goes on from there: checkpoints of
// later steps are on a line that is left when the next save is complete.
func (r *Run) LoadStep(ctx context.Context, state State, step int64, opts *LoadOptions) (*LoadReport, error) {
	return r.loadChosen(ctx, "step", state, opts, func(ctx context.Context) (*RunCheckpoint, error) { return r.step(ctx, step) })
}

// LoadBest is Load of the checkpoint that Best returns. The training goes on from there, as after
// LoadStep.
func (r *Run) LoadBest(ctx context.Context, state State, by string, opts *LoadOptions) (*LoadReport, error) {
	return r.loadChosen(ctx, "best", state, opts, func(ctx context.Context) (*RunCheckpoint, error) { return r.best(ctx, by) })
}

// loadChosen loads the checkpoint that rank 0 chooses.
func (r *Run) loadChosen(ctx context.Context, what string, state State, opts *LoadOptions, choose func(context.Context) (*RunCheckpoint, error)) (*LoadReport, error) {
	var o LoadOptions
	if opts != nil {
		o = *opts
	}
	o.Group = r.group
	path, err := group.Broadcast(ctx, r.group, what, 0, group.JSON[string](), func(ctx context.Context) (string, error) {
		c, err := choose(ctx)
		if err != nil {
			return "", err
		}
		return c.Path(), nil
	})
	if err != nil {
		return nil, r.wrap("load", err)
	}
	return r.loadFrom(ctx, path, state, &o)
}

// Step returns the newest complete checkpoint of a step, on the current line if that has one. Any
// process may call it. The error wraps ErrNotFound if the run has no checkpoint of the step, and
// ErrIncomplete if it has no complete one.
func (r *Run) Step(ctx context.Context, step int64) (*RunCheckpoint, error) {
	c, err := r.step(ctx, step)
	return c, r.wrap("find", err)
}

func (r *Run) step(ctx context.Context, step int64) (*RunCheckpoint, error) {
	opened, _, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	c, err := opened.Find(ctx, strconv.FormatInt(step, 10))
	if err == nil && !c.Complete() {
		return nil, fmt.Errorf("%w: %s", ErrIncomplete, c.Name)
	}
	return c, err
}

// Best returns the best complete checkpoint by a metric: "loss" is the one with the lowest value,
// "highest accuracy" the one with the highest. Any process may call it; see run.BestOf. The error wraps
// ErrNotFound if no checkpoint has the metric. If the tags and metrics of a complete checkpoint cannot
// be read, the best one is not known, and the error names that checkpoint.
func (r *Run) Best(ctx context.Context, by string) (*RunCheckpoint, error) {
	c, err := r.best(ctx, by)
	return c, r.wrap("find", err)
}

func (r *Run) best(ctx context.Context, by string) (*RunCheckpoint, error) {
	rule, err := run.BestBy(by)
	if err != nil {
		return nil, err
	}
	opened, _, err := r.open(ctx)
	if err != nil {
		return nil, err
	}
	all, err := opened.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	return run.BestOf(all, rule)
}

// PathOf returns the address of the first save of a step, whether there is a checkpoint or not. A save
// that must not replace a checkpoint there goes to another folder; SaveReport.Folder says which.
func (r *Run) PathOf(step int64) string { return blob.JoinAddress(r.address, run.FolderName(step)) }

// Due reports whether RunOptions.Save asks for a save in a step, the same on all ranks. All ranks call
// it in each step, and save if it returns true; see run.Due.At. The error wraps ErrOptions if there is
// no such policy.
func (r *Run) Due(ctx context.Context, step int64) (bool, error) {
	if r.due == nil {
		return false, r.wrap("due", fmt.Errorf("%w: Due needs RunOptions.Save", ErrOptions))
	}
	due, err := r.due.At(ctx, r.group, step)
	return due, r.wrap("due", err)
}

// Rewind makes the run go on from an older checkpoint. name is its folder or its step.
// Latest and Load return it from now on, and policies count the later checkpoints as left
// behind. Any process may call it. The next save goes on from there, unless its job has
// loaded or saved another checkpoint. The error wraps ErrNotFound if the run has no such checkpoint.
func (r *Run) Rewind(ctx context.Context, name string) (*RunCheckpoint, error) {
	opened, _, err := r.open(ctx)
	if err != nil {
		return nil, r.wrap("rewind", err)
	}
	c, err := opened.Rewind(ctx, name)
	return c, r.wrap("rewind", err)
}

// Checkpoints returns the checkpoints of the run, the oldest first, also incomplete ones.
// Any process may call it.
func (r *Run) Checkpoints(ctx context.Context) ([]RunCheckpoint, error) {
	opened, _, err := r.open(ctx)
	if err != nil {
		return nil, r.wrap("list", err)
	}
	all, err := opened.Checkpoints(ctx)
	return all, r.wrap("list", err)
}

// Note changes the tags and metrics of a checkpoint, which name names: a folder of the run, in
// each of its places that has a complete copy. Any process may call it. change may be called
// several times: if another process changes them meanwhile, Note begins again.
func (r *Run) Note(ctx context.Context, name string, change func(*Notes) error) error {
	opened, _, err := r.open(ctx)
	if err == nil {
		err = opened.Note(ctx, name, change)
	}
	return r.wrap("note", err)
}

// Prune removes the checkpoints that the policies of the run do not keep: see run.Run.Prune.
// Keep and KeepRemote of the options are ignored. Any process may call it; saves of a Run do
// so by themselves.
func (r *Run) Prune(ctx context.Context, opts *PruneOptions) (*PruneReport, error) {
	var o PruneOptions
	if opts != nil {
		o = *opts
	}
	opened, s, err := r.open(ctx)
	if err != nil {
		return nil, r.wrap("prune", err)
	}
	o.Keep, o.KeepRemote = s.Keep, s.KeepRemote
	if o.Turn == nil {
		o.Turn = run.Turn
	}
	report, err := opened.Prune(ctx, &o)
	return report, r.wrap("prune", err)
}

// Sync uploads the checkpoints that the remote run lacks, and returns the outcome for each.
// Any process may call it; saves of a Run do so by themselves.
func (r *Run) Sync(ctx context.Context) ([]transfer.Synced, error) {
	opened, s, err := r.open(ctx)
	if err != nil {
		return nil, r.wrap("sync", err)
	}
	done, err := opened.Sync(ctx, &run.SyncOptions{KeepRemote: s.KeepRemote})
	return done, r.wrap("sync", err)
}

// Close waits until the run is in order, for at most two minutes after its saves and
// uploads, and until its exports are over, and closes the Stager that the Run has made. If ctx ends first, the rest is
// cancelled: the next save to the run goes on with it.
func (r *Run) Close(ctx context.Context) error {
	defer r.chain.Close()
	defer r.stop(context.Canceled)
	defer context.AfterFunc(ctx, func() { r.stop(context.Cause(ctx)) })()
	r.mu.Lock()
	r.closed = true
	defer r.kept.Clear()
	own := r.stager
	if r.options.Stager != nil {
		own = nil
	}
	r.mu.Unlock()
	var err error
	if own != nil {
		err = own.Close(ctx)
	}
	tended, cancel := context.WithTimeout(r.ctx, run.TendWait)
	defer cancel()
	if !r.tender.Wait(tended) {
		r.stop(context.DeadlineExceeded)
		r.tender.Wait(context.Background())
	}
	if !r.export.Wait(r.ctx) {
		r.export.Wait(context.Background()) // its process is killed
	}
	if r.memory != nil {
		err = errors.Join(err, r.memory.Close(ctx))
	}
	r.leave(ctx)
	return err
}
