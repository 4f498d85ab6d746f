package bench

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// childArg makes the test binary a process of a benchmark.
const childArg = "be-a-child"

var self = []string{os.Args[0], childArg}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		if err := Child(context.Background(), os.Args[2], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestTreeBench(t *testing.T) {
	const ranks, tensors = 100, 20
	r, err := Tree(t.Context(), TreeOptions{PlanOptions: PlanOptions{Ranks: ranks, Tensors: tensors}, Arity: 3, Self: self})
	if err != nil {
		t.Fatal(err)
	}
	if r.Items != 2000 || r.Depth != 4 || r.Links != 4 {
		t.Errorf("Tree = %+v; want 2,000 items, a depth of 4 and 4 links", r)
	}
	// Plan, final plan, the outcome of the rank and of the step: they are small, so each
	// call is one message up and one down each link.
	const calls, links = 4, ranks - 1
	if want := calls * 2.0 * links / ranks; r.MessagesSent.Mean != want || r.MessagesReceived.Mean != want {
		t.Errorf("messages of a rank = %v sent, %v received; want %v", r.MessagesSent.Mean, r.MessagesReceived.Mean, want)
	}
	if r.MessagesSent.Coordinator != 3*calls || r.MessagesReceived.Coordinator != 3*calls || r.MessagesSent.Max != 4*calls {
		t.Errorf("messages sent = %+v, received = %+v; want 12 of rank 0 and at most 16", r.MessagesSent, r.MessagesReceived)
	}
	if got, least := r.BytesReceived.Coordinator, int64((ranks-1)*r.WireBytes*9/10); got < least || r.WireBytes < 100 {
		t.Errorf("rank 0 received %d bytes, plans of %d bytes; want at least %d", got, r.WireBytes, least)
	}
	if len(r.Phases) != 6 || len(r.Outside) != 2 || r.Seconds <= 0 || r.CoordinatorPeak <= 0 || r.OthersPeak <= 0 {
		t.Errorf("Tree = %+v; want times and peaks", r)
	}
	for name, s := range r.Phases {
		if s < 0 {
			t.Errorf("phase %s took %v s", name, s)
		}
	}
}

func TestTreeBenchReportsRankErrors(t *testing.T) {
	o := TreeOptions{PlanOptions: PlanOptions{Ranks: 3, Tensors: 1}}
	for claim, self := range map[string][]string{
		"no program": nil, "a missing program": {"./not-there"}, "a program that fails": {os.Args[0], childArg, "no job"},
	} {
		o.Self = self
		if _, err := Tree(t.Context(), o); err == nil {
			t.Errorf("%s: Tree = nil; want an error", claim)
		}
	}
	o.Ranks = 1
	if _, err := Tree(t.Context(), o); err == nil {
		t.Error("Tree of one rank = nil; want an error")
	}
}

func TestChildRefusesInvalidJobs(t *testing.T) {
	for _, job := range []string{"", "{}", `{"tree": 1}`} {
		if err := Child(t.Context(), job, os.Stdout); err == nil {
			t.Errorf("Child(%q) = nil; want an error", job)
		}
	}
}
