// Package fault wraps a store and lets chosen operations go wrong: fail, take
// long, change bytes, or be the last thing a crashing process did. It knows
// nothing of what the store is and is meant for tests. The contract is that of
// blob.Store as long as no rule fires.
//
// # Crash at every step
//
// A test that a crash at any point leaves something whole runs the same work
// again and again, each time with a crash one operation later:
//
//	for n := int64(1); ; n++ {
//		inner := seeded(t)
//		s := fault.New(inner, fault.CrashAt(n))
//		err := work(t.Context(), s)
//		check(t, inner)
//		if !s.Crashed() {
//			break // there were fewer than n operations
//		}
//	}
package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// ErrCrashed is the error of the operation at which a Crash fired and of every
// one after it.
var ErrCrashed = errors.New("crashed on purpose")

var (
	_ blob.Store   = (*Store)(nil)
	_ blob.Wrapper = (*Store)(nil)
	_ blob.Cooler  = (*Store)(nil)
	_ blob.Sweeper = (*Store)(nil)
)

// Store passes operations on to another store, except if a rule fires. It
// notes every operation, whether or not it succeeds. An operation under way in
// another goroutine when a crash strikes may still take effect, as in life.
type Store struct {
	inner blob.Store

	mu      sync.Mutex
	rules   []state // guarded by mu
	log     []Entry // guarded by mu
	crashed bool    // guarded by mu
}

// New returns a store over s that obeys rules. Each rule counts on its own;
// if several fire at one operation all their actions are taken, and the
// error is that of the first.
func New(s blob.Store, rules ...Rule) *Store {
	f := &Store{inner: s}
	for _, r := range rules {
		f.rules = append(f.rules, state{rule: r.withDefaults()})
	}
	return f
}

// String returns where the other store is.
func (s *Store) String() string { return s.inner.String() }

// Unwrap returns the other store.
func (s *Store) Unwrap() blob.Store { return s.inner }

// Crashed reports whether a Crash has fired.
func (s *Store) Crashed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crashed
}

// effect is what the rules that fire want of one operation.
type effect struct {
	delay time.Duration
	err   error // instead of the operation
	late  error // in the place of its success
	crash bool  // this is the operation that crashes
	edits []Action
}

// do runs one operation: the rules' part of it, then fn, which must do the
// real thing.
func (s *Store) do(ctx context.Context, e Entry, fn func(effect) error) error {
	eff, err := s.enter(ctx, e)
	if err != nil {
		return &blob.Error{Op: e.Op.String(), Store: s.String(), Name: e.Name, Err: err}
	}
	if err := fn(eff); err != nil {
		return err
	}
	if eff.late != nil {
		return &blob.Error{Op: e.Op.String(), Store: s.String(), Name: e.Name, Err: eff.late}
	}
	return nil
}

