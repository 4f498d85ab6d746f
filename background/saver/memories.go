package saver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/protocol"
	runs "github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// memories are the runs in memory that this saver holds a part of.
type memories struct {
	*scope
	peers *peers
	tasks *tasks
	// tended waits until the runs of this rank are in order.
	tended func(ctx context.Context) bool

	mu   sync.Mutex
	jobs map[string]*memory.Job // by run; guarded by mu
	held sync.Map               // the same, for check: mu is held while hosts meet and leave
}

// check returns an error if other processes of this host hold a run that this one has joined: it must not change
// the run any more.
func (m *memories) check(run string) error {
	if j, ok := m.held.Load(run); ok {
		return j.(*memory.Job).Check()
	}
	return nil
}

// join brings the hosts of a run in memory together. All ranks send the same messages in the same
// order.
func (m *memories) join(b *memoryBody) error {
	if b.Leave || b.Forget {
		return m.tasks.begin(b.Load, nil, typeHosted, func(ctx context.Context) (any, error) {
			return &hostedBody{Load: b.Load, Hosts: []hostBody{}}, m.leave(ctx, b.Run, b.Forget)
		})
	}
	g, _, toward := m.peers.forMemory()
	if g == nil {
		return fmt.Errorf("%w: a run in memory before the savers have met", ErrMessage)
	}
	return m.tasks.begin(b.Load, nil, typeHosted, func(ctx context.Context) (any, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		j := m.jobs[b.Run]
		if j == nil {
			root, err := ram.Here()
			if err != nil {
				return nil, err
			}
			if j, err = memory.Join(ctx, g, root, b.Run, &memory.Options{Toward: toward, Logger: m.Logger}); err != nil {
				return nil, err
			}
			m.jobs[b.Run] = j
			m.held.Store(b.Run, j)
		}
		return hosted(b.Load, j), nil
	})
}

// hosted describes the hosts of a run.
func hosted(load uint64, j *memory.Job) *hostedBody {
	out := &hostedBody{Load: load, Host: j.Host}
	copies := 0
	if m, err := j.Root.ReadMembers(j.Run); err == nil {
		copies = m.Copies // of the last save
	}
	partners := memory.Partners(j.Hosts, cmp.Or(copies, memory.DefaultCopies))
	for _, h := range j.Hosts {
		out.Hosts = append(out.Hosts, hostBody{ID: h.ID, Name: h.Name, Domain: h.Domain, Address: h.Addresses[0], Interface: h.Interface, Ranks: j.Ranks(h.ID), Partners: partners[h.ID]})
	}
	return out
}

// copies returns what copies a save to memory to other hosts, or nil if the save is to another store.
func (m *memories) copies(v *SaveRequest, copied func(*memory.Report, error)) (*Copies, error) {
	if blob.Scheme(v.Store) != "memory" {
		return nil, storage.RefuseIf(v.Copies != 0 || v.CopyRate != 0, "copies and copy_rate have no effect: %s is not in memory", blob.Redact(v.Store))
	}
	if v.Copies < 0 || v.CopyRate < 0 {
		return nil, storage.RefuseIf(true, "%d copies, at %d bytes per second: want no negative numbers", v.Copies, v.CopyRate)
	}
	run, folder, err := ram.Split(v.Store)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	j := m.jobs[run]
	m.mu.Unlock()
	if j == nil || folder == "" {
		return nil, storage.RefuseIf(true, "%s: the message memory names the run of a save to memory before, and the save names a folder of it", v.Store)
	}
	_, g, _ := m.peers.forMemory()
	return &Copies{Job: j, Group: g, Folder: folder, Copies: v.Copies, Rate: v.CopyRate, Copied: copied}, nil
}

// leaveTime bounds how long a rank that leaves a run waits for the others.
const leaveTime = 10 * time.Second

// leave ends the service of a run, when no rank needs it: rank 0 removes old checkpoints from all hosts.
func (m *memories) leave(ctx context.Context, run string, forget bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if j := m.jobs[run]; j != nil {
		ctx, cancel := context.WithTimeout(ctx, leaveTime)
		defer cancel()
		g, _, _ := m.peers.forMemory()
		err := group.Each(ctx, g, "leave memory", func(ctx context.Context) error {
			m.tended(ctx)
			return nil
		})
		if err != nil {
			m.Logger.Info("memory: other ranks have not left the run", "run", run, "error", err)
		}
		j.Leave()
		delete(m.jobs, run)
	}
	if !forget {
		return nil
	}
	root, err := ram.Here()
	if err != nil {
		return err
	}
	return root.Remove(run)
}

