package cairn

import (
	"context"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
)

// CopyReport describes the copies of a checkpoint in memory.
type CopyReport = memory.Report

// ErrRoom reports a host that has too little memory for the checkpoints of a run in memory. The error names the
// sizes.
var ErrRoom = memory.ErrRoom

// Copied is closed once other hosts have copies of the checkpoint, or the save or its copies have failed. If the
// save is not to a run in memory, it is closed with Done.
func (p *Pending) Copied() <-chan struct{} { return p.copied }

// WaitCopied waits until the copies are complete. If the save failed, it returns the error of the save. If the save
// is not to a run in memory, the report is nil. If only the copies fail, the checkpoint is complete on the
// hosts of its ranks, and the one before it stays. If ctx ends first, WaitCopied returns its cause, and the copies go on.
func (p *Pending) WaitCopied(ctx context.Context) (*CopyReport, error) {
	if err := waitFor(ctx, p.copied); err != nil {
		return nil, err
	}
	return p.copyReport, p.copyErr
}

// Memory returns the run in the memory of the hosts that RunOptions.Memory asks for, or nil. Its Due says when to
// save to it: ask both runs in each step, and save to this one if only its save is due. Close closes it; close
// RunOptions.Stager before, if that is set.
func (r *Run) Memory() *Run { return r.memory }

// isMemory reports whether the run is in memory.
func (r *Run) isMemory() bool { return blob.Scheme(r.address) == "memory" }

// besideOf returns the run in memory beside r.
func besideOf(r *Run) (*Run, error) {
	o := &r.options
	name, err := ram.Beside(r.address)
	if err != nil {
		return nil, err
	}
	last, err := ParsePolicy("last 1")
	if err != nil {
		return nil, err
	}
	out, err := NewRun("memory://"+name, &RunOptions{
		Group: o.Group, Keep: last, Save: o.Memory, Alone: true, Copies: o.Copies, CopyRate: o.CopyRate, Toward: o.Toward,
	})
	if err == nil {
		out.group, out.beside = r.group, r
	}
	return out, err
}

// join brings the hosts of a run in memory together, once. All ranks call it. It has no effect on other runs.
func (r *Run) join(ctx context.Context) error {
	if r.memory != nil {
		return r.memory.join(ctx)
	}
	if !r.isMemory() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return fmt.Errorf("%w: the Run is closed", ErrOptions)
	}
	if r.job != nil {
		return nil
	}
	var root ram.Root
	name, _, err := ram.Split(r.address)
	if err == nil {
		root, err = ram.Here()
	}
	// A rank with an error must not leave the others waiting.
	if err := group.Each(ctx, r.group, "memory", func(context.Context) error { return err }); err != nil {
		return err
	}
	r.job, err = memory.Join(ctx, r.group, root, name, &memory.Options{Toward: r.options.Toward})
	return err
}

// saveToMemory is Save for a run in memory. It returns when other hosts have copies.
func (r *Run) saveToMemory(ctx context.Context, state State, o SaveOptions) (*SaveReport, error) {
	p, err := r.SaveAsync(ctx, state, &AsyncOptions{SaveOptions: o})
	if err != nil {
		return nil, err
	}
	report, err := p.Wait(ctx)
	if err == nil {
		_, err = p.WaitCopied(ctx)
	}
	if err != nil {
		return nil, err
	}
	return report, nil
}

// copies returns how a save to a run in memory gets to other hosts, or nil for other runs.
func (r *Run) copies(folder string) *saver.Copies {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.job == nil {
		return nil
	}
	return &saver.Copies{Job: r.job, Folder: folder, Copies: r.options.Copies, Rate: r.options.CopyRate}
}

// leaveTime bounds how long a rank that leaves a run in memory waits for the others.
const leaveTime = 10 * time.Second

// leave ends the service of a run in memory, after all ranks have come here: rank 0 may still remove old
// checkpoints from all hosts.
func (r *Run) leave(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.job == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	_ = group.Each(ctx, r.group, "leave memory", func(context.Context) error { return nil }) // other ranks may have died
	r.job.Leave()
	r.job = nil
}

// Forget removes a run in memory, or the one that [Run.Memory] returns, from the memory of this host, for the
// end of a training that will not go on. Call it after Close.
func (r *Run) Forget() error {
	if r.memory != nil {
		return r.memory.Forget()
	}
	name, _, err := ram.Split(r.address)
	if err == nil {
		var root ram.Root
		if root, err = ram.Here(); err == nil {
			err = root.Remove(name)
		}
	}
	return r.wrap("forget", err)
}
