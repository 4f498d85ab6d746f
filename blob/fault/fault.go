// Package fault wraps a store and lets chosen operations go wrong: fail, take
// long, change bytes, or be the last operation of a process that crashes. It also logs
// all operations. It does not depend on the kind of store. It keeps the contract of
// blob.Store as long as no rule fires.
//
// # Crash at every step
//
// A test that a crash at any point leaves a complete checkpoint repeats the same
// work, each time with a crash one operation later:
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
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// ErrCrashed is the error of the operation at which a Crash fired and of every
// one after it.
var ErrCrashed = errors.New("crashed on purpose")

// Op is a kind of operation, or a set of kinds.
type Op uint

// The kinds of operations. Close and Size of a reader, and Abort of a writer that has
// ended, are not operations.
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

	// Mutating are the operations that change something.
	Mutating = Create | Write | Commit | Abort | Remove | Sweep
	// Reading are the operations that do not change the store.
	Reading = Open | Read | Stat | List
	// Any is all of them.
	Any = Mutating | Reading
)

var opNames = map[Op]string{
	Create: "create", Write: "write", Commit: "commit", Abort: "abort", Remove: "remove", Sweep: "sweep",
	Open: "open", Read: "read", Stat: "stat", List: "list",
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

// Entry is one operation.
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

// Ops are operations in their order.
type Ops []Entry

// Count returns the number of operations of these kinds.
func (o Ops) Count(kinds Op) int64 {
	var n int64
	for _, e := range o {
		if e.Op&kinds != 0 {
			n++
		}
	}
	return n
}

// Bytes returns the number of bytes of the operations of these kinds.
func (o Ops) Bytes(kinds Op) int64 {
	var n int64
	for _, e := range o {
		if e.Op&kinds != 0 {
			n += e.Len
		}
	}
	return n
}

// String returns a line for each operation.
func (o Ops) String() string {
	var b strings.Builder
	for _, e := range o {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// Rule selects operations and makes them fail.
type Rule struct {
	// On are the kinds of operations that the rule counts. Zero: Any.
	On Op
	// Match selects among them by the object's name, or the prefix of a List.
	// Nil: all names.
	Match func(name string) bool
	// Nth is the first of the counted operations at which the rule fires, from
	// 1. Zero: 1.
	Nth int64
	// Times is the number of operations in a row at which it fires. Zero: 1. Negative:
	// all from the Nth on.
	Times int64
	// Do is the fault. The zero Action has no effect.
	Do Action
}

// CrashAt returns a rule that crashes instead of the n-th mutating operation.
func CrashAt(n int64) Rule { return Rule{On: Mutating, Nth: n, Do: Crash()} }

// CrashLateAt returns a rule that crashes after the n-th mutating operation has taken
// effect, before it returns.
func CrashLateAt(n int64) Rule { return Rule{On: Mutating, Nth: n, Do: CrashLate()} }

// Named returns a Match for one name.
func Named(name string) func(string) bool {
	return func(n string) bool { return n == name }
}

// counter is a rule and the number of operations that it has counted.
type counter struct {
	Rule
	n int64
}

// fires counts e if the rule is about it, and reports whether the rule fires.
func (c *counter) fires(e Entry) bool {
	if cmp.Or(c.On, Any)&e.Op == 0 || c.Match != nil && !c.Match(e.Name) {
		return false
	}
	c.n++
	after := c.n - cmp.Or(c.Nth, 1)
	return after >= 0 && (c.Times < 0 || after < cmp.Or(c.Times, 1))
}

// Action is something that goes wrong.
type Action struct {
	delay time.Duration
	err   error // instead of the operation
	late  error // after the operation has succeeded
	crash bool
	flips []int64 // bits to invert
	cut   *int64  // bytes that are left
}

// Fail makes the operation return err instead of taking effect. A Commit that fails
// in this way ends its writer like Abort.
func Fail(err error) Action { return Action{err: err} }

// FailLate makes the operation take effect and then return err.
func FailLate(err error) Action { return Action{late: err} }

// Crash makes this operation and all later ones return ErrCrashed without effect.
// Writers that are open leave no object, but leave their temporary data.
func Crash() Action { return Action{err: ErrCrashed, crash: true} }

// CrashLate is like Crash after the operation has taken effect: a Commit has made its
// object visible, and the caller gets an error.
func CrashLate() Action { return Action{late: ErrCrashed, crash: true} }

// Delay makes the operation wait for d, or until its context ends.
func Delay(d time.Duration) Action { return Action{delay: d} }

// Flip inverts one bit, counted from the first and modulo their number, of the
// bytes that are read or written. It has no effect on other operations.
func Flip(bit int64) Action { return Action{flips: []int64{bit}} }

// Truncate cuts off the bytes after the first n, and reports success. An Open or
// Stat sees an object of at most n bytes. A Write writes the first n of its bytes. A
// Read gets zeros after the first n of its bytes. It has no effect on other
// operations.
func Truncate(n int64) Action { return Action{cut: new(max(n, 0))} }

// add adds the effects of b to a. The errors of a come first.
func (a *Action) add(b Action) {
	a.delay += b.delay
	a.err, a.late = cmp.Or(a.err, b.err), cmp.Or(a.late, b.late)
	a.crash = a.crash || b.crash
	a.flips = append(a.flips, b.flips...)
	if b.cut != nil {
		a.cut = new(a.left(*b.cut))
	}
}

// left returns how many of n bytes are left.
func (a *Action) left(n int64) int64 {
	if a.cut == nil {
		return n
	}
	return min(n, *a.cut)
}

// flip inverts bits of p.
func (a *Action) flip(p []byte) {
	for _, n := range a.flips {
		if len(p) > 0 {
			bit := uint64(n) % (uint64(len(p)) * 8)
			p[bit/8] ^= 1 << (bit % 8)
		}
	}
}

// Damage replaces the bytes of the object name of s by the result of edit, which may
// change them in place.
func Damage(ctx context.Context, s blob.Store, name string, edit func([]byte) []byte) error {
	p, err := blob.ReadAll(ctx, s, name, math.MaxInt64)
	if err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, s, name, edit(p), nil)
	return err
}
