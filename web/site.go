// Package web serves the explorer: a page that shows checkpoints and runs, and the answers
// that the page asks for. It does not depend on formats: package inspect computes, and the
// caller passes a function that opens checkpoints. Site answers questions, for HTTP and for
// pictures without a browser, and Server is the HTTP in front of it. docs/web.md describes
// every request.
package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// Self is the id of the only checkpoint of a Site at the path of a checkpoint.
const Self = "."

// Place is a checkpoint that a Site can open.
type Place struct {
	// ID names the checkpoint in questions.
	ID string `json:"id"`
	// Label is the name for people.
	Label string `json:"label"`
	// Step is nil if it is unknown.
	Step *int64 `json:"step"`
	// Version changes if the checkpoint is replaced. It is empty as long as it is unknown.
	Version string `json:"version"`
	// Other is set for checkpoints that are not part of the path of the Site.
	Other bool `json:"other"`
}

// Checkpoint is an open checkpoint. *cairn.Checkpoint implements it. Its methods are safe for
// concurrent use.
type Checkpoint interface {
	inspect.Content
	inspect.Source
	Metadata(ctx context.Context) (*meta.Metadata, error)
	MissingFiles(ctx context.Context) ([]string, error)
	Close() error
}

// Opened is a checkpoint that Options.Open has opened.
type Opened struct {
	Checkpoint
	// Path is its address for people, without secrets.
	Path string
	// Version returns a text that changes when the checkpoint is replaced. It reads little.
	// The error wraps fs.ErrNotExist if the checkpoint was removed. Nil: the checkpoint does
	// not change.
	Version func(ctx context.Context) (string, error)
	// Stored is the checkpoint itself. Site only passes it to Drops.
	Stored storage.Checkpoint
	// Drops returns the names of another checkpoint that the recipe, through which this one
	// was opened, drops: the two cannot be compared by them. Nil: there is no recipe.
	Drops func(ctx context.Context, other *Opened, md *meta.Metadata) ([]string, error)
}

// Options describe a Site.
type Options struct {
	// Path is the path or URL of the checkpoint or run, for people.
	Path string
	// Checkpoints are the checkpoints that can be opened, apart from those of a run. If Path
	// is a checkpoint, it has the id Self.
	Checkpoints []Place
	// Run lists the run anew. Nil: Path is a checkpoint.
	Run func(ctx context.Context) (*run.Log, error)
	// WatchEvery is the least time between two looks at the run for pages that wait for new
	// checkpoints. Zero: 2 seconds. If a look takes long, more time is between them.
	WatchEvery time.Duration
	// Open opens the checkpoint with an id that is listed: in Checkpoints, or as the name
	// of a checkpoint of the run. If recipe is set, it is opened through the recipe.
	Open func(ctx context.Context, id string, recipe bool) (*Opened, error)
	// Cache is the folder in which statistics of checkpoints are kept. Empty: they are not
	// kept. Site makes it, for this user alone, if it does not exist.
	Cache string
	// Recipe is the name of the recipe. Empty: there is no recipe.
	Recipe string
	// Guess means that Open chooses a recipe by the names of the checkpoint if Recipe is empty.
	Guess bool
	// Version is the version of the program.
	Version string
	// Redact removes secrets from a text. Nil: there are no secrets.
	Redact func(text string) string
}

// The bounds of a Site.
const (
	maxOpen     = 8           // open checkpoints, unless more are in use
	maxChunks   = 4 << 20     // chunks of all open checkpoints, unless more are in use
	maxWorking  = 2           // expensive questions at the same time
	maxReading  = 4           // questions that read a little, at the same time
	maxAnswers  = 64          // answers that are kept
	maxKept     = 500_000     // rows of all answers that are kept
	cacheBytes  = 256 << 20   // of the folder for statistics
	freshFor    = time.Second // a checkpoint is not checked again so soon
	listedFor   = 2 * time.Second
	watchShare  = 20        // of the time, pages that wait spend one part with lists of the run
	maxStepRows = 1_000_000 // cells of an answer about steps
)

