package grouptest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cairn-ckpt/cairn/group"
)

// errUnknown is not registered, so that only the rank where it happened finds
// it in the chain.
var errUnknown = errors.New("error that nobody registered")

// mishap is a way for a step to fail.
type mishap struct {
	name  string
	steps []string // in which it can happen
	// at sets the hook where it happens.
	at func(h *hooks, fail func(rank int) error)
	// fail makes it happen; cancel ends the context of this rank.
	fail    func(cancel func()) error
	targets []error
	// root says that it happens on rank 0, whichever rank it is about.
	root bool
	// keeps says that the failing rank finds the error itself in the chain.
	keeps bool
	// first says that the first of several to happen may be the only one named.
	first bool
}

var (
	withLocal  = []string{"ReduceScatter", "AllReduce", "Each"}
	withReduce = []string{"ReduceScatter", "AllReduce"}
	withResult = []string{"ReduceScatter", "AllReduce", "Broadcast"}
)

func atLocal(h *hooks, fail func(int) error) {
	h.local = func(_ context.Context, me int) error { return fail(me) }
}

func atGlobal(h *hooks, fail func(int) error) {
	h.global = func(context.Context) error { return fail(0) }
}

func atEncodeLocal(h *hooks, fail func(int) error) { h.encodeLocal = fail }
func atDecodeLocal(h *hooks, fail func(int) error) { h.decodeLocal = fail }
func atEncodeResult(h *hooks, fail func(int) error) {
	h.encodeResult = func(int) error { return fail(0) }
}
func atDecodeResult(h *hooks, fail func(int) error) { h.decodeResult = fail }

func plain(func()) error    { return errUnknown }
func panics(func()) error   { panic(errUnknown) }
func sentinel(func()) error { return fmt.Errorf("open shard: %w", fs.ErrNotExist) }
func ends(cancel func()) error {
	cancel()
	return context.Canceled
}

var mishaps = []mishap{
	{name: "local error", steps: withLocal, at: atLocal, fail: plain, keeps: true},
	{name: "local sentinel", steps: withLocal, at: atLocal, fail: sentinel, targets: []error{fs.ErrNotExist}},
	{name: "local panic", steps: withLocal, at: atLocal, fail: panics, targets: []error{group.ErrPanic}, keeps: true},
	{name: "local cancelled", steps: withLocal, at: atLocal, fail: ends, targets: []error{context.Canceled}, first: true},
	{name: "encode error", steps: withReduce, at: atEncodeLocal, fail: plain, keeps: true},
	{name: "encode panic", steps: withReduce, at: atEncodeLocal, fail: panics, targets: []error{group.ErrPanic}, keeps: true},
	{name: "decode error", steps: withReduce, at: atDecodeLocal, fail: sentinel, targets: []error{fs.ErrNotExist}},
	{name: "decode panic", steps: withReduce, at: atDecodeLocal, fail: panics, targets: []error{group.ErrPanic}},
	{name: "global error", steps: withResult, at: atGlobal, fail: plain, root: true, keeps: true},
	{name: "global sentinel", steps: withResult, at: atGlobal, fail: sentinel, root: true, targets: []error{fs.ErrNotExist}},
	{name: "global panic", steps: withResult, at: atGlobal, fail: panics, root: true, targets: []error{group.ErrPanic}, keeps: true},
	{name: "global cancelled", steps: withResult, at: atGlobal, fail: ends, root: true, targets: []error{context.Canceled}},
	{name: "result encode error", steps: withResult, at: atEncodeResult, fail: plain, root: true, keeps: true},
	{name: "result decode error", steps: withResult, at: atDecodeResult, fail: plain, keeps: true},
	{name: "result decode panic", steps: withResult, at: atDecodeResult, fail: panics, targets: []error{group.ErrPanic}, keeps: true},
	{name: "result decode cancelled", steps: withResult, at: atDecodeResult, fail: ends, targets: []error{context.Canceled}, first: true},
	{
		name: "too many results", steps: []string{"ReduceScatter"}, root: true, targets: []error{group.ErrInvalid},
		at: func(h *hooks, _ func(int) error) { h.extra = 1 },
	},
	{
		name: "too few results", steps: []string{"ReduceScatter"}, root: true, targets: []error{group.ErrInvalid},
		at: func(h *hooks, _ func(int) error) { h.extra = -1 },
	},
}

// failing returns the sets of ranks to let it happen on: the first, a middle
// one, the last, several, all.
func (m mishap) failing(n int) [][]int {
	if m.root {
		return [][]int{{0}}
	}
	sets := [][]int{{0}, {n / 2}, {n - 1}, {0, n - 1}, {n / 2, n - 1}, ascending(n)}
	for i, set := range sets {
		sets[i] = slices.Compact(set)
	}
	slices.SortFunc(sets, slices.Compare)
	return slices.CompactFunc(sets, slices.Equal)
}

// hooks returns the hooks of rank me that let it happen on ranks.
func (m mishap) hooks(ranks []int, me int, cancel func()) hooks {
	var h hooks
	m.at(&h, func(rank int) error {
		if !slices.Contains(ranks, rank) {
			return nil
		}
		return m.fail(cancel)
	})
	return h
}

// blamed returns the ranks that the error must name.
func (m mishap) blamed(ranks []int) []int {
	if m.root {
		return []int{0}
	}
	return ranks
}

func subset(a, b []int) bool {
	return !slices.ContainsFunc(a, func(r int) bool { return !slices.Contains(b, r) })
}
