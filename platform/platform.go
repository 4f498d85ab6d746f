// Package platform is the interface between training code and its environment: ranks and
// groups, collectives on bytes and on tensors, tensor memory, copies for background saves,
// streams of background work, state files, profiler regions. It does not depend on any
// implementation: a caller opens a platform by its name, from a list of its own. Every
// platform has the core, [Platform]; [As] finds the optional capabilities. The contracts are
// at the interfaces, and package platformtest tests them.
//
// # Ranks
//
// Lists of ranks, as for [Groups], are global: numbers in [Groups.World]. Roots
// and peers, as for [ObjectComm], are numbers in the group of the call, as in
// package group. [Group.GlobalRank] and [Group.LocalRank] convert between the two.
//
// # Functions
//
// Work that needs no platform is a function, here or in package tensor: walking through
// nested values, cutting a batch, casting, joining and cutting tensors. docs/platform.md
// lists the function or method for each method of hyper_parallel.
package platform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
)

// Platform is the core that every platform has. It belongs to one rank. Methods are
// for one goroutine at a time, unless a capability says otherwise.
type Platform interface {
	// Name returns the name by which the platform is chosen.
	Name() string
	Groups
	ObjectComm
}

// Wrapper is implemented by platforms that add something to another one.
type Wrapper interface {
	// Unwrap returns the wrapped platform.
	Unwrap() Platform
}

// As returns the capability T of p, or of the first platform that p wraps which
// has it. Otherwise the error names the platform and the capability and wraps
// [errors.ErrUnsupported], as may a single call of a capability.
func As[T any](p Platform) (T, error) {
	name := "none"
	if p != nil {
		name = p.Name()
	}

	for p != nil {
		if t, ok := p.(T); ok {
			return t, nil
		}
		w, ok := p.(Wrapper)
		if !ok {
			break
		}
		p = w.Unwrap()
	}

	var none T
	return none, fmt.Errorf("platform %s: %v: %w", name, reflect.TypeFor[T](), errors.ErrUnsupported)
}

// ErrUnknown reports a name that no platform of the list has.
var ErrUnknown = errors.New("unknown platform")

// Variable is the environment variable that [NameFromEnv] reads.
const Variable = "CAIRN_PLATFORM"

// Factory makes the platforms of one name.
type Factory struct {
	// Name is the name of the platform, in lower case.
	Name string
	// New returns the platform of this rank. It makes all groups from world. Nil stands for
	// [group.Solo].
	New func(world group.Group) (Platform, error)
}

// Open returns the platform of that name, in upper or lower case, for this rank of
// world; a nil world means [group.Solo]. If the list has no such name, the error wraps
// [ErrUnknown] and lists the known names.
func Open(name string, world group.Group, from ...Factory) (Platform, error) {
	var known []string
	for _, f := range from {
		if strings.EqualFold(f.Name, name) {
			return f.New(world)
		}
		known = append(known, f.Name)
	}
	return nil, fmt.Errorf("platform %q: %w; known are %s", name, ErrUnknown, strings.Join(known, ", "))
}

// NameFromEnv returns the name that the environment variable CAIRN_PLATFORM holds, or
// fallback if it is empty. No other function of this package reads the environment.
func NameFromEnv(fallback string) string {
	if name := os.Getenv(Variable); name != "" {
		return name
	}
	return fallback
}

// Profiler is the capability of platforms that profile named regions.
type Profiler interface {
	// Region begins a region and returns a context for the code inside it and the
	// function that ends it. Regions nest: the last one ends first, in the goroutine
	// that began it. It is safe for concurrent use.
	Region(ctx context.Context, name string) (context.Context, func())
}

// Region begins a region if p is a [Profiler]; otherwise it has no effect.
func Region(ctx context.Context, p Platform, name string) (context.Context, func()) {
	prof, err := As[Profiler](p)
	if err != nil {
		return ctx, func() {}
	}
	return prof.Region(ctx, name)
}
