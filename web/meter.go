package web

import (
	"sync"
	"time"
)

// Progress receives how far an answer is: the bytes that were read, their total, and a text
// about the work. total is zero if it is not known yet. A slow call does not slow down the work.
type Progress func(done, total int64, what string)

// state is how far an answer is.
type state struct {
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
	What  string `json:"what"`
}

// meter keeps how far an answer is. Its methods are safe for concurrent use.
type meter struct {
	mu    sync.Mutex
	state state // guarded by mu
	// The part of an answer of several parts that is computed: the share of the total that
	// it counts for, and the share of the parts before it. Guarded by mu.
	parts  bool
	before int64
	weight int64
	read   int64
	toRead int64
}

// say sets the text about the work.
func (m *meter) say(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.What = what
}

// split makes the answer one of several parts, with that total.
func (m *meter) split(total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.parts, m.state.Total = true, total
}

// begin begins the next part, which counts for weight of the total.
func (m *meter) begin(what string, weight int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before += m.weight
	m.weight, m.read, m.toRead = weight, 0, 0
	m.state.What, m.state.Done = what, m.before
}

// total sets the bytes to read, of the answer or of its part.
func (m *meter) total(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.parts {
		m.toRead = n
		return
	}
	m.state.Total = n
}

// add adds bytes that were read.
func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.parts {
		m.state.Done += n
		return
	}
	m.read = min(m.read+n, m.toRead)
	if m.toRead > 0 {
		m.state.Done = m.before + int64(float64(m.weight)*float64(m.read)/float64(m.toRead))
	}
}

func (m *meter) now() state {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// reportEvery is how often progress is reported.
const reportEvery = 150 * time.Millisecond

// watch runs work, and calls report with how far it is until it ends. Both have ended when
// watch returns.
func watch(work func(m *meter), report Progress) {
	m := new(meter)
	done := make(chan struct{})
	go func() {
		defer close(done)
		work(m)
	}()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	var last state
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			if s := m.now(); s != last && report != nil {
				report(s.Done, s.Total, s.What)
				last = s
			}
		}
	}
}
