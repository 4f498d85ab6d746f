package web

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// key identifies an open checkpoint of a Site.
type key struct {
	id     string
	recipe bool
}

// handle is a checkpoint that questions share while it is open. It takes no lock of a
// reader: a page that stays open must not keep 'cairn prune' from removing a checkpoint. If
// that happens, check reports it.
type handle struct {
	key    key
	site   *Site
	opened lazy[*Opened]
	md     lazy[*meta.Metadata]
	role   lazy[[]inspect.Role]
	tied   lazy[map[string]string]
	named  map[inspect.Choice]*lazy[*names]
	sum    lazy[*inspect.Summary]

	// Guarded by Site.mu:
	users  int
	chunks int
	gone   bool // it is closed when no question uses it

	mu      sync.Mutex
	version string    // guarded by mu
	checked time.Time // guarded by mu
}

// acquire returns the open checkpoint with an id, which it has checked at most age ago. If the
// checkpoint was replaced, acquire opens it again, once. The caller must release it.
func (s *Site) acquire(ctx context.Context, id string, recipe bool, age time.Duration) (*handle, error) {
	h, err := s.acquireOnce(ctx, id, recipe, age)
	if _, ok := errors.AsType[*replacedError](err); ok {
		return s.acquireOnce(ctx, id, recipe, age)
	}
	return h, err
}

func (s *Site) acquireOnce(ctx context.Context, id string, recipe bool, age time.Duration) (*handle, error) {
	if recipe && s.opts.Recipe == "" && !s.opts.Guess {
		return nil, badRequest("there is no recipe", "give one on the command line: 'cairn web --recipe auto PATH'")
	}
	if err := s.checkListed(ctx, id); err != nil {
		return nil, err
	}
	h := s.take(key{id, recipe})
	_, err := h.opened.get(ctx, h.start, func() (*Opened, error) { return h.openNow(s.ctx) })
	if err == nil {
		err = h.check(ctx, age)
	}
	if err != nil {
		if ctx.Err() == nil {
			_ = s.drop(h) // the next question opens it again
		}
		s.release(h)
		return nil, err
	}
	return h, nil
}

// take returns the handle for a key, for one more question.
func (s *Site) take(k key) *handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.open, func(h *handle) bool { return h.key == k })
	var h *handle
	if i < 0 {
		h = &handle{key: k, site: s, named: newNamed()}
	} else {
		h = s.open[i]
		s.open = slices.Delete(s.open, i, i+1)
	}
	h.users++
	s.open = append(s.open, h)
	s.trim()
	return h
}

// trim closes the checkpoints beyond the bounds that no question uses, the least recently
// used first. The caller holds mu.
func (s *Site) trim() {
	count, chunks := len(s.open), 0
	for _, h := range s.open {
		chunks += h.chunks
	}
	s.open = slices.DeleteFunc(s.open, func(h *handle) bool {
		if h.users > 0 || count <= maxOpen && chunks <= maxChunks {
			return false
		}
		count, chunks = count-1, chunks-h.chunks
		h.gone = true
		_ = h.close() // nothing was written
		return true
	})
}

// drop makes the Site forget an open checkpoint, and closes it when no question uses it.
func (s *Site) drop(h *handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.gone {
		return nil
	}
	h.gone = true
	s.open = slices.DeleteFunc(s.open, func(o *handle) bool { return o == h })
	if h.users > 0 {
		return nil
	}
	return h.close()
}

// release ends the use of a checkpoint by a question.
func (s *Site) release(h *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.users--; h.users > 0 {
		return
	}
	if h.gone {
		_ = h.close() // nothing was written
		return
	}
	s.trim()
}

// close closes the checkpoint if it was opened. The checkpoint must not be in use.
func (h *handle) close() error {
	if !h.opened.over() || h.opened.err != nil {
		return nil
	}
	return h.opened.v.Close()
}

// start runs fn in a goroutine that uses the checkpoint. It returns false if the Site is
// closed.
func (h *handle) start(fn func()) bool {
	s := h.site
	s.mu.Lock()
	h.users++
	s.mu.Unlock()
	started := s.goBackground(func() {
		defer s.release(h)
		fn()
	})
	if !started {
		s.release(h)
	}
	return started
}

// openNow opens the checkpoint.
func (h *handle) openNow(ctx context.Context) (*Opened, error) {
	o, err := h.site.opts.Open(ctx, h.key.id, h.key.recipe)
	if err != nil {
		return nil, h.site.lost(h.key.id, err)
	}
	if o.Version != nil {
		v, err := o.Version(ctx)
		if err != nil {
			return nil, errors.Join(h.site.lost(h.key.id, err), o.Close())
		}
		h.mu.Lock()
		h.version, h.checked = v, time.Now()
		h.mu.Unlock()
	}
	return o, nil
}

