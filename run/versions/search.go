package versions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// attempts is how many versions a search tries. One may be removed while it is read, if the trainer
// keeps few.
const attempts = 16

// Search is one preparation: the search for a version that can be loaded. The zero value searches for the
// newest one. Choose, Take and Report are called in turn:
//
//	       ┌────────────── Gone, Damaged ◄─────────────┐
//	       ▼                                           │
//	Choose: a version ──► Take ──► the caller loads ──► Report ──► Fine, Failed: over
//	       │
//	       └──► none, gone, damaged: an Over
//
// If several ranks follow together, one of them calls Choose, and all of them Take and Report. If a version
// is damaged, Choose returns it a second time, and the caller loads it without bytes that it kept.
type Search struct {
	// Step is the version that is searched for. Nil: the newest one that can be loaded and is not older
	// than Known.Last.
	Step *int64 `json:"step,omitempty"`
	// Now is the version that is being loaded, and Again that this is the second time.
	Now   *Choice `json:"now,omitempty"`
	Again bool    `json:"again,omitempty"`
	// Tried has the errors so far: of attempts, and of newer versions that cannot be opened.
	Tried []group.RemoteError `json:"tried,omitempty"`
	// Err is the error of the first damaged version or, if Damaged is not set, of the first attempt.
	Err     *group.RemoteError `json:"error,omitempty"`
	Damaged bool               `json:"damaged,omitempty"`

	Looks int `json:"looks,omitempty"` // how often Choose has looked for a version
	Gone  int `json:"gone,omitempty"`  // how often the version was replaced or removed
}

// Check returns an error for a search that came from another process and that no calls can have made.
func (s *Search) Check() error {
	switch {
	case s.Looks < 0, s.Gone < 0:
		return errors.New("a search with negative counts")
	case s.Again && s.Now == nil:
		return errors.New("a search that loads no version again")
	case s.Err == nil && (s.Damaged || s.Gone > 0 || s.Looks >= attempts):
		return errors.New("a search without the error of its first attempt")
	}
	return nil
}

// The reasons of an Over.
const (
	None    = "none"    // the run has no such version
	Damaged = "damaged" // the version, or each one that could be used, is damaged
	Gone    = "gone"    // each version was replaced or removed while it was loaded
)

// Over is the error of a search that has no version to try. The state stays as it is.
type Over struct {
	Reason string // None, Damaged or Gone
	Err    error  // of the first attempt that counts or, without one, of the look at the run
	text   string
}

func (o *Over) Error() string { return o.text }
func (o *Over) Unwrap() error { return o.Err }

// Choose returns the version to try next. The error is an *Over or, if the run cannot be looked at, the
// error of look. If versions are replaced or removed again and again, Choose pauses before it looks.
func (s *Search) Choose(ctx context.Context, k *Known, look Look, pause time.Duration) (*Choice, error) {
	if s.Again {
		return s.Now, nil
	}
	if s.Step != nil && s.Damaged {
		return nil, s.lost("the state stays as it is")
	}

	for s.Looks < attempts {
		s.Looks++
		if s.Gone > 1 { // it may take a while
			if err := Pause(ctx, pause); err != nil {
				return nil, err
			}
		}
		c, err := s.look(ctx, k, look)
		verdict := storage.Judge(err)
		if verdict == storage.Fine || verdict == storage.Failed {
			return c, err
		}

		if s.Damaged {
			return nil, s.lost("no newer version can be loaded, so the state stays as it is")
		}
		if verdict == storage.Damaged || s.Step != nil || s.Gone == 0 {
			return nil, s.none(k, verdict, err)
		}
		s.Gone++ // the version that takes the place of the last one is not there yet
	}

	return nil, s.lost("nor could later versions be loaded, so the state stays as it is")
}

// look looks for the version to try next.
func (s *Search) look(ctx context.Context, k *Known, look Look) (*Choice, error) {
	if s.Step != nil {
		return choice(look(ctx, new(*s.Step-1), new(*s.Step+1)))
	}
	if k.Last != nil && s.Damaged { // the version of the last update does not make up for it
		return k.Newest(ctx, look, &k.Last.Step)
	}
	return k.Newest(ctx, look, k.notBefore())
}

// lost returns the error of a search after all attempts have failed.
func (s *Search) lost(text string) *Over {
	o := &Over{Gone, s.Err, s.Err.Text + "; " + text}
	if s.Damaged {
		o.Reason = Damaged
	}
	return o
}

// none returns the error of a run without a version to try.
func (s *Search) none(k *Known, verdict storage.Verdict, err error) *Over {
	o := &Over{Reason: None, Err: err, text: err.Error()}
	if verdict == storage.Damaged {
		o.Reason = Damaged
	}

	switch {
	case s.Step != nil:
		o.text = fmt.Sprintf("version %d: %v", *s.Step, err)
	case k.Last != nil:
		o.text = fmt.Sprintf("no version %d or newer, so the state stays as it is; Prepare with a step goes back: %v", k.Last.Step, err)
	}
	return o
}

// Pause waits for a time, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Take notes the version that Choose has returned.
func (s *Search) Take(c *Choice) {
	s.Now = c
	for _, d := range c.Damaged {
		if !slices.ContainsFunc(s.Tried, func(e group.RemoteError) bool { return e.Text == d.Text }) {
			s.Tried = append(s.Tried, d)
		}
	}
}

// Report notes the outcome of the attempt to load the version of Take. It returns true if the search is over:
// the version was loaded, or no other attempt helps against the error.
func (s *Search) Report(k *Known, err error) (over bool) {
	if err == nil {
		k.Unfit = nil
		return true
	}
	again := ""
	if s.Again {
		again = ", read again"
	}
	tried := group.NewRemoteError(fmt.Errorf("version %d%s: %w", s.Now.Step, again, err))
	s.Tried = append(s.Tried, *tried)
	if s.Err == nil {
		s.Err = tried
	}
	second := s.Again
	s.Again = false

	switch storage.Judge(err) {
	case storage.Failed:
		if s.Step == nil && isUnfit(err) {
			k.Unfit = &s.Now.Version
		}
		return true
	case storage.Gone:
		s.Gone++
	case storage.Damaged:
		if !second {
			s.Again = true
			break
		}
		if k.Damaged == nil {
			k.Damaged = map[int64]string{}
		}
		k.Damaged[s.Now.Step] = s.Now.SaveID
		if !s.Damaged {
			s.Damaged, s.Err = true, tried
		}
	}
	return false
}

// unfits are errors of a version that another attempt to load it into the same tensors does not help against.
var unfits = []error{
	plan.ErrMismatch, plan.ErrMissing, plan.ErrState, storage.ErrVersion, storage.ErrOptions, storage.ErrNotRepresentable, formats.ErrUnknown,
	tensor.ErrCast, tensor.ErrShape, tensor.ErrDType, value.ErrValue, value.ErrEncoding, value.ErrCodec,
}

// isUnfit reports whether an error is one of unfits, or of a recipe.
func isUnfit(err error) bool {
	return slices.ContainsFunc(unfits, func(unfit error) bool { return errors.Is(err, unfit) }) ||
		slices.ContainsFunc(group.NewRemoteError(err).Codes, func(code string) bool { return strings.HasPrefix(code, "recipe.") })
}
