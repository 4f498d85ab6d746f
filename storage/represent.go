package storage

import (
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// ErrNotRepresentable reports something that a format has no form for: an
// object, an element type, a name.
var ErrNotRepresentable = errors.New("the format cannot hold it")

// NotRepresentable is the error of one name that a format cannot hold. It wraps
// ErrNotRepresentable. Writers that find several return them joined, so that
// whoever asks learns of all of them at once.
type NotRepresentable struct {
	FQN string
	// Why says what it is that the format cannot hold.
	Why string
}

// Error returns the name and the reason.
func (e *NotRepresentable) Error() string {
	return fmt.Sprintf("%q: %v: %s", e.FQN, ErrNotRepresentable, e.Why)
}

// Unwrap returns ErrNotRepresentable.
func (e *NotRepresentable) Unwrap() error { return ErrNotRepresentable }

// ValueChecker is implemented by writers whose format cannot hold every value.
// What can be told from the plan alone a writer refuses in PrepareLocalPlan; what
// depends on the value is asked here, before anything is written.
type ValueChecker interface {
	// CheckValue returns an error, a *NotRepresentable where it is that, unless
	// the value that data encodes can be written. It may be called at any time,
	// from several goroutines at once.
	CheckValue(it *plan.WriteItem, data []byte) error
}

// MetadataChecker is implemented by writers whose format cannot hold everything
// that metadata says about a checkpoint as a whole.
type MetadataChecker interface {
	// CheckMetadata returns an error that wraps ErrNotRepresentable if the
	// format has no place for something in md apart from its entries, such as
	// planner data. It is called on the coordinator before anything is written.
	CheckMetadata(md *meta.Metadata) error
}

// RefusePlannerData is the CheckMetadata of a format that has no place for
// planner data.
func RefusePlannerData(format string, md *meta.Metadata) error {
	if md.PlannerData == nil {
		return nil
	}
	return fmt.Errorf("planner data: %w: the format %s has no place for it", ErrNotRepresentable, format)
}
