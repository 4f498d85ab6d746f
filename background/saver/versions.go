package saver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/run/versions"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// searchPause is the time between two looks for the version that takes the place of one that is gone.
const searchPause = 200 * time.Millisecond

// newest finds a version of a run: the one for which a trainer waits, or the next one that it tries.
func (s *trainings) newest(b *newestBody) error {
	if b.Search != nil {
		if err := b.Search.Check(); err != nil {
			return fmt.Errorf("%w: %w", ErrMessage, err)
		}
	}
	return s.tasks.begin(b.Load, nil, typeFound, func(ctx context.Context) (any, error) {
		w := run.Bounds{Options: &formats.Options{Base: b.Base}}
		var err error
		if b.Format != "" {
			w.Format, err = decodeFormat(b.Format, b.FormatOptions)
		}
		if err = errors.Join(err, baseAlone(b.Base, b.Format)); err != nil {
			return nil, err
		}
		r, err := s.runOf(ctx, b.Store)
		if err != nil {
			return nil, err
		}

		look, found := versions.In(r, w), &foundBody{Load: b.Load}
		if b.Search != nil {
			return found, b.search(ctx, look, found)
		}
		c, damaged, err := b.Known.New(ctx, look)
		found.add(c, damaged)
		return found, err
	})
}

// search goes on with a preparation, after the outcome of the last attempt.
func (b *newestBody) search(ctx context.Context, look versions.Look, found *foundBody) error {
	found.Known, found.Search = &b.Known, b.Search
	if b.Outcome != nil && b.Search.Now != nil && b.Search.Report(&b.Known, b.Outcome.err()) {
		found.Over = overFailed
		found.add(nil, b.Search.Tried)
		return nil
	}

	c, err := b.Search.Choose(ctx, &b.Known, look, searchPause)
	if over, ok := errors.AsType[*versions.Over](err); ok {
		why := newErrorBody(over.Err)
		found.Over, found.Why = over.Reason, &why
		err = nil
	}
	if c != nil {
		b.Search.Take(c)
	}
	found.add(c, b.Search.Tried)
	return err
}

// add adds a version, or nil, and problems.
func (f *foundBody) add(c *versions.Choice, problems []group.RemoteError) {
	if c != nil {
		f.Version = &versionBody{c.Version, string(c.Path)}
	}
	for _, p := range problems {
		f.Problems = append(f.Problems, p.Text)
	}
}
