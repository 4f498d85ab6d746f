package run

import "testing"

func TestChain(t *testing.T) {
	var c Chain
	if b := c.Next("a"); b == nil || b.Folder != "" {
		t.Fatalf("the base of the first save is %+v; want one without a folder", b)
	}
	b := c.Next("b")
	if b == nil || b.Folder != "a" {
		t.Fatalf("the base of the second save is %+v; want a", b)
	}
	b.Paid(5_000, 100_000)
	if b = c.Next("b"); b == nil || b.Folder != "" {
		t.Fatalf("the base of a save that replaces the last one is %+v; want no folder", b)
	}
	c.Loaded("x")
	if b = c.Next("c"); b.Folder != "x" {
		t.Fatalf("the base after a load is %+v; want x", b)
	}
	b.Paid(99_000, 100_000)
	for i := range restSaves {
		if b := c.Next("d"); b != nil {
			t.Fatalf("save %d after a base that did not pay has the base %+v", i, b)
		}
	}
	if b := c.Next("e"); b == nil || b.Folder != "d" {
		t.Fatalf("the base is %+v; want d again", b)
	}
}
