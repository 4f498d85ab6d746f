package fault

import (
	"cmp"
	"math"
	"time"
)

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
// object visible, and nobody was told.
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
