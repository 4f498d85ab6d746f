package memory

import (
	"slices"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob/ram"
)

// The secret of the newest hosts of the run counts: hosts that left later know no other one. The ranks of
// a host are one host, and hosts of earlier starts are listed as left.
func TestMeet(t *testing.T) {
	at := func(id, address string) ram.Host {
		return ram.Host{ID: id, Name: "n-" + id, Addresses: []string{address}}
	}
	got := meet([]arrival{
		{Host: at("a", "h1:1"), Secret: []byte("old"), Epoch: 1, Known: []ram.Host{at("a", "h1:0")}},
		{Host: at("b", "h2:1"), Secret: []byte("new"), Epoch: 3, Known: []ram.Host{at("b", "h2:0"), at("c", "h3:0")}},
		{Host: at("b", "h2:2"), Secret: []byte("new"), Epoch: 3},
		{Host: at("d", "h4:1")},
	}, time.UnixMicro(2))
	m := got.Members
	if string(m.Secret) != "new" || m.Epoch != 4 || !slices.Equal(got.Latest, []string{"b"}) {
		t.Errorf("meet = %+v", got)
	}
	var here, left []string
	for _, h := range m.Hosts {
		if h.Left {
			left = append(left, h.ID)
		} else {
			here = append(here, h.ID)
		}
		if h.ID == "b" && !slices.Equal(h.Addresses, []string{"h2:1", "h2:2"}) {
			t.Errorf("host b has the addresses %q", h.Addresses)
		}
	}
	if !slices.Equal(here, []string{"a", "b", "d"}) || !slices.Equal(left, []string{"c"}) {
		t.Errorf("hosts %q, and %q have left", here, left)
	}
	if first := meet([]arrival{{Host: at("a", "h1:1")}}, time.UnixMicro(7)); len(first.Members.Secret) != 32 || first.Members.Epoch != 7 {
		t.Errorf("the first meeting gives %+v", first)
	}
}

// Of hosts that were separated, the ones with the last checkpoint that had its copies count, however many jobs
// without one have held the run on the others.
func TestMeetAfterASeparation(t *testing.T) {
	arrive := func(id string, epoch, confirmed int64) arrival {
		return arrival{Host: ram.Host{ID: id, Addresses: []string{id}}, Secret: []byte(id), Epoch: epoch, Confirmed: confirmed}
	}
	for name, c := range map[string]struct {
		all  []arrival
		want []string
	}{
		"more jobs without a checkpoint": {[]arrival{arrive("a", 9, 3), arrive("b", 5, 5), arrive("c", 9, 3), arrive("d", 5, 5)}, []string{"b", "d"}},
		"a later checkpoint":             {[]arrival{arrive("a", 9, 9), arrive("b", 5, 5)}, []string{"a"}},
		"no new checkpoint":              {[]arrival{arrive("a", 9, 3), arrive("b", 5, 3)}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := meet(c.all, time.UnixMicro(2))
			if !slices.Equal(m.Latest, c.want) || m.Members.Epoch != 10 || m.Members.Confirmed < 3 || string(m.Members.Secret) != c.want[0] {
				t.Errorf("meet = %+v; want the hosts %q", m, c.want)
			}
		})
	}
}