// enter notes an operation and returns what is to happen with it, or the error
// that it must fail with.
func (s *Store) enter(ctx context.Context, e Entry) (effect, error) {
	eff, err := s.decide(e)
	if err != nil {
		return eff, err
	}
	if eff.delay > 0 {
		if err := sleep(ctx, eff.delay); err != nil {
			return eff, err
		}
		if !eff.crash && s.Crashed() {
			return eff, ErrCrashed // it struck while this one slept
		}
	}
	return eff, eff.err
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// decide notes an operation and asks the rules.
func (s *Store) decide(e Entry) (effect, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crashed {
		return effect{}, ErrCrashed
	}
	s.log = append(s.log, e)
	var eff effect
	for i := range s.rules {
		if a, ok := s.rules[i].fire(e); ok {
			a.into(&eff)
		}
	}
	s.crashed = eff.crash
	return eff, nil
}

// Op is a kind of operation, or a set of kinds.
type Op uint

// The kinds of operations. Closing a reader, asking its size, and an Abort
// after the writer's end are none.
const (
	Create Op = 1 << iota
	Write
	Commit
	Abort
	Remove
	Sweep
	Open
	Read
	Stat
	List
	Cool

	// Mutating are the operations that change something.
	Mutating = Create | Write | Commit | Abort | Remove | Sweep
	// Reading are those that do not.
	Reading = Open | Read | Stat | List | Cool
	// Any is all of them.
	Any = Mutating | Reading
)

var opNames = map[Op]string{
	Create: "create", Write: "write", Commit: "commit", Abort: "abort", Remove: "remove", Sweep: "sweep",
	Open: "open", Read: "read", Stat: "stat", List: "list", Cool: "cool",
}

// String returns the names of the kinds in o, joined by "|".
func (o Op) String() string {
	var names []string
	for _, k := range slices.Sorted(maps.Keys(opNames)) {
		if o&k != 0 {
			names = append(names, opNames[k])
		}
	}
	return strings.Join(names, "|")
}

// Entry is one operation that was asked for.
type Entry struct {
	Op   Op
	Name string // the object's, or the prefix of a List
	Off  int64  // of a Read or Write
	Len  int64  // of a Read or Write
}

// String returns the entry in a line.
func (e Entry) String() string {
	if e.Op&(Read|Write) != 0 {
		return fmt.Sprintf("%s %q %d+%d", e.Op, e.Name, e.Off, e.Len)
	}
	return fmt.Sprintf("%s %q", e.Op, e.Name)
}

// Ops is what was asked of a store, up to its crash.
type Ops struct {
	Log []Entry // in order
}

// Ops returns what was asked so far, the operation that crashed included and
// those after it not.
func (s *Store) Ops() Ops {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Ops{Log: slices.Clone(s.log)}
}

// Count returns how many operations of the kinds in o there were.
func (o Ops) Count(kinds Op) int64 {
	var n int64
	for _, e := range o.Log {
		if e.Op&kinds != 0 {
			n++
		}
	}
	return n
}

// String returns the log, a line an operation.
func (o Ops) String() string {
	var b strings.Builder
	for _, e := range o.Log {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// Rule says at which operations something goes wrong, and what.
type Rule struct {
	// On are the kinds of operations that the rule counts. Zero: Any.
	On Op
	// Match chooses among them by the object's name, or the prefix of a List.
	// Nil: all names.
	Match func(name string) bool
	// Nth is the first of the counted operations at which the rule fires, from
	// 1. Zero: 1.
	Nth int64
	// Times is how many of them in a row it fires at. Zero: 1. Negative: all
	// from the Nth on.
	Times int64
	// Do is what goes wrong. The zero Action does nothing.
	Do Action
}

// CrashAt returns the rule to crash in the place of the n-th mutating
// operation.
func CrashAt(n int64) Rule { return Rule{On: Mutating, Nth: n, Do: Crash()} }

// CrashLateAt returns the rule to crash when the n-th mutating operation has
// taken effect, before that is reported.
func CrashLateAt(n int64) Rule { return Rule{On: Mutating, Nth: n, Do: CrashLate()} }

// Named returns a Match for one name.
func Named(name string) func(string) bool {
	return func(n string) bool { return n == name }
}

func (r Rule) withDefaults() Rule {
	r.On = cmp.Or(r.On, Any)
	r.Nth = cmp.Or(r.Nth, 1)
	r.Times = cmp.Or(r.Times, 1)
	if r.Times < 0 {
		r.Times = math.MaxInt64 - r.Nth
	}
	return r
}

// state is a rule and how far it has counted.
type state struct {
	rule Rule
	n    int64
}

// fire counts e if the rule is about it, and returns what is to be done.
func (s *state) fire(e Entry) (Action, bool) {
	if s.rule.On&e.Op == 0 || s.rule.Match != nil && !s.rule.Match(e.Name) {
		return Action{}, false
	}
	s.n++
	return s.rule.Do, s.n >= s.rule.Nth && s.n < s.rule.Nth+s.rule.Times
}

// Action is something that goes wrong.
type Action struct {
	err, late error
	crash     bool
	delay     time.Duration
	edit      edit
	n         int64 // of the edit
}

type edit int

const (
	noEdit edit = iota
	flip
	truncate
)

// Fail lets the operation fail with err in the place of taking effect. A
// Commit that fails so ends its writer as by Abort.
func Fail(err error) Action { return Action{err: err} }

// FailLate lets the operation take effect and then report err.
func FailLate(err error) Action { return Action{late: err} }

// Crash stops the store dead: this operation and all later ones fail with
// ErrCrashed and reach nothing. Writers that are open leave no object, but
// what else an interrupted writer leaves behind.
func Crash() Action { return Action{err: ErrCrashed, crash: true} }

// CrashLate is Crash after the operation took effect: a Commit did make its
// object visible, and the caller got an error.
func CrashLate() Action { return Action{late: ErrCrashed, crash: true} }

// Delay holds the operation up for d, or until its context is done.
func Delay(d time.Duration) Action { return Action{delay: d} }

// Flip inverts one bit, counted from the first and modulo their number, of the
// bytes that are read or written. Other operations go on undisturbed.
func Flip(bit int64) Action { return Action{edit: flip, n: bit} }

// Truncate cuts off what is behind n bytes, and reports success. An Open or
// Stat sees an object of at most n bytes; a Write hands on the first n of its
// bytes; a Read gets zeros from the n-th of its bytes on. Other operations go
// on undisturbed.
func Truncate(n int64) Action { return Action{edit: truncate, n: max(n, 0)} }

// into adds the action to what is to be done.
func (a Action) into(eff *effect) {
	eff.delay += a.delay
	eff.crash = eff.crash || a.crash
	if eff.err == nil {
		eff.err = a.err
	}
	if eff.late == nil {
		eff.late = a.late
	}
	if a.edit != noEdit {
		eff.edits = append(eff.edits, a)
	}
}

// Damage replaces the object name of s by what edit makes of its bytes, which
// edit may change in place: for tests of what notices.
func Damage(ctx context.Context, s blob.Store, name string, edit func([]byte) []byte) error {
	p, err := blob.ReadAll(ctx, s, name, math.MaxInt64)
	if err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, s, name, edit(p), nil)
	return err
}
