//go:build unix

package deaths

import "github.com/cairn-ckpt/cairn"

// trap goes off when a rank comes to a point.
type trap struct {
	at  string
	die func()
}

func (t trap) enter(point string) error {
	if point == t.at {
		t.die()
	}
	return nil
}

// counter is a value that comes from a method.
type counter struct {
	n int64
	trap
}

var _ cairn.Stateful = (*counter)(nil)

func (c *counter) State() (cairn.State, error) {
	return cairn.State{"n": c.n}, c.enter("stateful.State")
}

func (c *counter) LoadState(s cairn.State) error {
	c.n = s["n"].(int64)
	return c.enter("stateful.Load")
}
