package saver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
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
	partners := memory.Partners(j.Hosts, memory.DefaultCopies)
	for _, h := range j.Hosts {
		out.Hosts = append(out.Hosts, hostBody{ID: h.ID, Name: h.Name, Domain: h.Domain, Address: h.Addresses[0], Ranks: j.Ranks(h.ID), Partners: partners[h.ID]})
	}
	return out
}

// copies returns what copies a save to memory to other hosts, or nil if the save is to another store.
func (m *memories) copies(v *SaveRequest, copied func(*memory.Report, error)) (*Copies, error) {
	if blob.Scheme(v.Store) != "memory" {
		return nil, nil
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
	if err := j.Check(); err != nil { // before the save replaces files of the other job
		return nil, err
	}
	_, g, _ := m.peers.forMemory()
	return &Copies{Job: j, Group: g, Folder: folder, Copied: copied}, nil
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
	*memory.Job
	// Group is the group of the copies. It has the ranks of the save.
	Group  group.Group
	Folder string
	// Copied receives the outcome after Over has returned.
	Copied func(*memory.Report, error)
}

// copy brings copies of a checkpoint in memory to other hosts.
func (run *running) copy(ctx context.Context, saved *protocol.SaveReport, failed error) error {
	c := run.Copies
	s := memory.Saved{}
	if failed == nil {
		s.SaveID, s.Files = saved.SaveID, saved.Wrote
		if p, ok := run.Job.Writer.(storage.Publisher); ok && c.Group.Rank() == 0 {
			s.Last = p.Published()
		}
	}
	report, err := c.Copy(ctx, c.Group, c.Folder, s, failed)
	c.Copied(report, err)
	return err
}
