package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/cairn-ckpt/cairn/group/etcd"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

// childVariable holds the address of the rendezvous in processes that are to take
// a slot.
const childVariable = "CAIRN_ETCD_TEST_CHILD"

// child takes a slot and prints which. On request it announces itself, and
// says how that went.
func child(address string) {
	r, err := etcd.Parse(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	rank, _, err := r.Slot(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("rank", rank)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return
	}
	fmt.Println(r.Announce(context.Background(), "127.0.0.1:1"))
	fmt.Println(r.Close())
}

// startChild starts a process that takes a slot among two, with a lease of a second,
// and returns once it has.
func startChild(t *testing.T, job string, rank int) *tcptest.Process {
	t.Helper()
	p := tcptest.Start(t, fmt.Sprintf("%s=etcd://%s/%s?size=2&rank=%d&ttl=1s", childVariable, cluster(), url.PathEscape(job), rank))
	p.Want(t, fmt.Sprint("rank ", rank))
	return p
}

// A process that dies before the ranks have met keeps its slot for the time of a
// lease; then another process has it, and they meet.
func TestSlotOfADeadProcessIsFree(t *testing.T) {
	for rank := range 2 {
		t.Run(fmt.Sprint("rank ", rank), func(t *testing.T) {
			t.Parallel()
			job := newJob(t)
			startChild(t, job, rank).Kill(t)
			meet(t, assigned(job, 2)...)
		})
	}
}
