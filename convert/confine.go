package convert

import (
	"runtime"
	"runtime/debug"
)

const (
	// slack is what a process takes beside its heap.
	slack = 32 << 20
	// garbagePercent is how much garbage there may be, in percent of what is in
	// use. Very many tensors make more garbage and metadata than the buffers take.
	garbagePercent = 25
)

// Confine makes the garbage collector keep the process within what it uses now
// and Options.Memory, and run when garbage is a quarter of what is in use, until undo
// is called: by default it would let garbage grow to the size of all that is in
// use. It is for programs that do nothing else, and keeps a lower limit or percentage
// that is set already.
func (j *Job) Confine() (undo func()) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	limit := debug.SetMemoryLimit(-1)
	debug.SetMemoryLimit(min(limit, int64(m.HeapAlloc)+j.opts.Memory+slack))
	percent := debug.SetGCPercent(garbagePercent)
	if percent < garbagePercent { // also negative: switched off
		debug.SetGCPercent(percent)
	}
	return func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}
}
