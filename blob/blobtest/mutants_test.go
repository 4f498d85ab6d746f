package blobtest_test

import (
	"context"
	"errors"
	"iter"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

// mutants are stores that break the claim they are listed under.
var mutants = map[string]func() blob.Store{
	"ObjectInvisibleUntilCommit": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoCreate: func(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
			blob.WriteAll(ctx, s, name, nil, nil)
			return s.Create(ctx, name, opts)
		}}
	},
	"AbortLeavesNothing": func() blob.Store {
		return blobtest.BrokenWriters(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) *blobtest.BrokenWriter {
			return &blobtest.BrokenWriter{Writer: w, DoAbort: func() error { _, err := w.Commit(context.Background()); return err }}
		})
	},
	"WriterFailsAfterCommit": func() blob.Store {
		return blobtest.BrokenWriters(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) *blobtest.BrokenWriter {
			once := sync.OnceValues(func() (blob.Info, error) { return w.Commit(context.Background()) })
			return &blobtest.BrokenWriter{Writer: w, DoCommit: func(context.Context) (blob.Info, error) { return once() }}
		})
	},
	"WriteKeepsNoMemory": func() blob.Store {
		return blobtest.BrokenWriters(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) *blobtest.BrokenWriter {
			var kept []byte
			return &blobtest.BrokenWriter{Writer: w,
				DoWrite: func(_ context.Context, p []byte, _ int64) error { kept = p; return nil },
				DoCommit: func(ctx context.Context) (blob.Info, error) {
					w.WriteAt(ctx, kept, 0)
					return w.Commit(ctx)
				},
			}
		})
	},
	"IfAbsent": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoCreate: func(ctx context.Context, name string, _ *blob.CreateOptions) (blob.Writer, error) {
			return s.Create(ctx, name, nil)
		}}
	},
	"OneOfManyIfAbsentWins": func() blob.Store {
		return blobtest.BrokenWriters(func(_ blob.Store, _ string, opts blob.CreateOptions, w blob.Writer) *blobtest.BrokenWriter {
			return &blobtest.BrokenWriter{Writer: w, DoCommit: func(ctx context.Context) (blob.Info, error) {
				info, err := w.Commit(ctx)
				if opts.IfAbsent {
					err = nil // two winners
				}
				return info, err
			}}
		})
	},
	"OverlapsRefused": func() blob.Store {
		return blobtest.BrokenWriters(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) *blobtest.BrokenWriter {
			return &blobtest.BrokenWriter{Writer: w, DoWrite: func(ctx context.Context, p []byte, off int64) error {
				err := w.WriteAt(ctx, p, off)
				if errors.Is(err, blob.ErrRange) {
					return nil
				}
				return err
			}}
		})
	},
	"SizeIsKept": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoCreate: func(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
			return s.Create(ctx, name, &blob.CreateOptions{IfAbsent: opts != nil && opts.IfAbsent})
		}}
	},
	"BeyondTheEnd": func() blob.Store {
		return blobtest.BrokenReaders(func(_ blob.Store, _ string, r blob.Reader) *blobtest.BrokenReader {
			return &blobtest.BrokenReader{r, func(ctx context.Context, p []byte, off int64) error {
				n := max(0, min(int64(len(p)), r.Size()-off))
				return r.ReadAt(ctx, p[:n], max(0, min(off, r.Size())))
			}}
		})
	},
	"ReaderAcrossReplacement": func() blob.Store {
		return blobtest.BrokenReaders(func(s blob.Store, name string, r blob.Reader) *blobtest.BrokenReader {
			return &blobtest.BrokenReader{r, func(ctx context.Context, p []byte, off int64) error {
				now, err := s.Open(ctx, name)
				if err != nil {
					return err
				}
				return now.ReadAt(ctx, p, off)
			}}
		})
	},
	"ListInOrderOfNames": func() blob.Store {
		return blobtest.BrokenList(func(infos []blob.Info) []blob.Info { slices.Reverse(infos); return infos })
	},
	"ListManyAndBreakEarly": func() blob.Store {
		return blobtest.BrokenList(func(infos []blob.Info) []blob.Info { return infos[:min(len(infos), 1000)] })
	},
	"ListByPrefix": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoList: func(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
			dir, _ := path.Split(prefix)
			return s.List(ctx, dir)
		}}
	},
	"RemoveIsIdempotent": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoRemove: func(ctx context.Context, name string) error {
			if _, err := s.Stat(ctx, name); err != nil {
				return err
			}
			return s.Remove(ctx, name)
		}}
	},
	"RemoveVersion": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoRemoveVersion: func(ctx context.Context, name, _ string) error { return s.Remove(ctx, name) }}
	},
	"OneOfRemovalAndReplacementWins": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoRemoveVersion: func(ctx context.Context, name, version string) error {
			for range 10_000 { // until the object is replaced
				if info, err := s.Stat(ctx, name); err != nil || info.Version != version {
					break
				}
				time.Sleep(time.Millisecond)
			}
			return s.Remove(ctx, name) // two winners
		}}
	},
	"BadNamesRefused": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoStat: func(ctx context.Context, name string) (blob.Info, error) {
			return s.Stat(ctx, path.Clean("x/" + name)[2:])
		}}
	},
	"MissingObject": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoStat: func(ctx context.Context, name string) (blob.Info, error) {
			info, err := s.Stat(ctx, name)
			return info, errors.Unwrap(err) // without operation and name
		}}
	},
	"EndedContextOnStore": func() blob.Store {
		s := new(mem.Store)
		return &blobtest.Broken{Store: s, DoRemove: func(ctx context.Context, name string) error {
			return s.Remove(context.WithoutCancel(ctx), name)
		}}
	},
	"EndedContextOnCommit": func() blob.Store {
		return blobtest.BrokenWriters(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) *blobtest.BrokenWriter {
			return &blobtest.BrokenWriter{Writer: w, DoCommit: func(ctx context.Context) (blob.Info, error) {
				return w.Commit(context.WithoutCancel(ctx))
			}}
		})
	},
}
