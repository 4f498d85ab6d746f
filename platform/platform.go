package platform

import (
	"errors"
	"fmt"
	"reflect"
)

// Platform is what every platform has. It belongs to one rank. Methods are for
// one goroutine at a time, except where a capability says otherwise.
type Platform interface {
	// Name returns the name by which the platform is chosen.
	Name() string
	Groups
	Barrierer
	ObjectComm
}

// Wrapper is implemented by platforms that add something to another one.
type Wrapper interface {
	// Unwrap returns the wrapped platform.
	Unwrap() Platform
}

// As returns the capability T of p, or of the first platform that p wraps which
// has it. Where there is none the error names the platform and the capability
// and wraps [errors.ErrUnsupported]. A capability may answer the same for a
// single call that it cannot serve.
func As[T any](p Platform) (T, error) {
	for at := p; at != nil; {
		if t, ok := at.(T); ok {
			return t, nil
		}
		w, ok := at.(Wrapper)
		if !ok {
			break
		}
		at = w.Unwrap()
	}
	var none T
	if p == nil {
		return none, fmt.Errorf("no platform: %v: %w", reflect.TypeFor[T](), errors.ErrUnsupported)
	}
	return none, fmt.Errorf("platform %s: %v: %w", p.Name(), reflect.TypeFor[T](), errors.ErrUnsupported)
}
