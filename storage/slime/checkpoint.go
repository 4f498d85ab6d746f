package slime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// checkpoint is a delta version as a whole checkpoint. Its files are the files of the
// version itself.
type checkpoint struct {
	*reading.Checkpoint
	chain *chain
	of    map[string]*history // nil: the chain is broken, or version 0 is not given
	t     *tensors
}

var (
	_ storage.Checkpoint   = (*checkpoint)(nil)
	_ storage.PartVerifier = (*checkpoint)(nil)
)

// open returns the checkpoint of a chain.
func (c *chain) open(ctx context.Context) (storage.Checkpoint, error) {
	own := c.versions[0]
	step := own.number
	md := &meta.Metadata{Storage: meta.Storage{Version: Version, Step: &step, Bases: c.beside}}
	out := &checkpoint{chain: c}
	src := &reading.Source{Metadata: md, Files: own.files, Place: out.place, Check: out.check, CheckFiles: out.checkFiles}
	if c.full != nil {
		out.of, c.broken = c.histories()
	}
	if c.broken != nil {
		out.of = nil
		out.Checkpoint = reading.Open(own.store, src)
		return out, nil
	}
	if c.full == nil {
		out.Checkpoint = reading.Open(own.store, src)
		return out, nil
	}
	out.t = newTensors(c.full)
	unchanged := 0
	for _, h := range out.of {
		md.Entries = append(md.Entries, h.entry(own, c.root))
		if len(h.deltas) == 0 {
			unchanged++
		}
	}
	slices.SortFunc(md.Entries, func(a, b meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	if unchanged > 0 {
		md.Storage.Notes = []string{fmt.Sprintf("tensors that have not changed since %s, which has no checksums: %d of %d", c.root, unchanged, len(out.of))}
	}
	out.Checkpoint = reading.Open(own.store, src)
	return out, context.Cause(ctx)
}

// Root returns the store of the full version at the end of the chain, which has the model's
// configuration. Its tensors are not those of this version.
func (c *checkpoint) Root() blob.Store { return c.chain.at }

// readable returns an error if the tensors cannot be read.
func (c *checkpoint) readable() error {
	if c.of != nil || c.chain.broken != nil {
		return c.chain.broken
	}
	oldest := c.chain.versions[len(c.chain.versions)-1]
	return fmt.Errorf("%s changes version 0: %w", oldest.name, ErrBase)
}

// Metadata returns the whole description.
func (c *checkpoint) Metadata(ctx context.Context) (*meta.Metadata, error) {
	if err := c.readable(); err != nil {
		return nil, err
	}
	return c.Checkpoint.Metadata(ctx)
}

// Find returns the entry of that name.
func (c *checkpoint) Find(ctx context.Context, fqn string) (*meta.Entry, bool, error) {
	if err := c.readable(); err != nil {
		return nil, false, err
	}
	return c.Checkpoint.Find(ctx, fqn)
}

// CheckHeld checks that the full version has the tensor.
func (c *checkpoint) CheckHeld(ctx context.Context, e *meta.Entry) error {
	h := c.of[e.FQN]
	if h == nil {
		return c.Checkpoint.CheckHeld(ctx, e)
	}
	return c.chain.full.CheckHeld(ctx, h.base)
}

// TotalBytes returns the bytes of the version and of the full version.
func (c *checkpoint) TotalBytes() int64 {
	n := c.Checkpoint.TotalBytes()
	if c.chain.full != nil {
		n += c.chain.full.TotalBytes()
	}
	return n
}

// Close closes the checkpoint and the full version.
func (c *checkpoint) Close() error {
	err := c.Checkpoint.Close()
	if c.chain.full != nil {
		err = errors.Join(err, c.chain.full.Close())
	}
	return err
}

// place is reading.Source.Place.
func (c *checkpoint) place(_ context.Context, e *meta.Entry, _ int) (reading.Place, error) {
	h := c.of[e.FQN]
	if h == nil {
		return reading.Place{}, fmt.Errorf("%w: the chain has no such tensor", storage.ErrCorrupt)
	}
	return reading.Place{Decoder: &decoder{c.t, h}}, nil
}

// checkFiles is reading.Source.CheckFiles: the files of all versions have the sizes that
// they had when the chain was read.
func (c *checkpoint) checkFiles(ctx context.Context) ([]blob.Info, error) {
	if c.chain.broken != nil {
		return nil, c.chain.broken
	}
	var own []blob.Info
	for i, v := range c.chain.versions {
		have, err := v.list(ctx)
		if err != nil {
			return nil, err
		}
		for _, f := range v.files[1:] {
			if size, ok := have[f.Name]; !ok || size != f.Size {
				return nil, fmt.Errorf("%w: %s: %s had %d bytes, and is missing or has other bytes now", ErrChain, v.name, f.Name, f.Size)
			}
			if i == 0 {
				own = append(own, blob.Info{Name: f.Name, Size: f.Size})
			}
		}
	}
	if c.chain.full != nil {
		return own, c.chain.full.CheckFiles(ctx)
	}
	return own, nil
}

// Verify reads the files of the version and the full version, makes each tensor that has
// changed since the full version, and compares it with its checksum.
func (c *checkpoint) Verify(ctx context.Context, progress func(bytes int64)) (*storage.VerifyReport, error) {
	return c.VerifyPart(ctx, func(string) bool { return true }, true, progress)
}

// VerifyPart implements storage.PartVerifier. The process with the rest verifies the full
// version too.
func (c *checkpoint) VerifyPart(ctx context.Context, mine func(file string) bool, rest bool, progress func(bytes int64)) (*storage.VerifyReport, error) {
	rep, err := c.Checkpoint.VerifyPart(ctx, mine, rest, progress)
	if broken := c.chain.broken; err == nil && rest && broken != nil {
		rep.Problems = append(rep.Problems, storage.VerifyProblem{File: indexName, Text: text(broken)})
		return rep, nil
	}
	if err == nil && rest && c.chain.full == nil {
		rep.Notes = append(rep.Notes, fmt.Sprintf("version 0 is not given: only the index, the files and the differences of %s are checked", c.chain.versions[0].name))
	}
	if err != nil || !rest || c.chain.full == nil {
		return rep, err
	}
	full, err := c.chain.full.Verify(ctx, progress)
	if err != nil {
		return nil, err
	}
	rep.Files += full.Files
	rep.Bytes += full.Bytes
	for _, p := range full.Problems {
		p.File = c.chain.root + "/" + p.File
		rep.Problems = append(rep.Problems, p)
	}
	storage.SortProblems(rep.Problems)
	return rep, nil
}

// check is reading.Source.Check. The file that holds the newest difference of a tensor
// stands for the tensor, and the index for tensors that the version has not changed.
func (c *checkpoint) check(ctx context.Context, f *reading.FileCheck) (unsummed int64, err error) {
	if err := f.Scan(ctx, nil); err != nil {
		return 0, err
	}
	own := c.chain.versions[0]
	if c.of == nil {
		for name, d := range own.deltas {
			if d.file == f.File.Name {
				if err := c.note(f, name, d.check(ctx)); err != nil {
					return 0, err
				}
			}
		}
		return 0, nil
	}
	for name, h := range c.of {
		file := indexName
		if d := own.deltas[name]; d != nil {
			file = d.file
		}
		switch {
		case file != f.File.Name:
			continue
		case len(h.deltas) == 0:
			unsummed += h.bytes
			continue
		}
		_, _, done, err := c.t.get(ctx, h)
		if err == nil {
			done()
		}
		if err := c.note(f, name, err); err != nil {
			return unsummed, err
		}
	}
	return unsummed, nil
}

// note adds an error about the checkpoint to the report. It returns other errors.
func (c *checkpoint) note(f *reading.FileCheck, name string, err error) error {
	if !errors.Is(err, storage.ErrCorrupt) {
		return plan.Named(name, err)
	}
	f.Problem(name, text(err))
	return nil
}

// text returns an error as the text of a problem.
func text(err error) string {
	return strings.TrimPrefix(err.Error(), storage.ErrCorrupt.Error()+": ")
}
