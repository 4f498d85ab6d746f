package convert

import (
	"runtime"
	"runtime/debug"
)

// slack is what a process takes beside its heap.
const slack = 32 << 20

// Confine makes the garbage collector keep the process within what it uses now
// and Options.Memory, until undo is called: by default it would let garbage grow
// to the size of all that is in use. It is for programs that do nothing else, and
// heeds a lower limit that is set already.
func (j *Job) Confine() (undo func()) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	before := debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(before, int64(m.HeapAlloc)+j.opts.Memory+slack))
	return func() { debug.SetMemoryLimit(before) }
}
