//go:build unix

package etcd_test

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/group/etcd"
)

// A rank 0 that was away for longer than its lease can neither announce itself nor
// end the meeting of those who came to its place.
func TestLateProcessOfAnOldGeneration(t *testing.T) {
	job := newJob(t)
	late := startChild(t, job, 0)
	if err := late.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	gs := meet(t, assigned(job, 2)...)
	next := at(job, 2) // waits for others in a meeting of its own
	sit(t, next)
	before := contents(t, job)
	if err := late.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(late.in)
	if got := late.line(); !strings.HasSuffix(got, etcd.ErrLost.Error()) {
		t.Errorf("Announce of a process that was away = %s; want that its seat is lost", got)
	}
	if got := late.line(); got != fmt.Sprint(nil) {
		t.Errorf("Close of a process that was away = %s; want nil", got)
	}
	if after := contents(t, job); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a process that was away changed %q to %q", before, after)
	}
	closeAll(gs)
}
