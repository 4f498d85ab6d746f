package pickle

import (
	"context"
	"fmt"
)

// Limits bound what a pickle may ask for. A zero field means its default.
type Limits struct {
	// Depth bounds how deeply values lie in each other. Zero: 1000.
	Depth int
	// Memory bounds the memory that decoding takes, and the work, in bytes that
	// are made or looked at, estimated. Zero: 64 MiB and 40 times the size of
	// the pickle.
	Memory int64
	// Bytes bounds the size of the value when it is written out in full, with
	// every shared part wherever it stands, at 16 bytes a value and one for each
	// byte of a string: a walk over the value that does not notice sharing ends
	// as soon. Zero: the default of Memory.
	Bytes int64
	// Context ends the decoding with its cause when it is done. Nil: nothing
	// does.
	Context context.Context
}

func (l *Limits) withDefaults(input int) Limits {
	var out Limits
	if l != nil {
		out = *l
	}
	if out.Depth <= 0 {
		out.Depth = 1000
	}
	bound := 64<<20 + 40*int64(input)
	if out.Memory <= 0 {
		out.Memory = bound
	}
	if out.Bytes <= 0 {
		out.Bytes = bound
	}
	return out
}

// maxBig bounds the bytes of an integer: printing takes more than linear time,
// and package value stores at most 10,000 digits.
const maxBig = 4096

// account counts the memory and work that a pickle may still take. It detects any
// pickle whose value grows faster than its input.
type account struct {
	ctx   context.Context // of the whole decoding
	limit int64
	left  int64
	// pause is what is left when ctx is asked next.
	pause int64
}

// stride is how much is charged between two looks at the context.
const stride = 1 << 20

func newAccount(l *Limits) account {
	return account{ctx: l.Context, limit: l.Memory, left: l.Memory, pause: l.Memory}
}

// charge takes n bytes of the account.
func (a *account) charge(n int) error {
	if a.left -= int64(n); a.left >= a.pause {
		return nil
	}
	return a.look()
}

// refund gives back what was charged for n bytes that are garbage now.
func (a *account) refund(n int) { a.left += int64(n) }

func (a *account) look() error {
	if a.left < 0 {
		return fmt.Errorf("%w: it takes more than %d bytes of memory, or more steps than that", ErrLimit, a.limit)
	}
	a.pause = max(0, a.left-stride)
	if a.ctx != nil {
		return context.Cause(a.ctx)
	}
	return nil
}

// The memory that values take, in bytes.
const (
	cellBytes   = 8
	spanBytes   = 16
	seqBytes    = 32
	objectBytes = 48
	globalBytes = 160 // with its object
	anyBytes    = 16  // a place for a value
	boxBytes    = 24  // a slice behind such a place
	madeBytes   = 96  // an entry of builder.made
	foreign     = 256 // what a caller's function makes
	valueObject = 144 // a value.Object
	valueDict   = 40  // a value.Dict or value.Set
	pairBytes   = 32  // of a value.Dict
	seenBytes   = 48  // of a key while keys are compared
)

// mapBytes returns what a map[string]any of n entries takes.
func mapBytes(n int) int {
	switch {
	case n == 0:
		return 48
	case n <= 8:
		return 336
	}
	return 48 + 64*n
}
