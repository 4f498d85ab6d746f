package saver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// joinTime bounds how long savers wait for each other.
const joinTime = 2 * time.Minute

// peers are the savers of all ranks, once they have met.
type peers struct {
	*scope

	mu      sync.Mutex
	joined  bool        // the trainer has asked for the meeting; guarded by mu
	group   group.Group // for saves; nil: the savers have not met; guarded by mu
	uploads group.Group // the same ranks, for uploads; guarded by mu
	copies  group.Group // the same ranks, for copies in memory; guarded by mu
	hosts   group.Group // the same ranks, for the hosts of runs in memory; guarded by mu
	toward  string      // the address of rank 0; empty: all savers are on this host; guarded by mu
	close   func()      // ends the groups; guarded by mu
	shares  shares      // groups of the same ranks, for shared loads
}

// groups returns the groups for saves and for uploads. They are nil if the savers have not met.
func (p *peers) groups() (saves, uploads group.Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.group, p.uploads
}

// forMemory returns the groups for the hosts of runs in memory and for copies, which are nil if the
// savers have not met, and the address of rank 0, which is empty if all savers are on this host.
func (p *peers) forMemory() (hosts, copies group.Group, toward string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hosts, p.copies, p.toward
}

// asked reports whether the trainer has asked for the meeting.
func (p *peers) asked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.joined
}

// leave leaves the groups.
func (p *peers) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.close != nil {
		p.close()
	}
}

// meeting is how the savers find rank 0: the trainers pass its address on.
type meeting struct {
	place    string
	announce func(addr string)
	address  string
}

var _ tcp.Rendezvous = (*meeting)(nil)

func (m *meeting) Slot(context.Context) (int, int, error) { return 0, 0, errors.ErrUnsupported }
func (m *meeting) Place() (string, error)                 { return m.place, nil }
func (m *meeting) Find(context.Context) (string, error)   { return m.address, nil }
func (m *meeting) Close() error                           { return nil }
func (m *meeting) Announce(_ context.Context, addr string) error {
	m.announce(addr)
	return nil
}

// listen makes this saver rank 0: it listens, sends its address to the trainer, and
// waits for the other savers.
func (p *peers) listen(b *listenBody) error {
	m := &meeting{place: b.Address, announce: func(addr string) { p.link.send(typeListening, listeningBody{addr}) }}
	if m.place == "" {
		m.place = "127.0.0.1:0"
	}
	return p.meet(m, 0, b.Size, b.Secret, b.Job)
}

// join joins the group of savers. A group of one rank is complete at once; rank 0 of
// several listens.
func (p *peers) join(b *joinBody) error {
	if b.Size == 1 && b.Rank == 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.joined {
			return fmt.Errorf("%w: join after listen or join", ErrMessage)
		}
		p.joined, p.group, p.uploads, p.copies, p.hosts = true, group.Solo(), group.Solo(), group.Solo(), group.Solo()
		p.shares.set([]group.Group{group.Solo()})
		p.link.send(typeJoined, joinedBody{})
		return nil
	}
	if b.Rank < 1 || b.Rank >= b.Size || b.Address == "" {
		return fmt.Errorf("%w: rank %d of %d joins at %q", ErrMessage, b.Rank, b.Size, b.Address)
	}
	return p.meet(&meeting{address: b.Address}, b.Rank, b.Size, b.Secret, b.Job)
}

// meet joins the group of savers in the background, and answers the trainer.
func (p *peers) meet(m *meeting, rank, size int, secret []byte, job string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.joined || size < 2 || len(secret) == 0 {
		return fmt.Errorf("%w: rank %d of %d joins, with a secret of %d bytes; joined before: %v", ErrMessage, rank, size, len(secret), p.joined)
	}

	p.joined, p.toward = true, cmp.Or(m.address, m.place)
	p.work.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, joinTime)
		defer cancel()
		err := p.joinGroups(ctx, tcp.Config{Meet: m, Rank: rank, Size: size, Secret: secret, Job: job, Logger: p.Logger})
		if err != nil {
			p.link.send(typeFailed, failedBody{Error: saverError(err)})
			return
		}
		p.link.send(typeJoined, joinedBody{})
	})
	return nil
}

// joinGroups makes the group for saves, a group for uploads, and the groups for shared loads.
func (p *peers) joinGroups(ctx context.Context, c tcp.Config) error {
	g, err := tcp.Join(ctx, c)
	if err != nil {
		return err
	}

	more := make([]group.Group, 3+sharedLoads)
	for i := range more {
		if more[i], err = SameRanks(ctx, g); err != nil {
			g.Close()
			return err
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	p.group, p.uploads, p.copies, p.hosts, p.close = g, more[0], more[1], more[2], func() { g.Close() }
	p.shares.set(more[3:])
	return nil
}
