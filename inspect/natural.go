package inspect

import (
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
)

// Natural compares names so that numbers in them are in order: layers.2 is before
// layers.10.
func Natural(a, b string) int {
	whole := strings.Compare(a, b)
	for a != "" && b != "" {
		i, j := leadingDigits(a), leadingDigits(b)
		if i > 0 && j > 0 {
			x, y := strings.TrimLeft(a[:i], "0"), strings.TrimLeft(b[:j], "0")
			if len(x) != len(y) {
				return len(x) - len(y)
			}
			if c := strings.Compare(x, y); c != 0 {
				return c
			}
			a, b = a[i:], b[j:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return whole
}

// leadingDigits returns the number of digits at the beginning of s.
func leadingDigits(s string) int {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return i
}

// Beside returns the entries before and after a name in natural order, or nil.
func Beside(md *meta.Metadata, fqn string) (before, after *meta.Entry) {
	for i := range md.Entries {
		e := &md.Entries[i]
		switch c := Natural(e.FQN, fqn); {
		case c < 0 && (before == nil || Natural(e.FQN, before.FQN) > 0):
			before = e
		case c > 0 && (after == nil || Natural(e.FQN, after.FQN) < 0):
			after = e
		}
	}
	return before, after
}