// lost returns err, or the error of a checkpoint that was removed if it was listed before.
func (s *Site) lost(id string, err error) error {
	s.mu.Lock()
	known := s.known[id]
	s.mu.Unlock()
	if known && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrNotFound)) {
		return removed(s.shown(id))
	}
	return err
}

// check returns an error, and makes the Site forget the checkpoint, if it was replaced or
// removed since it was opened. It does not look again after less than age.
func (h *handle) check(ctx context.Context, age time.Duration) error {
	version := h.opened.v.Version
	if version == nil {
		return nil
	}
	h.mu.Lock()
	fresh := time.Since(h.checked) < age
	was := h.version
	h.mu.Unlock()
	if fresh {
		return nil
	}
	now, err := version(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && now != was: // another save may use other files
		_ = h.site.drop(h) // nothing was written
		return &Error{Kind: KindGone, Hint: "reload the page to see the new one", Err: &replacedError{h}}
	case err != nil:
		return err
	}
	h.mu.Lock()
	h.checked = time.Now()
	h.mu.Unlock()
	return nil
}

// replacedError reports that another save replaced a checkpoint that is open, or that it was
// removed: to open it again tells.
type replacedError struct{ h *handle }

func (e *replacedError) Error() string {
	return "the checkpoint " + quote(e.h.shown()) + " was replaced by another save meanwhile"
}

// versionNow returns the version of the checkpoint when it was opened.
func (h *handle) versionNow() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}

// shown returns the name of the checkpoint for messages.
func (h *handle) shown() string { return h.site.shown(h.key.id) }

// shown returns the name of a checkpoint for messages.
func (s *Site) shown(id string) string {
	if id == Self {
		return s.opts.Path
	}
	return s.label(id)
}

// label returns the name of a checkpoint for people.
func (s *Site) label(id string) string {
	for _, p := range s.opts.Checkpoints {
		if p.ID == id {
			return p.Label
		}
	}
	return id
}

// explain returns the error of a question about the checkpoint. If the checkpoint is gone,
// that is the reason.
func (h *handle) explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, ours := errors.AsType[*Error](err); ours {
		return err
	}
	if gone := h.check(ctx, 0); gone != nil {
		if e, ok := errors.AsType[*Error](gone); ok && e.Kind == KindGone {
			return gone
		}
	}
	return err
}

// checkpoint returns the checkpoint, which acquire has opened.
func (h *handle) checkpoint() *Opened { return h.opened.v }

// metadata returns the description of all names.
func (h *handle) metadata(ctx context.Context) (*meta.Metadata, error) {
	return h.md.get(ctx, h.start, func() (*meta.Metadata, error) {
		md, err := h.opened.v.Metadata(h.site.ctx)
		if err != nil {
			return nil, err
		}
		n := 0
		for i := range md.Entries {
			if t := md.Entries[i].Tensor; t != nil {
				n += len(t.Chunks)
			}
		}
		h.site.mu.Lock()
		defer h.site.mu.Unlock()
		h.chunks = n + len(md.Entries)
		return md, nil
	})
}

// summary describes the checkpoint as a whole.
func (h *handle) summary(ctx context.Context) (*inspect.Summary, error) {
	return h.sum.get(ctx, h.start, func() (*inspect.Summary, error) {
		ctx, c := h.site.ctx, h.opened.v
		md, err := h.metadata(ctx)
		if err != nil {
			return nil, err
		}
		s := inspect.Summarize(c, md)
		s.Path = c.Path
		if s.Step == nil {
			s.Step = inspect.StateStep(ctx, md, c.ReadBytes)
		}
		lost, err := c.MissingFiles(ctx)
		if err != nil {
			return nil, err
		}
		s.Lose(md, lost)
		return s, nil
	})
}

// entry returns the description of a name.
func (h *handle) entry(ctx context.Context, name string) (*meta.Metadata, *meta.Entry, error) {
	md, err := h.metadata(ctx)
	if err != nil {
		return nil, nil, err
	}
	if e, ok := md.Find(name); ok {
		return md, e, nil
	}
	if m, ok := md.FindMissing(name); ok {
		return nil, nil, m.Err
	}
	return nil, nil, &Error{Kind: KindNotFound, Message: "the checkpoint has no name " + quote(name), Hint: "choose one of the list of names"}
}

// tensor is entry for a name that must be a tensor.
func (h *handle) tensor(ctx context.Context, name string) (*meta.Metadata, *meta.Entry, error) {
	md, e, err := h.entry(ctx, name)
	if err == nil && e.Tensor == nil {
		return nil, nil, badRequest(quote(name)+" is an object, not a tensor", "only tensors have statistics and heat maps")
	}
	return md, e, err
}

// identity returns a text that identifies the content of the checkpoint.
func (h *handle) identity() string {
	return keyOf(h.key.id, h.key.recipe, h.opened.v.Info().SaveID, h.versionNow())
}
