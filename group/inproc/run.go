package inproc

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cairn-ckpt/cairn/group"
)

// opRun is the Op of the errors that Run returns.
const opRun group.Op = "run"

var errExit = errors.New("goroutine exited")

// Run calls fn on each rank of a new group, each in a goroutine of its own, and
// returns when all have returned. A rank leaves the group when its fn returns,
// so that the others do not wait for it: a call that they make without it fails
// (see [Group.Leave]). A panic becomes a [*group.PanicError].
//
// The result joins the errors of the ranks, each as a [*group.Error] that names the ranks;
// errors with the same text are joined into one.
func Run(ctx context.Context, n int, fn func(ctx context.Context, g group.Group) error) error {
	if n < 1 {
		return fmt.Errorf("run %d ranks: %w", n, group.ErrInvalid)
	}

	errs := make([]error, n)
	var wg sync.WaitGroup
	for r, g := range New(n) {
		wg.Go(func() {
			errs[r] = errExit // stays if fn ends its goroutine, as t.FailNow does
			defer func() { g.Leave(errs[r]) }()
			errs[r] = group.Catch(func() error { return fn(ctx, g) })
		})
	}

	wg.Wait()
	return join(errs)
}

// join joins the ranks' errors, errors of one text as one.
func join(errs []error) error {
	var joined []error
	byText := make(map[string]*group.Error)
	for r, err := range errs {
		if err == nil {
			continue
		}

		text := fmt.Sprint(err)
		e := byText[text]
		if e == nil {
			e = &group.Error{Op: opRun, Err: err}
			byText[text] = e
			joined = append(joined, e)
		}
		e.Ranks = append(e.Ranks, r)
	}

	return errors.Join(joined...)
}
