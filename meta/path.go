package meta

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
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
	// Int says that the key is an integer, and Key its decimal form without a plus or
	// leading zeros. Maps of Go and Python have such keys; formats without them, such
	// as PyTorch DCP, take them for strings.
	Int bool
}

// Key returns the step into a map.
func Key(k string) Step { return Step{Key: k} }

// IntKey returns the step into a map by integers.
func IntKey(k int64) Step { return Step{Key: strconv.FormatInt(k, 10), Int: true} }

// Pos returns the step into a list.
func Pos(i int) Step { return Step{Pos: i, List: true} }

// String returns the key, or the position in decimal.
func (s Step) String() string {
	if s.List {
		return fmt.Sprint(s.Pos)
	}
	return s.Key
}

// Check returns an error that wraps [ErrInvalid] unless the step is valid: a position
// is not negative and not a key, an integer is in decimal form of at most [MaxFQN]
// digits.
func (s Step) Check() error {
	if text := s.problem(); text != "" {
		return fmt.Errorf("%w: %s", ErrInvalid, text)
	}
	return nil
}

// problem describes the mistake in the step, or returns "".
func (s Step) problem() string {
	switch {
	case s.List && s.Pos < 0:
		return fmt.Sprintf("position %d in its path", s.Pos)
	case s.List && s.Int:
		return "a position that is a key in its path"
	case s.Int && !isInteger(s.Key):
		return fmt.Sprintf("key %q in its path, which is not an integer", s.Key)
	}
	return ""
}

// isInteger reports whether s is the decimal form of an integer.
func isInteger(s string) bool {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return strconv.FormatInt(n, 10) == s
	}
	if len(s) > MaxFQN {
		return false
	}
	n, ok := new(big.Int).SetString(s, 10)
	return ok && n.String() == s
}

// FQN joins the steps by dots. It does not show the kinds of the steps.
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
