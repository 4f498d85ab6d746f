// Package verify collects what the checks of a checkpoint find, from all
// goroutines that check it. It knows no format and checks nothing itself. The
// contract is at Findings; what its report means is in package storage.
package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/storage"
)

// Findings are a report in the making. Its methods are safe for concurrent use.
type Findings struct {
	progress func(bytes int64)

	mu   sync.Mutex
	rep  storage.VerifyReport // guarded by mu
	gone map[string]bool      // files; guarded by mu
}

// New returns an empty report. progress, if not nil, is told of the bytes that
// were read, one call at a time.
func New(progress func(bytes int64)) *Findings {
	return &Findings{progress: progress, rep: storage.VerifyReport{Problems: []storage.VerifyProblem{}}, gone: map[string]bool{}}
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

// Gone adds that a file is not there, which holds so many names or parts of them.
// What else is found of the file says no more, and is left out of the report.
func (f *Findings) Gone(file string, names int) {
	text := "the file is gone"
	switch {
	case names == 1:
		text += ", and 1 name with it"
	case names > 1:
		text += fmt.Sprintf(", and %d names with it", names)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone[file] = true
	f.rep.Problems = append(f.rep.Problems, storage.VerifyProblem{File: file, Text: text})
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
	f.rep.Problems = slices.DeleteFunc(f.rep.Problems, func(p storage.VerifyProblem) bool { return (p.FQN != "" || p.FQNs != nil) && f.gone[p.File] })
	slices.SortFunc(f.rep.Problems, func(a, b storage.VerifyProblem) int {
		return cmp.Or(strings.Compare(a.File, b.File), strings.Compare(a.FQN, b.FQN), strings.Compare(a.Text, b.Text))
	})
	return &f.rep
}
