package blobtest_test

import (
	"context"
	"errors"
	"iter"
	"path"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

// broken is a store of which some methods are replaced by bad ones.
type broken struct {
	blob.Store
	create func(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error)
	open   func(ctx context.Context, name string) (blob.Reader, error)
	stat   func(ctx context.Context, name string) (blob.Info, error)
	list   func(ctx context.Context, prefix string) iter.Seq2[blob.Info, error]
	remove func(ctx context.Context, name string) error
}

func (b broken) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if b.create != nil {
		return b.create(ctx, name, opts)
	}
	return b.Store.Create(ctx, name, opts)
}

func (b broken) Open(ctx context.Context, name string) (blob.Reader, error) {
	if b.open != nil {
		return b.open(ctx, name)
	}
	return b.Store.Open(ctx, name)
}

func (b broken) Stat(ctx context.Context, name string) (blob.Info, error) {
	if b.stat != nil {
		return b.stat(ctx, name)
	}
	return b.Store.Stat(ctx, name)
}

func (b broken) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	if b.list != nil {
		return b.list(ctx, prefix)
	}
	return b.Store.List(ctx, prefix)
}

func (b broken) Remove(ctx context.Context, name string) error {
	if b.remove != nil {
		return b.remove(ctx, name)
	}
	return b.Store.Remove(ctx, name)
}

// badWriter is a writer of which some methods are replaced.
type badWriter struct {
	blob.Writer
	write  func(ctx context.Context, p []byte, off int64) error
	commit func(ctx context.Context) (blob.Info, error)
	abort  func() error
}

func (w badWriter) WriteAt(ctx context.Context, p []byte, off int64) error {
	if w.write != nil {
		return w.write(ctx, p, off)
	}
	return w.Writer.WriteAt(ctx, p, off)
}

func (w badWriter) Commit(ctx context.Context) (blob.Info, error) {
	if w.commit != nil {
		return w.commit(ctx)
	}
	return w.Writer.Commit(ctx)
}

func (w badWriter) Abort() error {
	if w.abort != nil {
		return w.abort()
	}
	return w.Writer.Abort()
}

// badReader is a reader with another ReadAt.
type badReader struct {
	blob.Reader
	read func(ctx context.Context, p []byte, off int64) error
}

func (r badReader) ReadAt(ctx context.Context, p []byte, off int64) error { return r.read(ctx, p, off) }

// withWriter returns a store whose writers are changed.
func withWriter(change func(s blob.Store, name string, opts blob.CreateOptions, w blob.Writer) badWriter) blob.Store {
	s := new(mem.Store)
	return broken{Store: s, create: func(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
		w, err := s.Create(ctx, name, opts)
		if err != nil {
			return nil, err
		}
		if opts == nil {
			opts = new(blob.CreateOptions)
		}
		return change(s, name, *opts, w), nil
	}}
}

// withReader returns a store whose readers are changed.
func withReader(change func(s blob.Store, name string, r blob.Reader) badReader) blob.Store {
	s := new(mem.Store)
	return broken{Store: s, open: func(ctx context.Context, name string) (blob.Reader, error) {
		r, err := s.Open(ctx, name)
		if err != nil {
			return nil, err
		}
		return change(s, name, r), nil
	}}
}

// withList returns a store that lists something else.
func withList(change func([]blob.Info) []blob.Info) blob.Store {
	s := new(mem.Store)
	return broken{Store: s, list: func(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
		return func(yield func(blob.Info, error) bool) {
			var infos []blob.Info
			for info, err := range s.List(ctx, prefix) {
				if err != nil {
					yield(info, err)
					return
				}
				infos = append(infos, info)
			}
			for _, info := range change(infos) {
				if !yield(info, nil) {
					return
				}
			}
		}
	}}
}

