package group

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/internal/wire"
)

// A rank's result in a step travels to the others as a message: a value, as it is, or
// failures behind a mark. Values go without a mark, since they may be large and a mark would
// cost a copy; only one that begins like a mark gets one.
const (
	markFailures = 0xFF
	markValue    = 0xFE
)

// A verdict names every failed rank, but its size must not grow by a stack for
// each of thousands: with many failures their texts share textBudget, each
// keeping at least minText.
const (
	textBudget = 1 << 20
	minText    = 256
)

// failures are the failed ranks of a step with their errors.
type failures map[int]*RemoteError

func valueMessage(v []byte) []byte {
	if len(v) == 0 || v[0] < markValue {
		return v
	}
	return append([]byte{markValue}, v...)
}

// valueOf returns the value of a message, or false if it holds failures.
func valueOf(msg []byte) ([]byte, bool) {
	switch {
	case len(msg) > 0 && msg[0] == markFailures:
		return nil, false
	case len(msg) > 0 && msg[0] == markValue:
		return msg[1:], true
	}
	return msg, true
}

// EncodeOutcome returns a message that holds v, or err if that is not nil, in the
// form that steps use. It may return v itself.
func EncodeOutcome(v []byte, err error) []byte {
	if err == nil {
		return valueMessage(v)
	}
	return failures{0: NewRemoteError(err)}.message()
}

// DecodeOutcome returns the value of a message that [EncodeOutcome] made, which
// refers to msg, or its error as a [*RemoteError].
func DecodeOutcome(msg []byte) ([]byte, error) {
	if v, ok := valueOf(msg); ok {
		return v, nil
	}
	f, err := failuresOf(msg, 1)
	if err != nil {
		return nil, fmt.Errorf("outcome: %w", err)
	}
	return nil, f[0]
}

// message returns the failures as a message: their number, then rank and error
// of each, ranks ascending.
func (f failures) message() []byte {
	limit := max(minText, min(maxText, textBudget/max(1, len(f))))
	w := wire.Writer{B: []byte{markFailures}}
	w.Uvarint(uint64(len(f)))
	for _, rank := range slices.Sorted(maps.Keys(f)) {
		w.Uvarint(uint64(rank))
		e := RemoteError{Text: cut(f[rank].Text, limit), Codes: f[rank].Codes}
		e.put(&w)
	}
	return w.B
}

// failuresOf decodes the result of message, for a group of size ranks.
func failuresOf(msg []byte, size int) (failures, error) {
	r := wire.NewReader(msg)
	if r.Byte() != markFailures {
		r.Fail("no failures")
	}

	f := make(failures)
	last := -1
	for range r.CountMax(size) {
		rank := r.CountMax(size - 1)
		if rank <= last {
			r.Fail("rank %d after rank %d", rank, last)
		}
		last = rank
		f[rank] = getRemoteError(r)
		if r.Err() != nil {
			break
		}
	}

	if len(f) == 0 {
		r.Fail("no failures")
	}

	if err := r.Done(); err != nil {
		return nil, err
	}
	return f, nil
}
