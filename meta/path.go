package meta

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Path is a place in a nested state: the keys and positions from the outermost
// map inwards.
type Path []Step

// Step is one key of a map or one position in a list.
type Step struct {
	// Key is the map's key. It is meaningless when List is set.
	Key string
	// Pos is the position in a list, valid when List is set.
	Pos  int
	List bool
}

// Key returns the step into a map.
func Key(k string) Step { return Step{Key: k} }

// Pos returns the step into a list.
func Pos(i int) Step { return Step{Pos: i, List: true} }

// String returns the key, or the position in decimal.
func (s Step) String() string {
	if s.List {
		return fmt.Sprint(s.Pos)
	}
	return s.Key
}

// FQN joins the steps by dots.
func (p Path) FQN() string {
	parts := make([]string, len(p))
	for i, s := range p {
		parts[i] = s.String()
	}
	return strings.Join(parts, ".")
}

// Equal reports whether p and q have the same steps.
func (p Path) Equal(q Path) bool { return slices.Equal(p, q) }

// MaxFQN bounds the length of a name in bytes.
const MaxFQN = 4096

// CheckFQN returns an error that wraps [ErrInvalid] unless fqn can be the name
// of an entry: not empty, at most [MaxFQN] bytes of valid UTF-8.
func CheckFQN(fqn string) error {
	if fqn == "" || len(fqn) > MaxFQN {
		return fmt.Errorf("%w: a name has 1 to %d bytes, this one %d", ErrInvalid, MaxFQN, len(fqn))
	}
	if !utf8.ValidString(fqn) {
		return fmt.Errorf("%w: name %q is not UTF-8", ErrInvalid, fqn)
	}
	return nil
}