// mutants are stores that break the claim they are listed under.
var mutants = map[string]func() blob.Store{
	"ObjectInvisibleUntilCommit": func() blob.Store {
		s := new(mem.Store)
		return broken{Store: s, create: func(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
			blob.WriteAll(ctx, s, name, nil, nil)
			return s.Create(ctx, name, opts)
		}}
	},
	"AbortLeavesNothing": func() blob.Store {
		return withWriter(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) badWriter {
			return badWriter{Writer: w, abort: func() error { _, err := w.Commit(context.Background()); return err }}
		})
	},
	"WriterFailsAfterCommit": func() blob.Store {
		return withWriter(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) badWriter {
			once := sync.OnceValues(func() (blob.Info, error) { return w.Commit(context.Background()) })
			return badWriter{Writer: w, commit: func(context.Context) (blob.Info, error) { return once() }}
		})
	},
	"WriteKeepsNoMemory": func() blob.Store {
		return withWriter(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) badWriter {
			var kept []byte
			return badWriter{Writer: w,
				write: func(_ context.Context, p []byte, _ int64) error { kept = p; return nil },
				commit: func(ctx context.Context) (blob.Info, error) {
					w.WriteAt(ctx, kept, 0)
					return w.Commit(ctx)
				},
			}
		})
	},
	"IfAbsent": func() blob.Store {
		s := new(mem.Store)
		return broken{Store: s, create: func(ctx context.Context, name string, _ *blob.CreateOptions) (blob.Writer, error) {
			return s.Create(ctx, name, nil)
		}}
	},
	"OneOfManyIfAbsentWins": func() blob.Store {
		return withWriter(func(_ blob.Store, _ string, opts blob.CreateOptions, w blob.Writer) badWriter {
			return badWriter{Writer: w, commit: func(ctx context.Context) (blob.Info, error) {
				info, err := w.Commit(ctx)
				if opts.IfAbsent {
					err = nil // two winners
				}
				return info, err
			}}
		})
	},
	"OverlapsRefused": func() blob.Store {
		return withWriter(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) badWriter {
			return badWriter{Writer: w, write: func(ctx context.Context, p []byte, off int64) error {
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
		return broken{Store: s, create: func(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
			return s.Create(ctx, name, &blob.CreateOptions{IfAbsent: opts != nil && opts.IfAbsent})
		}}
	},
	"BeyondTheEnd": func() blob.Store {
		return withReader(func(_ blob.Store, _ string, r blob.Reader) badReader {
			return badReader{r, func(ctx context.Context, p []byte, off int64) error {
				n := max(0, min(int64(len(p)), r.Size()-off))
				return r.ReadAt(ctx, p[:n], max(0, min(off, r.Size())))
			}}
		})
	},
	"ReaderAcrossReplacement": func() blob.Store {
		return withReader(func(s blob.Store, name string, r blob.Reader) badReader {
			return badReader{r, func(ctx context.Context, p []byte, off int64) error {
				now, err := s.Open(ctx, name)
				if err != nil {
					return err
				}
				return now.ReadAt(ctx, p, off)
			}}
		})
	},
	"ListInOrderOfNames": func() blob.Store {
		return withList(func(infos []blob.Info) []blob.Info { slices.Reverse(infos); return infos })
	},
	"ListManyAndBreakEarly": func() blob.Store {
		return withList(func(infos []blob.Info) []blob.Info { return infos[:min(len(infos), 1000)] })
	},
	"ListByPrefix": func() blob.Store {
		s := new(mem.Store)
		return broken{Store: s, list: func(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
			dir, _ := path.Split(prefix)
			return s.List(ctx, dir)
		}}
	},
	"RemoveIsIdempotent": func() blob.Store {
		s := new(mem.Store)
		return broken{Store: s, remove: func(ctx context.Context, name string) error {
			if _, err := s.Stat(ctx, name); err != nil {
				return err
			}
			return s.Remove(ctx, name)
		}}
	},
	"BadNamesRefused": func() blob.Store {
		s := new(mem.Store)
		return broken{Store: s, stat: func(ctx context.Context, name string) (blob.Info, error) {
			return s.Stat(ctx, path.Clean("x/" + name)[2:])
		}}
	},
	"MissingObject": func() blob.Store {
		s := new(mem.Store)
		return broken{Store: s, stat: func(ctx context.Context, name string) (blob.Info, error) {
			info, err := s.Stat(ctx, name)
			return info, errors.Unwrap(err) // no longer says what it is about
		}}
	},
	"EndedContextOnStore": func() blob.Store {
		s := new(mem.Store)
		return broken{Store: s, remove: func(ctx context.Context, name string) error {
			return s.Remove(context.WithoutCancel(ctx), name)
		}}
	},
	"EndedContextOnCommit": func() blob.Store {
		return withWriter(func(_ blob.Store, _ string, _ blob.CreateOptions, w blob.Writer) badWriter {
			return badWriter{Writer: w, commit: func(ctx context.Context) (blob.Info, error) {
				return w.Commit(context.WithoutCancel(ctx))
			}}
		})
	},
}
