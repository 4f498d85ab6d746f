package fault

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

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
