package blob

import (
	"fmt"
	"io/fs"
	"strings"
	"unicode"
)

const (
	// MaxName bounds the length of a name in bytes.
	MaxName = 1024
	// MaxElement bounds the length of what stands between two slashes of a
	// name, in bytes. File systems allow no more.
	MaxElement = 255
	// Reserved begins no element of a name, so that a store can keep things of
	// its own beside its objects.
	Reserved = ".cairn-tmp-"
)

// CheckName returns an error that wraps [ErrName] unless name is a relative,
// slash-separated path in plain form: not empty, at most [MaxName] bytes, valid
// UTF-8, no leading or trailing slash, no empty, "." or ".." element, none
// longer than [MaxElement] bytes or beginning with [Reserved], no NUL,
// backslash or other control character.
func CheckName(name string) error {
	if len(name) > MaxName {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrName, len(name), MaxName)
	}
	if name == "" {
		return fmt.Errorf("%w: empty", ErrName)
	}
	if !fs.ValidPath(name) || name == "." {
		return fmt.Errorf("%w: %q is not a plain relative path", ErrName, name)
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r == '\\' || unicode.IsControl(r) }) {
		return fmt.Errorf("%w: %q holds a backslash or control character", ErrName, name)
	}
	for e := range strings.SplitSeq(name, "/") {
		if len(e) > MaxElement {
			return fmt.Errorf("%w: element of %d bytes, at most %d", ErrName, len(e), MaxElement)
		}
		if strings.HasPrefix(e, Reserved) {
			return fmt.Errorf("%w: %q: %q is reserved", ErrName, name, Reserved)
		}
	}
	return nil
}

// CheckPrefix returns an error that wraps [ErrName] unless prefix is empty or
// some valid name can begin with it.
func CheckPrefix(prefix string) error {
	if prefix == "" || CheckName(prefix) == nil {
		return nil
	}
	// "a/" and "a/." are no names, but some names begin with them.
	if err := CheckName(prefix + "x"); err != nil {
		return fmt.Errorf("%w: no name begins with %.64q", ErrName, prefix)
	}
	return nil
}
