package platform

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
)

// ErrUnknown reports a name that no platform of the list has.
var ErrUnknown = errors.New("unknown platform")

// Variable is the environment variable that [NameFromEnv] reads.
const Variable = "CAIRN_PLATFORM"

// Factory makes the platforms of one name.
type Factory struct {
	// Name is what the platform is called, in lower case.
	Name string
	// New returns the platform of this rank, whose groups are all made from
	// world. Nil stands for [group.Solo].
	New func(world group.Group) (Platform, error)
}

// Choose returns the factory of that name, in any case, from a list. The error
// for another name wraps [ErrUnknown] and lists those there are.
func Choose(name string, from ...Factory) (Factory, error) {
	var known []string
	for _, f := range from {
		if strings.EqualFold(f.Name, name) {
			return f, nil
		}
		known = append(known, f.Name)
	}
	return Factory{}, fmt.Errorf("platform %q: %w; known are %s", name, ErrUnknown, strings.Join(known, ", "))
}

// NameFromEnv returns the name that the environment variable CAIRN_PLATFORM
// holds, or fallback where it is empty. Nothing else in this package looks at
// the environment.
func NameFromEnv(fallback string) string {
	if name := os.Getenv(Variable); name != "" {
		return name
	}
	return fallback
}
