package transfer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// Saved describes the files that one rank has saved.
type Saved struct {
	Format, SaveID string
	// Files are the data files that the rank has written.
	Files []storage.File
	// Last are the names of the files that the rank has written after the data files of
	// all ranks, the record last. Only one rank has them: it publishes the copy.
	Last []string
}

// Parts copies a checkpoint that several ranks have just saved. Each rank copies the files
// that it has written, from a store that need not have the files of other ranks. The ranks
// make sure that all of them have called Copy without an error before the one that publishes
// calls Publish. Until then, and if that fails, the checkpoint is not visible in the target.
// The promises of Copy about checksums, other checkpoints in the target and repeated calls
// hold here too. A Parts must be closed.
type Parts struct {
	j    *job
	data []item // of this rank
	last []item
}

// BeginParts looks at the target and begins the copy of one rank. Of opts, As and Full
// are ignored.
func BeginParts(ctx context.Context, src, dst blob.Store, s Saved, opts *Options) (*Parts, error) {
	p := &Parts{j: &job{src: src, dst: dst, opts: opts.withDefaults(), rep: Report{Format: s.Format, SaveID: s.SaveID, LeftOut: []string{}}}}
	p.j.opts.As, p.j.opts.Full = "", false
	p.j.pool = work.NewPool(buffer, p.j.opts.Memory, 2)
	var err error
	if p.j.release, err = commit.Reading(ctx, src); err != nil {
		return nil, err
	}

	if err := p.begin(ctx, &s); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// begin lists the files and looks at the target.
func (p *Parts) begin(ctx context.Context, s *Saved) (err error) {
	if err := p.list(ctx, s); err != nil {
		return err
	}
	if len(p.last) == 0 {
		p.j.have, err = list(ctx, p.j.dst)
		return err
	}

	p.j.items = slices.Concat(p.data, p.last)
	if err := p.j.look(ctx); err != nil {
		return err
	}

	p.j.lock, err = commit.LockSave(ctx, p.j.dst, s.Format, p.j.lockID())
	return err
}

// list finds out which files this rank copies.
func (p *Parts) list(ctx context.Context, s *Saved) error {
	known := map[string]storage.File{}
	for _, f := range s.Files {
		known[f.Name] = f
		if slices.Contains(s.Last, f.Name) {
			continue
		}
		if err := p.add(ctx, &p.data, f, true, 0); err != nil {
			return err
		}
	}

	for i, name := range s.Last {
		f, ok := known[name]
		if !ok {
			f = storage.File{Name: name, Unsummed: true}
		}
		if err := p.add(ctx, &p.last, f, ok, 1+i); err != nil {
			return err
		}
	}

	return nil
}

// add adds a file of this rank. sized says that its size is known.
func (p *Parts) add(ctx context.Context, to *[]item, f storage.File, sized bool, stage int) error {
	info, err := p.j.src.Stat(ctx, f.Name)
	if err != nil {
		return err
	}
	if sized && info.Size != f.Size {
		return fmt.Errorf("%w: %s of %s has %d bytes, and %d were written", storage.ErrCorrupt, f.Name, p.j.src, info.Size, f.Size)
	}

	*to = append(*to, item{Info: info, to: f.Name, sum: f.CRC32C, summed: !f.Unsummed, stage: stage})
	p.j.rep.Files++
	p.j.rep.Bytes += info.Size
	if f.Unsummed && sized {
		p.j.rep.Unsummed += info.Size
	}
	return nil
}

// Copy copies the data files of this rank that the target lacks.
func (p *Parts) Copy(ctx context.Context) error {
	p.j.opts.Planned(p.j.rep.Bytes)
	p.j.items = p.data
	todo, err := p.j.missing(ctx)
	if err != nil {
		return err
	}
	return p.j.copyData(ctx, todo)
}

// Publish makes the copy visible. data are the data files of all ranks.
func (p *Parts) Publish(ctx context.Context, data []storage.File) error {
	p.j.items = p.last
	todo, err := p.j.missing(ctx)
	if err != nil {
		return err
	}

	p.j.items = nil
	for _, f := range data {
		if !slices.ContainsFunc(p.last, func(it item) bool { return it.to == f.Name }) {
			p.j.items = append(p.j.items, item{Info: blob.Info{Name: f.Name, Size: f.Size}, to: f.Name})
		}
	}

	p.j.items = append(p.j.items, p.last...)
	if err := p.j.lock.Replaces(p.j.old); err != nil {
		return err
	}

	err = p.j.publish(ctx, todo)
	if (err == nil || errors.Is(err, blob.ErrUncertain)) && p.j.rep.Format == formats.Torch {
		commit.Remember(p.j.dst, p.last[len(p.last)-1].to, p.j.rep.SaveID)
	}
	return err
}

// Report describes the copy of this rank so far.
func (p *Parts) Report() *Report {
	rep := p.j.rep
	rep.ByService = int(p.j.service.Load())
	return &rep
}

// Close releases the locks of the source and of the target.
func (p *Parts) Close() {
	_ = p.j.lock.Release() // a lock that stays belongs to a dead process
	p.j.release()
}
