package engine

import (
	"fmt"
	"slices"

	"github.com/cairn-ckpt/cairn/plan"
)

// Planners, writers and readers may be a caller's own. What they return is
// checked here, so that a mistake in them is an error that names the method.

// given returns the result of call, or an error if that is nil.
func given[T any](what string, call func() (*T, error)) (*T, error) {
	v, err := call()
	if err == nil && v == nil {
		err = fmt.Errorf("%w: %s returned nil and no error", plan.ErrProtocol, what)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// givenAll is given for a list with one value for each rank.
func givenAll[T any](what string, ranks int, call func() ([]*T, error)) ([]*T, error) {
	list, err := call()
	if err == nil && len(list) != ranks {
		err = fmt.Errorf("%w: %s returned %d plans for %d ranks", plan.ErrProtocol, what, len(list), ranks)
	}
	if i := slices.Index(list, nil); err == nil && i >= 0 {
		err = fmt.Errorf("%w: %s returned no plan for rank %d", plan.ErrProtocol, what, i)
	}
	if err != nil {
		return nil, err
	}
	return list, nil
}
