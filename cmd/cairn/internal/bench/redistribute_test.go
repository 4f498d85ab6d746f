package bench

import (
	"strings"
	"testing"
)

func TestRedistributeBench(t *testing.T) {
	r, err := Redistribute(t.Context(), RedistributeOptions{Bytes: 100_000, Ranks: 3, Repeat: 2, Self: self})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) != 3 || r.Ranks != 3 || r.Repeat != 2 {
		t.Fatalf("Redistribute = %+v; want three cases", r)
	}
	for _, c := range r.Cases {
		if c.Tensors < 1 || c.Bytes < 100_000 || c.Rate <= 0 || c.Plain <= 0 || c.Ratio <= 0 {
			t.Errorf("case %+v; want figures", c)
		}
	}
	// A rank that holds a third of a matrix holds a ninth of what it wants, and two
	// thirds of a replica come from others.
	columns, replicas := r.Cases[0], r.Cases[1]
	if columns.Moved != columns.Bytes*2/3 || replicas.Moved != replicas.Bytes*2 {
		t.Errorf("moved %d and %d bytes of a matrix of %d; want two thirds, and all of it twice", columns.Moved, replicas.Moved, columns.Bytes)
	}
}

func TestRedistributeBenchReportsErrors(t *testing.T) {
	o := RedistributeOptions{Bytes: 1, Ranks: 1, Repeat: 1, Self: self}
	if _, err := Redistribute(t.Context(), o); err == nil {
		t.Error("Redistribute of one rank = nil; want an error")
	}
	o.Ranks, o.Self = 2, append(self[:2:2], "no job")
	if _, err := Redistribute(t.Context(), o); err == nil || !strings.Contains(err.Error(), "job of a process") {
		t.Errorf("Redistribute whose processes fail = %v; want the output of one of them", err)
	}
}