// close ends the service of all runs, after the trainer has gone. If it has not left a run, it was
// killed: then the job may go on on other hosts, which need the files of this one for a time.
func (m *memories) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), orphanTime)
	defer cancel()
	for _, j := range m.jobs {
		j.Linger(ctx)
		j.Leave()
	}
}

// Copies says how a checkpoint in memory gets to other hosts.
type Copies struct {
	*memory.Job // nil: this rank does not hold the run, see broken
	// Group is the group of the copies. It has the ranks of the save.
	Group  group.Group
	Folder string
	// Copies and Rate are as in memory.Saved.
	Copies int
	Rate   int64
	// Held, if not nil, returns what this rank holds of files of other ranks, for memory.Saved.
	Held func(s *memory.Saved)
	// Copied receives the outcome after Over has returned.
	Copied func(*memory.Report, error)

	broken error
}

// prepare looks at the memory of all hosts before a save. The save fails before it writes if a host has
// no room for it.
func (run *running) prepare(ctx context.Context) error {
	c := run.Copies
	failed := c.broken
	if failed == nil {
		failed = c.Check() // before the save replaces files of another job
	}
	room, err := memory.Measure(ctx, run.Job.Group, c.Job, failed)
	if err != nil {
		return err
	}
	run.Job.Fits = func(ctx context.Context, written []int64) error {
		err := room.Check(written, c.Copies)
		if !errors.Is(err, memory.ErrFull) {
			return err
		}
		removed, removeErr := c.giveUp(ctx)
		if len(removed) == 0 {
			return errors.Join(err, removeErr)
		}
		run.Job.Recorder.Warn(fmt.Errorf("%w: removed %s, because copies have failed; the newest checkpoint with copies stays", err, strings.Join(removed, ", ")))
		return nil
	}
	return nil
}

// giveUp removes all checkpoints of the run but the newest one that other hosts have copies of or, if there is
// none, the newest one. It returns the names of the removed ones. They are there because their copies have
// failed: otherwise the policy of the run has removed them.
func (c *Copies) giveUp(ctx context.Context) (removed []string, err error) {
	r, err := runs.Open(ctx, "memory://"+c.Run, "")
	if err != nil {
		return nil, err
	}
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	stays := ""
	for i := range all { // the oldest first
		if all[i].Copies() != "" && isCopied(ctx, r.Local.Store, all[i].Name) {
			stays = all[i].Name
		}
	}
	if stays == "" {
		found, err := r.Latest(ctx)
		if err != nil {
			return nil, err
		}
		_, stays = blob.SplitAddress(found.Path)
	}

	var errs []error
	for i := range all {
		if name := all[i].Name; name != stays {
			if _, err := r.Remove(ctx, []string{name}, &runs.RemoveOptions{Force: true}); err != nil {
				errs = append(errs, err)
				continue
			}
			removed = append(removed, name)
		}
	}
	return removed, errors.Join(errs...)
}

// isCopied reports whether a checkpoint has its copies: then its record is on several hosts, because it is
// copied last.
func isCopied(ctx context.Context, run blob.Store, folder string) bool {
	in, err := run.Open(ctx, folder+"/"+native.RecordName)
	if err != nil {
		return false
	}
	defer in.Close()
	copies, ok := in.(blob.CopyReader)
	if !ok {
		return false // there is only one host
	}
	places, _ := copies.Copies(ctx) // of the hosts that answer
	return len(places) > 1
}

// copy brings copies of a checkpoint in memory to other hosts.
func (run *running) copy(ctx context.Context, saved *protocol.SaveReport, failed error) (*memory.Report, error) {
	c := run.Copies
	s := memory.Saved{Copies: c.Copies, Rate: c.Rate}
	if failed = cmp.Or(failed, c.broken); failed == nil {
		s.SaveID, s.Files = saved.SaveID, saved.Wrote
		if c.Held != nil {
			c.Held(&s)
		}
		if p, ok := run.Job.Writer.(storage.Publisher); ok && c.Group.Rank() == 0 {
			s.Last = p.Published()
		}
	}
	return c.Copy(ctx, c.Group, c.Folder, s, failed)
}