// Site answers questions about a checkpoint or a run. Its methods are safe for concurrent
// use.
type Site struct {
	opts     Options
	cache    *folder
	working  turns
	reading  turns
	mostRows int // maxStepRows; tests make it smaller
	answers  answers

	// ctx ends with Close. Checkpoints are opened in it, because several questions may wait
	// for one of them.
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	life   sync.Mutex
	closed bool // guarded by life

	mu      sync.Mutex
	open    []*handle       // guarded by mu; the most recently used last
	listing *lazy[*listing] // guarded by mu
	known   map[string]bool // ids that were listed; guarded by mu
	pace    time.Duration   // between lists for pages that wait; guarded by mu
}

// NewSite returns a Site. The caller must close it.
func NewSite(o Options) *Site {
	o.WatchEvery = max(o.WatchEvery, listedFor)
	s := &Site{opts: o, pace: o.WatchEvery, working: make(turns, maxWorking), reading: make(turns, maxReading), known: map[string]bool{}, mostRows: maxStepRows}
	s.ctx, s.stop = context.WithCancel(context.Background())
	for _, p := range o.Checkpoints {
		s.known[p.ID] = true
	}
	if o.Cache != "" {
		s.cache = &folder{dir: o.Cache, most: cacheBytes}
	}
	return s
}

// Close ends all work of the Site and closes its checkpoints. Questions must have ended, or
// end soon because their contexts have ended.
func (s *Site) Close() error {
	s.life.Lock()
	s.closed = true
	s.life.Unlock()
	s.stop()
	s.wg.Wait()
	s.mu.Lock()
	all := slices.Clone(s.open)
	s.mu.Unlock()
	var errs []error
	for _, h := range all {
		errs = append(errs, s.drop(h))
	}
	return errors.Join(errs...)
}

// Prepare begins to open the checkpoint of the Site, or to list its run, before it is asked
// for. The channel is closed when that is done. Questions return the errors.
func (s *Site) Prepare() (done <-chan struct{}) {
	end := make(chan struct{})
	started := s.goBackground(func() {
		defer close(end)
		if s.opts.Run != nil {
			_, _ = s.list(s.ctx, 0)
			return
		}
		h, err := s.acquire(s.ctx, Self, false, freshFor)
		if err != nil {
			return
		}
		defer s.release(h)
		var both sync.WaitGroup
		both.Go(func() { _, _ = h.summary(s.ctx) })
		both.Go(func() { _, _ = h.names(s.ctx, inspect.OnlyWeights) })
		both.Wait()
	})
	if !started {
		close(end)
	}
	return end
}

// goBackground runs fn in a goroutine that Close waits for. It returns false if the Site is
// closed.
func (s *Site) goBackground(fn func()) bool {
	s.life.Lock()
	defer s.life.Unlock()
	if !s.closed {
		s.wg.Go(fn)
	}
	return !s.closed
}

// listing is the list of the checkpoints of a run.
type listing struct {
	log   *run.Log
	state string // changes with the log
	at    time.Time
}

// list returns a list of the run that is not older than age.
func (s *Site) list(ctx context.Context, age time.Duration) (*run.Log, error) {
	v, err := s.listed(ctx, age)
	if err != nil {
		return nil, err
	}
	return v.log, nil
}

func (s *Site) listed(ctx context.Context, age time.Duration) (*listing, error) {
	s.mu.Lock()
	l := s.listing
	if l == nil || l.over() && (l.err != nil || time.Since(l.v.at) > age) {
		l = new(lazy[*listing])
		s.listing = l
	}
	s.mu.Unlock()
	return l.get(ctx, s.goBackground, func() (*listing, error) {
		began := time.Now()
		log, err := s.opts.Run(s.ctx)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(log)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range log.Checkpoints {
			s.known[log.Checkpoints[i].Name] = true
		}
		s.pace = max(s.opts.WatchEvery, watchShare*time.Since(began))
		return &listing{log, checksum(text)[:16], time.Now()}, nil
	})
}

