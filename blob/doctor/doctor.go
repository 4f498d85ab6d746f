// Package doctor checks the properties of a store that saves and loads rely on, and explains
// the consequences of a missing one. It works on the storage of a user: it needs no empty
// store, removes all its objects, and does not depend on the kind of store. It tests the
// contract of blob.Store.
package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// The results of a check.
const (
	OK      = "ok"
	Warning = "warning" // saves are safe, but something is not as it should be
	Failed  = "failed"  // saves are not safe, or not possible
	Skipped = "skipped" // it does not apply, or an earlier failure prevents it
)

// Check is the result of one check.
type Check struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	// Text is the finding. Follows is the consequence for saves and loads, unless the result is
	// OK.
	Text    string  `json:"text"`
	Follows string  `json:"follows,omitempty"`
	Seconds float64 `json:"seconds"`
}

// Rate is how fast objects were written and read by a number of streams.
type Rate struct {
	Streams int     `json:"streams"`
	Write   float64 `json:"write_bytes_per_second"`
	Read    float64 `json:"read_bytes_per_second"`
}

// Report has the results of an examination.
type Report struct {
	Store string `json:"path"`
	// Safe means that no check has failed.
	Safe bool `json:"safe"`
	// Full means that the examination has ended early, because there is no space left.
	Full   bool          `json:"full,omitempty"`
	Checks []Check       `json:"checks"`
	Rates  []Rate        `json:"rates"`
	Used   *blob.Traffic `json:"traffic,omitempty"`
}

// Options change the examination. Nil means the defaults.
type Options struct {
	// Folder is the folder of the store in the file system. Then the file system is
	// examined too. Empty: the store is not in one.
	Folder string
	// Quick leaves the rates out.
	Quick bool
	// Time is how long each rate is measured. Zero: 2 s.
	Time time.Duration
	// Done, if not nil, is called with each check when it has ended.
	Done func(Check)
}

// note is an error that is a result other than Failed.
type note struct{ result, text string }

func (n *note) Error() string { return n.text }

func warn(format string, args ...any) error { return &note{Warning, fmt.Sprintf(format, args...)} }
func skip(format string, args ...any) error { return &note{Skipped, fmt.Sprintf(format, args...)} }

// check is something to try.
type check struct {
	name    string
	follows string
	// run returns the finding. An error is a note or means that the check has failed.
	run func(ctx context.Context, e *exam) (string, error)
}

// exam is the examination of a store.
type exam struct {
	opts Options
	root blob.Store
	s    *noting // a folder for this examination
	rep  *Report
}

// noting is a store that notes the names of its objects, so that they can be removed by a
// user who may not list them.
type noting struct {
	blob.Store
	mu    sync.Mutex
	names map[string]bool // guarded by mu
}

func (s *noting) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	s.mu.Lock()
	s.names[name] = true
	s.mu.Unlock()
	return s.Store.Create(ctx, name, o)
}

// Unwrap implements [blob.Wrapper].
func (s *noting) Unwrap() blob.Store { return s.Store }

// Examine tries out a store, in a folder of its own below its root, which it removes at the
// end, also if ctx ends. The error means that the examination could not be completed; faults
// of the store are in the report.
func Examine(ctx context.Context, s blob.Store, opts *Options) (*Report, error) {
	e := &exam{root: s, rep: &Report{Store: s.String(), Safe: true, Checks: []Check{}, Rates: []Rate{}}}
	if opts != nil {
		e.opts = *opts
	}
	if e.opts.Time <= 0 {
		e.opts.Time = 2 * time.Second
	}

	sub, err := blob.NewSub(s, "cairn-doctor-"+strings.ToLower(rand.Text()[:10]))
	if err != nil {
		return nil, err
	}

	e.s = &noting{Store: sub, names: map[string]bool{}}
	if e.run(ctx, creating) || ctx.Err() != nil || e.rep.Full {
		e.all(ctx)
		e.run(context.WithoutCancel(ctx), cleaning)
	} else {
		_, _ = cleaning.run(ctx, e) // its objects are probably gone already
	}

	if m, ok := blob.As[blob.Meter](s); ok {
		t := m.Traffic()
		e.rep.Used = &t
	}

	if ctx.Err() != nil {
		return e.rep, context.Cause(ctx)
	}
	return e.rep, nil
}

