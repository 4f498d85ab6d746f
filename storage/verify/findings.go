// Package verify collects what the checks of a checkpoint find, from all
// goroutines that check it. It knows no format and checks nothing itself. The
// contract is at Findings; what its report means is in package storage.
package verify

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/storage"
)

// Findings are a report in the making. Its methods are safe for concurrent use.
type Findings struct {
	progress func(bytes int64)

	mu   sync.Mutex
	rep  storage.VerifyReport             // guarded by mu
	gone map[string]storage.VerifyProblem // by file; guarded by mu
}

// New returns an empty report. progress, if not nil, is told of the bytes that
// were read, one call at a time.
func New(progress func(bytes int64)) *Findings {
	return &Findings{progress: progress, rep: storage.VerifyReport{Problems: []storage.VerifyProblem{}}, gone: map[string]storage.VerifyProblem{}}
}

// Tell passes progress on.
func (f *Findings) Tell(bytes int64) {
	if f.progress == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.progress(bytes)
}

// Problem adds what is wrong with a file, or with a name in it.
func (f *Findings) Problem(file, fqn, text string) {
	f.Add(storage.VerifyProblem{File: file, FQN: fqn, Text: text})
}

// Add adds a problem.
func (f *Findings) Add(p storage.VerifyProblem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep.Problems = append(f.rep.Problems, p)
}

// Gone adds that a file does not exist, which holds the names or parts of them.
// All other problems of the file are left out of the report.
func (f *Findings) Gone(file string, names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[file] = storage.VerifyProblem{File: file, FQNs: names, Text: "the file is gone"}
}

// Chunks counts chunks and values that were checked.
func (f *Findings) Chunks(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep.Chunks += int64(n)
}

// File counts a file that was read, and the bytes of it that have no checksum.
func (f *Findings) File(bytes, unsummed int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep.Files++
	f.rep.Bytes += bytes
	f.rep.Unsummed += unsummed
}

// Report returns what was found, the problems by file, name and text: the same
// whichever check was first. Nothing may be added any more.
func (f *Findings) Report() *storage.VerifyReport {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rep.Problems = slices.DeleteFunc(f.rep.Problems, func(p storage.VerifyProblem) bool {
		_, gone := f.gone[p.File]
		return gone
	})
	f.rep.Problems = slices.AppendSeq(f.rep.Problems, maps.Values(f.gone))
	slices.SortFunc(f.rep.Problems, func(a, b storage.VerifyProblem) int {
		return cmp.Or(strings.Compare(a.File, b.File), strings.Compare(a.FQN, b.FQN), strings.Compare(a.Text, b.Text))
	})
	return &f.rep
}
