package hosts

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// A host that has left the job is asked until it does not answer. From then on it is lost: its
// objects are missing, and nothing waits for it.
func TestHostThatHasLeft(t *testing.T) {
	a, b, c := newHost(t), newHost(t), newHost(t)
	put(t, b.Store, "of-b", []byte("b"))
	put(t, c.Store, "of-c", []byte("c"))
	var reports []string
	s := must.Get(New(a.Store, Config{
		Host: "a", Secret: secret, Stall: testStall, Peers: []Peer{{Host: "b", Addr: b.addr}, {Host: "c", Addr: c.addr, Left: true}},
		Report: func(host, object string, err error) { reports = append(reports, host+" "+object) },
	}))(t)
	defer s.Close()
	ctx := t.Context()
	if _, err := s.Stat(ctx, "of-c"); err != nil {
		t.Fatalf("Stat of an object of a host that has left, and answers: %v", err)
	}

	c.stop()
	for range 2 {
		if got := listOf(t, s); got != "of-b" {
			t.Errorf("List = %q; want of-b", got)
		}
	}
	_, err := s.Stat(ctx, "of-c")
	if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "lost hosts c may") {
		t.Errorf("Stat of an object of a lost host = %v; want fs.ErrNotExist with the name of the host", err)
	}
	if err := s.Remove(ctx, "of-b"); err != nil {
		t.Errorf("Remove = %v", err)
	}
	if len(reports) != 1 || !strings.HasPrefix(reports[0], "c ") {
		t.Errorf("reports %q; want one about c", reports)
	}

	// A host of the job does not become lost.
	b.stop()
	if _, err := s.Stat(ctx, "of-b"); !errors.Is(err, ErrUnreachable) {
		t.Errorf("Stat without b = %v; want ErrUnreachable", err)
	}
}

// listOf returns the names of all objects.
func listOf(t *testing.T, s *Store) string {
	t.Helper()
	var names []string
	for info, err := range s.List(t.Context(), "") {
		must.Do(t, err)
		names = append(names, info.Name)
	}
	return strings.Join(names, " ")
}

// Reach finds servers with the same secret. A program that only accepts connections is none.
func TestReach(t *testing.T) {
	b := newHost(t)
	must.Do(t, Reach(t.Context(), b.addr, secret))
	if err := Reach(t.Context(), b.addr, []byte("another")); !errors.Is(err, ErrSecret) {
		t.Errorf("Reach with another secret = %v; want ErrSecret", err)
	}
	deaf := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer deaf.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := Reach(ctx, deaf.Addr().String(), secret); err == nil {
		t.Error("Reach of a program that says nothing = nil")
	}
}
