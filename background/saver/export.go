package saver

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
)

// Exporter carries out the exports that the notes of checkpoints ask for, in the background: it runs 'cairn
// export' in a process of its own, so that a conversion neither takes the memory of this process nor ends it. The
// zero Exporter is ready to use.
type Exporter struct {
	// Command is the program with its arguments, to which an address is added. Nil: "cairn export", in PATH.
	Command []string

	mu     sync.Mutex
	latest map[string]*work.Latest // by address; guarded by mu
}

// Export begins the pending exports of a run, or of a checkpoint, at an address. If some are under way there,
// it begins when these are over. done receives the error, unless a later call for the address replaces this
// one before it begins.
func (x *Exporter) Export(ctx context.Context, address string, done func(error)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.latest == nil {
		x.latest = map[string]*work.Latest{}
	}
	l := x.latest[address]
	if l == nil {
		l = new(work.Latest)
		x.latest[address] = l
	}
	l.Do(func() { done(x.run(ctx, address)) })
}

// Wait waits until no export is under way. It returns false if ctx ends first.
func (x *Exporter) Wait(ctx context.Context) bool {
	x.mu.Lock()
	var all []*work.Latest
	for _, l := range x.latest {
		all = append(all, l)
	}
	x.mu.Unlock()
	for _, l := range all {
		if !l.Wait(ctx) {
			return false
		}
	}
	return true
}

// GiveWay lowers the priority of a process that an Exporter has started.
func GiveWay() { setPriority(exportNiceness) }

// maxExportOutput bounds what is kept of the errors of the command.
const maxExportOutput = 8 << 10

// run runs the command.
func (x *Exporter) run(ctx context.Context, address string) error {
	command := x.Command
	if command == nil {
		command = []string{"cairn", "export"}
	}
	args := append(append([]string{}, command[1:]...), "--background", "--quiet", "--", address)
	cmd := exec.CommandContext(ctx, command[0], args...)
	detach(cmd) // a group of its own, of which GiveWay lowers the priority
	var out tail
	cmd.Stderr = &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("exports of %s: %s", blob.Redact(address), cmp.Or(strings.TrimSpace(string(out)), err.Error()))
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	if n := len(*t) - maxExportOutput; n > 0 {
		*t = append([]byte{}, (*t)[n:]...)
	}
	return len(p), nil
}
