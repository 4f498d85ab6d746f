package saver

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// SaveRequest says where and how to save. It is a part of the message that begins a save in a
// saver process.
type SaveRequest struct {
	Store string `json:"store"` // address of a folder: a path or a URL
	// Remote is the address of the same checkpoint in another store, to which it is
	// uploaded. LocalBytes bounds the checkpoints in the folders beside Store; zero:
	// there is no bound.
	Remote     string `json:"remote,omitempty"`
	LocalBytes int64  `json:"local_bytes,omitempty"`
	// Copies is how many other hosts keep a copy of each file of a save to memory; zero: one. CopyRate bounds
	// the bytes per second that a host receives; zero: there is no bound.
	Copies   int   `json:"copies,omitempty"`
	CopyRate int64 `json:"copy_rate,omitempty"`
	// Format is the name of the format. The function FormatOptions returns its options.
	Format        string            `json:"format"`
	FormatOptions json.RawMessage   `json:"format_options,omitempty"`
	SaveID        string            `json:"save_id"`
	Time          string            `json:"time"` // as time.RFC3339Nano
	Writer        string            `json:"writer"`
	Step          *int64            `json:"step,omitempty"`
	Tags          map[string]string `json:"tags,omitempty"`
	FilesPerRank  int               `json:"files_per_rank,omitempty"`
	BufferBytes   int64             `json:"buffer_bytes,omitempty"`
	FailIfExists  bool              `json:"fail_if_exists,omitempty"`
	// Replaces is storage.WriteOptions.Replaces: the ids of the saves and loads of the job at Store.
	// ReplacesRemote has those at Remote. Nil: the save replaces any checkpoint.
	Replaces       []string      `json:"replaces,omitzero"`
	ReplacesRemote []string      `json:"replaces_remote,omitzero"`
	SweepAfter     time.Duration `json:"sweep_after_ns,omitempty"`
	// Base is storage.WriteOptions.Base. Nil: see InRun.Refer.
	Base *storage.Base `json:"base,omitempty"`
	// Owner, ValuesMayDiffer and TensorsMayDiffer are options of plan.DefaultSave.
	// TensorsMayDiffer holds for all tensors.
	Owner            plan.OwnerRule `json:"owner,omitempty"`
	ValuesMayDiffer  bool           `json:"values_may_differ,omitempty"`
	TensorsMayDiffer bool           `json:"tensors_may_differ,omitempty"`
	Cache            bool           `json:"cache,omitempty"`
	// Metrics are noted with the checkpoint.
	Metrics run.Metrics `json:"metrics,omitempty"`
	// Exports are what the checkpoint is converted into after the save, as texts; see run.ParseExport.
	Exports []run.Export `json:"exports,omitempty"`
	// Run makes the folder above Store a run, which is kept in order after the save.
	Run *InRun `json:"run,omitempty"`
}

// InRun says how the run of a checkpoint is kept in order. Policies are texts; see
// run.ParsePolicy.
type InRun struct {
	// Remote is the address of the run in another store. Empty: the folder above
	// SaveRequest.Remote, if that is set.
	Remote     string `json:"remote,omitempty"`
	Keep       string `json:"keep,omitempty"`
	KeepRemote string `json:"keep_remote,omitempty"`
	// Refer lets each save refer to the one before it, as long as that pays. It has no
	// effect if there is a remote store, or in another format than the native one.
	Refer bool `json:"refer,omitempty"`
	// Remember keeps the bytes that this rank saves in memory, for the next save to the run,
	// which then need not read the checkpoint before it. Runs in object storage refer only
	// with it. It has no effect without Refer.
	Remember bool `json:"remember,omitempty"`
	// Export is what checkpoints of the run are converted into, each into a folder of its own, after the saves that
	// ExportEvery chooses, in the words of run.NewDue; empty: after each save.
	Export      run.Export `json:"export,omitzero"`
	ExportEvery string     `json:"export_every,omitempty"`
	// Loaded is the checkpoint of the run that the trainer has loaded since its last save,
	// and from which it goes on. Nil: none.
	Loaded *run.Loaded `json:"loaded,omitempty"`
}

// member returns the membership of the checkpoint in its run, or nil. The error wraps
// storage.ErrOptions if the membership, or a metric, makes no sense.
func (v *SaveRequest) member() (*run.Member, error) {
	if err := (&run.Notes{Metrics: v.Metrics}).Check(); err != nil {
		return nil, err
	}
	if v.Run == nil {
		return nil, nil
	}
	m := &run.Member{Settings: run.Settings{Remote: v.Run.Remote}, Exclusive: v.FailIfExists, Loaded: v.Run.Loaded}
	m.Address, m.Name = blob.SplitAddress(v.Store)
	if m.Address == "" || m.Name == "" {
		return nil, storage.RefuseIf(true, "the checkpoint %s has no folder above it, which would be its run", blob.Redact(v.Store))
	}
	if v.Remote != "" {
		above, name := blob.SplitAddress(v.Remote)
		if name != m.Name {
			return nil, storage.RefuseIf(true, "the checkpoint is called %q in the run and %q in the remote one", m.Name, name)
		}
		m.Settings.Remote = cmp.Or(m.Settings.Remote, above)
	}
	var err error
	if m.Settings.Keep, err = run.ParsePolicy(v.Run.Keep); err != nil {
		return nil, err
	}
	m.Settings.KeepRemote, err = run.ParsePolicy(v.Run.KeepRemote)
	return m, err
}

// exports returns the exports of the request, with absolute paths.
func (v *SaveRequest) exports() ([]run.Export, error) {
	var out []run.Export
	for _, e := range v.Exports {
		e, err := e.Absolute()
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, storage.RefuseIf(len(out) > 0 && blob.Scheme(v.Store) == "memory", "checkpoints in memory are not exported")
}

// SetStorage sets the fields that a checkpoint keeps.
func (v *SaveRequest) SetStorage(s *meta.Storage) {
	v.SaveID, v.Time, v.Writer, v.Step, v.Tags = s.SaveID, s.Time.Format(time.RFC3339Nano), s.Writer, s.Step, s.Tags
}

// writeOptions returns the options of the writer. apart is storage.WriteOptions.Apart.
func (v *SaveRequest) writeOptions(apart bool) storage.WriteOptions {
	return storage.WriteOptions{
		FilesPerRank: v.FilesPerRank, BufferBytes: v.BufferBytes, FailIfExists: v.FailIfExists, Replaces: v.Replaces, SweepAfter: v.SweepAfter,
		Others: formats.CheckOthers, Apart: apart, Base: v.Base,
	}
}
