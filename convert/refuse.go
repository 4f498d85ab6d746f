package convert

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// RefusedError reports what the target cannot hold. It wraps
// storage.ErrNotRepresentable and plan.ErrMismatch.
type RefusedError struct {
	// Objects and Tensors are the names in the target, with the reasons, in
	// order.
	Objects, Tensors []Refused
}

// Refused is one name that the target cannot hold.
type Refused struct {
	Name, Why string
}

// maxNamed bounds how many names an error lists.
const maxNamed = 10

// Error lists the first names.
func (e *RefusedError) Error() string {
	all := append(slices.Clone(e.Tensors), e.Objects...)
	var parts []string
	for _, r := range all[:min(len(all), maxNamed)] {
		parts = append(parts, fmt.Sprintf("%q: %s", r.Name, r.Why))
	}
	if n := len(all) - len(parts); n > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", n))
	}
	names := "names"
	if len(all) == 1 {
		names = "name"
	}
	return fmt.Sprintf("%v: %d %s: %s", storage.ErrNotRepresentable, len(all), names, strings.Join(parts, "; "))
}

// Unwrap returns what e is about.
func (e *RefusedError) Unwrap() []error {
	return []error{storage.ErrNotRepresentable, plan.ErrMismatch}
}

// refusals collects what writers cannot hold.
type refusals map[string]string

// add takes the names out of err. It reports false for an error that is not
// only about names that cannot be held.
func (r refusals) add(err error) bool {
	if n, ok := errors.AsType[*storage.NotRepresentable](err); ok && !joined(err) {
		r[n.FQN] = n.Why
		return true
	}
	var parts []error
	for e := err; e != nil && parts == nil; e = errors.Unwrap(e) {
		if m, ok := e.(interface{ Unwrap() []error }); ok {
			parts = m.Unwrap()
		}
	}
	for _, p := range parts {
		if !r.add(p) {
			return false
		}
	}
	return len(parts) > 0
}

// joined reports whether there are several errors in err.
func joined(err error) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if _, ok := e.(interface{ Unwrap() []error }); ok {
			return true
		}
	}
	return false
}

// err returns the refusals as an error.
func (r refusals) err(j *Job) *RefusedError {
	out := &RefusedError{}
	for _, e := range j.entries {
		why, ok := r[e.info.FQN]
		switch {
		case !ok:
		case e.src.Tensor != nil:
			out.Tensors = append(out.Tensors, Refused{e.info.FQN, why})
		default:
			out.Objects = append(out.Objects, Refused{e.info.FQN, why})
		}
	}
	return out
}

// checkValues asks a writer about the objects of a plan.
func (r *run) checkValues(ctx context.Context, w storage.Writer, p *plan.SavePlan) error {
	c, ok := w.(storage.ValueChecker)
	if !ok {
		return nil
	}
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind != plan.KindBytes {
			continue
		}
		data, err := r.job.content(ctx, r.job.find(it.FQN()))
		if err != nil {
			return err
		}
		if err := c.CheckValue(it, data); err != nil && !r.refused.add(err) {
			return err
		}
	}
	return nil
}

// without returns p without the refused items.
func (r refusals) without(p *plan.SavePlan) *plan.SavePlan {
	if len(r) == 0 {
		return p
	}
	q := *p
	q.Items = slices.DeleteFunc(slices.Clone(p.Items), func(it plan.WriteItem) bool {
		_, ok := r[it.FQN()]
		return ok
	})
	return &q
}
