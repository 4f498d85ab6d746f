package ram

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob/hosts"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// A process of a host that is frozen, or has ended, does not hide the other processes of the host.
func TestReach(t *testing.T) {
	store := must.Get(atRoot(t).OpenLocal("llama"))(t)
	secret := []byte("secret")
	listen := func() net.Listener { return must.Get(net.Listen("tcp", "127.0.0.1:0"))(t) }
	deaf, ended, serving := listen(), listen(), listen()
	defer deaf.Close()
	ended.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { _ = hosts.Serve(ctx, serving, store, secret) })

	at := func(listeners ...net.Listener) *Host {
		h := &Host{ID: "a", Name: "n"}
		for _, l := range listeners {
			h.Addresses = append(h.Addresses, l.Addr().String())
		}
		return h
	}
	for name, c := range map[string]struct {
		host    *Host
		want    net.Listener
		answers bool
		refused bool
	}{
		"one process":                      {at(serving), serving, true, false},
		"the first one has ended":          {at(ended, serving), serving, true, false},
		"the first one is frozen":          {at(deaf, ended, serving), serving, true, false},
		"all have ended":                   {at(ended, ended), ended, false, true},
		"one has ended, and one is frozen": {at(ended, deaf), ended, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			got, err := c.host.Reach(t.Context(), secret)
			if got != c.want.Addr().String() || (err == nil) != c.answers || errors.Is(err, syscall.ECONNREFUSED) != c.refused {
				t.Errorf("Reach = %s, %v after %v; want %s, %v, refused: %v", got, err, time.Since(start), c.want.Addr(), c.answers, c.refused)
			}
		})
	}
	if _, err := (&Host{Addresses: []string{"", "no address"}}).Reach(t.Context(), secret); err == nil {
		t.Error("Reach of nonsense = nil")
	}
	if _, err := new(Host).Reach(t.Context(), secret); err == nil {
		t.Error("Reach of a host without an address = nil")
	}
}
