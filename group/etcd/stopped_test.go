//go:build unix

package etcd_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group/etcd"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

// A rank 0 that was stopped for longer than its lease can neither announce an address
// nor end the meeting of a later rank 0.
func TestLateProcessOfAnOldGeneration(t *testing.T) {
	job := newJob(t)
	late := startChild(t, job, 0)
	late.Stop(t)
	gs := meet(t, assigned(job, 2)...)
	next := at(job, 2) // waits for others in a meeting of its own
	sit(t, next)
	before := contents(t, job)
	late.Continue(t)
	fmt.Fprintln(late.In)
	if got, _ := late.Line(); !strings.HasSuffix(got, etcd.ErrLost.Error()) {
		t.Errorf("Announce of a process that was away = %s; want that its slot is lost", got)
	}
	late.Want(t, fmt.Sprint(nil)) // of Close
	if after := contents(t, job); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a process that was away changed %q to %q", before, after)
	}
	tcptest.Close(gs)
}
