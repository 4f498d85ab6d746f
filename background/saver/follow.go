package saver

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// segmentsOf returns the cache for the files of versions that the trainer follows. It keeps
// the largest number of bytes that was asked for. Nil: zero bytes are kept.
func (s *server) segmentsOf(bytes int64) *delta.Cache {
	if bytes == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.segments == nil {
		s.segments = delta.NewCache(bytes)
	}
	if bytes > s.kept {
		s.kept = bytes
		s.segments.SetLimit(bytes)
	}
	return s.segments
}

// newest finds the newest checkpoint of a run.
func (s *server) newest(b *newestBody) error {
	return s.begin(b.Load, nil, typeFound, func(ctx context.Context) (any, error) {
		w := run.Bounds{After: b.After, Before: b.Before, Options: &formats.Options{Base: b.Base}}
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
		f, err := storage.Settle(func() (*run.Found, error) { return r.Newest(ctx, w) })
		if err != nil {
			return nil, err
		}
		_, name := blob.SplitAddress(f.Path)
		out := foundBody{Load: b.Load, Name: name, Store: f.Path, Step: *f.Step, SaveID: f.SaveID}
		for _, d := range f.Damaged {
			out.Damaged = append(out.Damaged, damagedBody{d.Name, d.Step, group.NewRemoteError(d.Err).Text})
		}
		return out, nil
	})
}

// source opens the store of a load. Versions of a run that the trainer follows share the
// store of the run, because there are many of them, and a client for each would stay.
func (s *server) source(address string) (blob.Store, error) {
	if blob.Scheme(address) != "file" {
		above, name := blob.SplitAddress(address)
		s.mu.Lock()
		r := s.runs[above]
		s.mu.Unlock()
		if r != nil {
			return r.Local.StoreOf(name)
		}
	}
	return s.store(address)
}

// runOf opens a run, or returns the one that was opened before: trainers ask again and again.
func (s *server) runOf(ctx context.Context, address string) (*run.Run, error) {
	s.mu.Lock()
	r := s.runs[address]
	s.mu.Unlock()
	if r != nil {
		return r, nil
	}
	r, err := run.Open(ctx, address, "")
	if errors.Is(err, blob.ErrAddress) {
		err = fmt.Errorf("%w: %w", storage.ErrOptions, err)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[address] = r
	return r, nil
}