// all makes all checks but the first and the last one.
func (e *exam) all(ctx context.Context) {
	lists := [][]check{contract, {clock}}
	if e.opts.Folder != "" {
		lists = append(lists, folder)
	}
	if !e.opts.Quick {
		lists = append(lists, []check{rates})
	}

	for _, l := range lists {
		for _, c := range l {
			if ctx.Err() != nil || e.rep.Full {
				return
			}
			e.run(ctx, c)
		}
	}
}

// run makes a check and notes its result. It returns false if the check has failed.
func (e *exam) run(ctx context.Context, c check) bool {
	begin := time.Now()
	text, err := c.run(ctx, e)
	r := Check{Name: c.name, Result: OK, Text: text}
	n, isNote := errors.AsType[*note](err)
	switch {
	case ctx.Err() != nil:
		return false // an interrupted check has no result
	case isNote:
		r.Result, r.Text = n.result, n.text
	case blob.IsFull(err):
		r.Result, r.Text = Failed, "there is no space left: "+err.Error()
		e.rep.Safe, e.rep.Full = false, true
	case err != nil:
		r.Result, r.Text = Failed, err.Error()
		if errors.Is(err, fs.ErrPermission) {
			r.Text = "it is not allowed: " + r.Text
		}
		e.rep.Safe = false
	}

	if r.Result == Warning || r.Result == Failed {
		r.Follows = c.follows
	}
	if blob.IsFull(err) { // a full disk is no result of this check
		r.Follows = "Saves fail until there is space or a larger quota. Checkpoints that are complete stay as they are, and loads work. 'cairn clean' removes what saves have left."
	}

	r.Seconds = time.Since(begin).Seconds()
	e.rep.Checks = append(e.rep.Checks, r)
	if e.opts.Done != nil {
		e.opts.Done(r)
	}
	return r.Result != Failed
}

// dir makes a folder for files of a check and calls fn with it.
func (e *exam) dir(fn func(dir string) (string, error)) (string, error) {
	dir, err := os.MkdirTemp(e.opts.Folder, "cairn-doctor-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	return fn(dir)
}

// rate measures a number of streams, each of which writes and then reads an object again
// and again.
func (e *exam) rate(ctx context.Context, streams int, data []byte) (Rate, error) {
	name := func(i int) string { return fmt.Sprint("rate-", i) }
	write, err := e.measure(ctx, streams, func(ctx context.Context, i int) error {
		_, err := blob.WriteAll(ctx, e.s, name(i), data, &blob.CreateOptions{Piece: partBytes})
		return err
	})
	if err != nil {
		return Rate{}, err
	}
	read, err := e.measure(ctx, streams, func(ctx context.Context, i int) error {
		r, err := blob.OpenKnown(ctx, e.s, blob.Info{Name: name(i), Size: partBytes})
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = blob.ReadLarge(ctx, r, blob.AlignedBytes(int(partBytes+2*blob.Align)), 0, partBytes)
		return err
	})
	return Rate{Streams: streams, Write: write, Read: read}, err
}

// measure calls fn in a number of goroutines until the time is over, and returns the
// bytes per second if each call moves partBytes.
func (e *exam) measure(ctx context.Context, streams int, fn func(ctx context.Context, i int) error) (float64, error) {
	begin := time.Now()
	var calls atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, streams)
	for i := range streams {
		wg.Go(func() {
			for errs[i] == nil {
				if errs[i] = fn(ctx, i); errs[i] == nil {
					calls.Add(1)
				}
				if time.Since(begin) >= e.opts.Time {
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(calls.Load()*partBytes) / time.Since(begin).Seconds(), errors.Join(errs...)
}

// cleanTime bounds the removal of the objects that the checks have made.
const cleanTime = time.Minute

// cleaning removes the objects that the checks have made.
var cleaning = check{
	name:    "clean up",
	follows: "Objects of this examination stay in the store. Saves cannot remove what they replace either; remove the objects by hand.",
	run: func(ctx context.Context, e *exam) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, cleanTime)
		defer cancel()
		var errs []error
		for name := range e.s.names {
			errs = append(errs, e.s.Remove(ctx, name))
		}
		for info, err := range e.s.List(ctx, "") {
			if err == nil {
				err = fmt.Errorf("%s stays", info.Name)
			}
			if !errors.Is(err, fs.ErrPermission) { // the check of lists reports that
				errs = append(errs, err)
			}
		}
		if w, ok := blob.As[blob.Sweeper](e.s); ok {
			if _, err := w.SweepTemp(ctx, "", 0); err != nil && !errors.Is(err, fs.ErrPermission) {
				errs = append(errs, err) // the check of parts reports a missing permission
			}
		}
		return "nothing is left behind", errors.Join(errs...)
	},
}
