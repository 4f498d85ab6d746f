package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"testing"

	"github.com/cairn-ckpt/cairn/group/etcd"
)

// childVariable holds the address of the rendezvous in processes that are to take
// a seat.
const childVariable = "CAIRN_ETCD_TEST_CHILD"

// child takes a seat and says which. When it is told to it announces itself, and
// says how that went.
func child(address string) {
	r, err := etcd.Parse(address)
	if err != nil {
		fmt.Println(err)
		return
	}
	rank, _, err := r.Seat(context.Background())
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

// seated is a process that has a seat.
type seated struct {
	*os.Process
	in  io.Writer
	out *bufio.Scanner
}

// line returns the next line that the process prints.
func (s *seated) line() string {
	s.out.Scan()
	return s.out.Text()
}

// startChild starts a process that takes a seat among two, with a lease of a second,
// and returns once it has.
func startChild(t *testing.T, job string, rank int) *seated {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	address := fmt.Sprintf("etcd://%s/%s?size=2&rank=%d&ttl=1s", cluster, url.PathEscape(job), rank)
	cmd.Env = append(os.Environ(), childVariable+"="+address)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	s := &seated{cmd.Process, in, bufio.NewScanner(out)}
	if got, want := s.line(), fmt.Sprint("rank ", rank); got != want {
		t.Fatalf("the process said %q; want %q", got, want)
	}
	return s
}

// A process that dies before the ranks have met keeps its seat for the time of a
// lease; then another process has it, and they meet.
func TestSeatOfADeadProcessIsFree(t *testing.T) {
	for rank := range 2 {
		t.Run(fmt.Sprint("rank ", rank), func(t *testing.T) {
			t.Parallel()
			job := newJob(t)
			if err := startChild(t, job, rank).Kill(); err != nil {
				t.Fatal(err)
			}
			meet(t, assigned(job, 2)...)
		})
	}
}