// checkListed returns an error unless id is the id of a checkpoint of the Site. It is the
// only way from a text of a request to something that is opened.
func (s *Site) checkListed(ctx context.Context, id string) error {
	if slices.ContainsFunc(s.opts.Checkpoints, func(p Place) bool { return p.ID == id }) {
		return nil
	}
	if s.opts.Run != nil {
		for _, age := range []time.Duration{time.Hour, listedFor} { // a new list only if the old one lacks it
			log, err := s.list(ctx, age)
			if err != nil {
				return err
			}
			if slices.ContainsFunc(log.Checkpoints, func(c run.Logged) bool { return c.Name == id }) {
				return nil
			}
		}
		s.mu.Lock()
		known := s.known[id]
		s.mu.Unlock()
		if known {
			return removed(id)
		}
	}
	return &Error{Kind: KindNotFound, Message: "there is no checkpoint " + quote(id) + " here", Hint: "reload the page for the list of checkpoints"}
}

// place answers /api/place.
type place struct {
	Path        string  `json:"path"`
	Kind        string  `json:"kind"`
	Version     string  `json:"version"`
	Recipe      string  `json:"recipe"`
	Checkpoints []Place `json:"checkpoints"`
	// State changes with the answer of /api/run.
	State string `json:"state"`
}

// place lists the checkpoints. If watch is set, they may be from a while ago: a page asks again.
func (s *Site) place(ctx context.Context, watch bool) (*place, error) {
	age := listedFor
	if watch {
		age = s.watchAge()
	}
	out := &place{Path: s.opts.Path, Kind: "checkpoint", Version: s.opts.Version, Recipe: s.opts.Recipe, Checkpoints: []Place{}}

	if s.opts.Run != nil {
		out.Kind = "run"
		l, err := s.listed(ctx, age)
		if err != nil {
			return nil, err
		}
		out.State = l.state
		for i := range l.log.Checkpoints {
			if c := &l.log.Checkpoints[i]; c.Copies != "" { // it can be opened
				out.Checkpoints = append(out.Checkpoints, Place{ID: c.Name, Label: c.Name, Step: c.Step, Version: fmt.Sprint(c.SaveID, " ", c.Time.Unix())})
			}
		}
	}

	out.Checkpoints = append(out.Checkpoints, s.opts.Checkpoints...)
	for i := range out.Checkpoints {
		p := &out.Checkpoints[i]
		if p.Step != nil && p.Version != "" || !s.isOpen(p.ID) {
			continue
		}
		h, err := s.acquire(ctx, p.ID, false, age)
		if err != nil {
			continue // the next question about it says why
		}
		p.Step = cmp.Or(p.Step, h.opened.v.Info().Step)
		p.Version = cmp.Or(p.Version, h.versionNow())
		s.release(h)
	}
	return out, nil
}

// watchAge returns how old an answer for a page that waits for changes may be.
func (s *Site) watchAge() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pace
}

// isOpen reports whether a checkpoint was opened and is still open.
func (s *Site) isOpen(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.open, func(h *handle) bool { return h.key == (key{id: id}) && h.opened.over() && h.opened.err == nil })
}

// redact returns a text for people, without secrets.
func (s *Site) redact(text string) string {
	if s.opts.Redact == nil {
		return text
	}
	return s.opts.Redact(text)
}

// answerOf returns an error as an answer, without secrets.
func (s *Site) answerOf(err error) *Error {
	out := Error{Kind: KindInternal, Message: err.Error()}
	if e, ok := errors.AsType[*Error](err); ok {
		out.Kind, out.Hint = e.Kind, e.Hint
	} else if errors.Is(err, context.Canceled) && s.ctx.Err() != nil {
		out = *errClosed
	} else {
		for _, k := range kinds {
			if errors.Is(err, k.err) {
				out.Kind = k.kind
				break
			}
		}
	}
	if h, ok := errors.AsType[hinter](err); ok && out.Hint == "" {
		out.Hint = h.Hint()
	}
	if out.Kind == KindGone && out.Hint == "" {
		out.Hint = "reload the page to see what is there now"
	}
	out.Message, out.Hint = s.redact(strings.ToValidUTF8(out.Message, "�")), s.redact(out.Hint)
	return &out
}
