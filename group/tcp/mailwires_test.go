package tcp

import (
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// connected returns the ranks that m has dialled.
func connected(m *mail) []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ranks []int
	for r := range m.dialled {
		ranks = append(ranks, r)
	}
	slices.Sort(ranks)
	return ranks
}

// When the number of connections reaches its limit, the least recently used idle ones end.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	cfg := pairConfig(t)
	cfg.Size = 6
	gs := several(t, cfg)
	m := gs[0].host.mail
	m.keep = 3
	send := func(to, tag int) {
		t.Helper()
		must.Do(t, gs[0].Send(limited(t), to, tag, []byte{byte(to)}))
	}
	recv := func(at, tag int) {
		t.Helper()
		if got, err := gs[at].Recv(limited(t), 0, tag); err != nil || !slices.Equal(got, []byte{byte(at)}) {
			t.Fatalf("Recv = %v, %v", got, err)
		}
		until(t, "the room is granted", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.out[gs[0].lane(at, tag)] == nil
		})
	}
	send(1, 7) // received at the end: its connection stays
	for _, step := range []struct {
		to   int
		want []int
	}{{2, []int{1, 2}}, {3, []int{1, 2, 3}}, {2, []int{1, 2, 3}}, {4, []int{1, 2, 4}}, {5, []int{1, 4, 5}}, {3, []int{1, 3, 5}}} {
		send(step.to, 0)
		recv(step.to, 0)
		if got := connected(m); !slices.Equal(got, step.want) {
			t.Errorf("connections after a message to %d: %v; want %v", step.to, got, step.want)
		}
	}
	recv(1, 7)
	// Those that are in use are not ended for others.
	for to := 1; to < 6; to++ {
		send(to, 8)
	}
	if got := connected(m); len(got) != 5 {
		t.Errorf("connections with messages under way: %v; want all", got)
	}
	for to := 1; to < 6; to++ {
		recv(to, 8)
	}
	errs := make(chan error, len(gs))
	for _, g := range gs {
		go func() { errs <- g.Barrier(limited(t)) }()
	}
	for range gs {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
