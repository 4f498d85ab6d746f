package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/inspect"
)

// finding is what a look at the checkpoint shows.
type finding struct {
	saveID string
	step   int64
	check  Check
	digest string
	// named are the files of the checkpoint.
	named map[string]bool
}

// examine opens the checkpoint that is there, verifies all of it and takes its
// digest.
func (p *play) examine(ctx context.Context) (*finding, error) {
	c, err := cairn.Open(ctx, p.Store)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p.Watch.Begin("verify", c.TotalBytes())
	start := time.Now()
	rep, err := c.Verify(ctx, p.Watch.Moved)
	if err != nil {
		return nil, err
	}
	f := &finding{saveID: c.Info().SaveID, step: stepOf(c), named: map[string]bool{recordName: true}}
	f.check = Check{Files: rep.Files, Chunks: rep.Chunks, Speed: speed(rep.Bytes, start)}
	for _, file := range c.Files() {
		f.named[file.Name] = true
	}
	md, err := c.Metadata(ctx)
	if err != nil {
		return nil, err
	}
	p.Watch.Begin("digest", p.model.bytes())
	digests, err := inspect.Digests(ctx, c, inspect.Select(md), &inspect.DigestOptions{Progress: p.Watch.Moved})
	if err != nil {
		return nil, err
	}
	f.digest = inspect.Combine(digests)
	return f, nil
}

// stepOf returns the step of a checkpoint, or -1 if it has none: the demo always
// records one.
func stepOf(c *cairn.Checkpoint) int64 {
	if s := c.Info().Step; s != nil {
		return *s
	}
	return -1
}

// leftovers counts the objects that the checkpoint does not name.
func (f *finding) leftovers(ctx context.Context, s blob.Store) (n int, bytes int64, err error) {
	for info, err := range s.List(ctx, "") {
		if err != nil {
			return 0, 0, err
		}
		if !f.named[info.Name] {
			n++
			bytes += info.Size
		}
	}
	return n, bytes, nil
}

// overwrite saves a complete checkpoint over the last one and looks at it.
func (p *play) overwrite(ctx context.Context) error {
	step := p.step + nextStep
	s, err := p.saver(ctx, step)
	if err != nil {
		return err
	}
	f, err := p.examine(ctx)
	if err != nil {
		return err
	}
	if f.saveID != s.SaveID || f.step != step {
		return fmt.Errorf("%w: after a complete save of %s the checkpoint is %s", ErrWrong, s.SaveID, f.saveID)
	}
	if n, bytes, err := f.leftovers(ctx, p.Store); err != nil || n > 0 {
		return fmt.Errorf("%w: after a complete save %d files of %d bytes are left that no record names: %w", ErrWrong, n, bytes, err)
	}
	p.rep.Overwrite, p.rep.Digest, p.step = s, f.digest, step
	p.Watch.End("overwrite", p.rep)
	return nil
}
