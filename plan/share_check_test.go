package plan_test

import (
	"errors"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

func TestCheckRefusesShares(t *testing.T) {
	md := &meta.Metadata{}
	described(md, "a", []int64{8, 4}, 0, true)
	md.Entries = append(md.Entries, meta.Entry{FQN: "v", Bytes: &meta.Bytes{Size: 100}})
	p := wants(t, md, plan.State{"a": hollow(t, 8, 4), "v": 1})[0]
	good := plan.Piece{ID: 1, Reader: 1, To: []int{0, 2}}
	with := func(change func(c *plan.Piece)) *plan.SharedReads {
		c := good
		change(&c)
		return &plan.SharedReads{Pieces: []plan.Piece{c}}
	}
	must.Do(t, with(func(*plan.Piece) {}).Check(p, 1, 3))
	strip := func(change func(s *plan.SharedReads)) *plan.SharedReads {
		s := &plan.SharedReads{Pieces: []plan.Piece{{ID: 1, Reader: 1}}, Strips: []plan.Strip{{
			Source: meta.Index{FQN: "a"}, Offsets: []int64{0, 0}, Lengths: []int64{8, 4},
			Parts: []plan.StripPart{
				{ID: 1, To: 1, Offsets: []int64{0, 0}, Lengths: []int64{8, 4}}, {ID: 2, To: 0, Offsets: []int64{0, 1}, Lengths: []int64{8, 3}},
			},
		}}}
		change(s)
		return s
	}
	must.Do(t, strip(func(*plan.SharedReads) {}).Check(p, 1, 3))
	for name, s := range map[string]*plan.SharedReads{
		"a strip without parts":    strip(func(s *plan.SharedReads) { s.Strips[0].Parts = nil }),
		"a strip at -1":            strip(func(s *plan.SharedReads) { s.Strips[0].Offsets = []int64{0, -1} }),
		"a strip of -1":            strip(func(s *plan.SharedReads) { s.Strips[0].Lengths = []int64{8, -4} }),
		"a part outside":           strip(func(s *plan.SharedReads) { s.Strips[0].Parts[1].Offsets = []int64{0, 2} }),
		"a part of another shape":  strip(func(s *plan.SharedReads) { s.Strips[0].Parts[0].Lengths = []int64{8, 3} }),
		"a part for nobody":        strip(func(s *plan.SharedReads) { s.Strips[0].Parts[1].To = 3 }),
		"a part that is not asked": strip(func(s *plan.SharedReads) { s.Strips[0].Parts[1].To = 1 }),
		"a part that is sent":      strip(func(s *plan.SharedReads) { s.Pieces[0].To = []int{0} }),
		"a part of another reader": strip(func(s *plan.SharedReads) { s.Pieces[0].Reader = 0 }),
		"no such item":             with(func(c *plan.Piece) { c.Item = 2 }),
		"a negative item":          with(func(c *plan.Piece) { c.Item = -1 }),
		"a negative number":        with(func(c *plan.Piece) { c.ID = -1 }),
		"a value":                  with(func(c *plan.Piece) { c.Item = 1 }),
		"no such reader":           with(func(c *plan.Piece) { c.Reader, c.To = 3, nil }),
		"another reader's list":    with(func(c *plan.Piece) { c.Reader = 0 }),
		"a reader for itself":      with(func(c *plan.Piece) { c.To = nil }),
		"a reader that is sent":    with(func(c *plan.Piece) { c.To = []int{1, 2} }),
		"no such rank":             with(func(c *plan.Piece) { c.To = []int{3} }),
		"a rank twice":             with(func(c *plan.Piece) { c.To = []int{2, 2} }),
		"rows that are missing":    with(func(c *plan.Piece) { c.Rows = [2]int64{0, 7} }),
		"rows that are not there":  with(func(c *plan.Piece) { c.Rows = [2]int64{0, 9} }),
		"a piece twice":            {Pieces: []plan.Piece{good, good}},
		"an item twice":            {Pieces: []plan.Piece{good, {ID: 2, Reader: 1, To: []int{0}}}},
		"rows twice":               {Pieces: []plan.Piece{{Rows: [2]int64{0, 5}}, {ID: 1, Rows: [2]int64{4, 8}}}},
	} {
		if err := s.Check(p, 1, 3); !errors.Is(err, plan.ErrProtocol) {
			t.Errorf("%s: Check = %v; want ErrProtocol", name, err)
		}
	}
}

type sharer struct {
	plan.DefaultLoad
	can bool
}

func (s *sharer) CanShare() bool { return s.can }

func TestCanShare(t *testing.T) {
	type embeds struct{ plan.DefaultLoad }
	for _, c := range []struct {
		p    plan.LoadPlanner
		want bool
	}{{new(plan.DefaultLoad), true}, {new(embeds), false}, {&sharer{can: true}, true}, {&sharer{}, false}} {
		if got := plan.CanShare(c.p); got != c.want {
			t.Errorf("CanShare(%T) = %v; want %v", c.p, got, c.want)
		}
	}
}
