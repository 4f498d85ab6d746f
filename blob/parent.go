package blob

import (
	"errors"
	"path"
	"strings"
)

// Child is a capability of stores that are folders of a larger store.
type Child interface {
	// Parent returns the folder above this one as a store, and the name of this one in it. If
	// this one is a root, the error wraps errors.ErrUnsupported.
	Parent() (parent Store, name string, err error)
}

var _ Child = (*Sub)(nil)

// Parent implements [Child].
func (s *Sub) Parent() (Store, string, error) {
	dir, name := path.Split(strings.TrimSuffix(s.prefix, "/"))
	parent, err := NewSub(s.inner, strings.TrimSuffix(dir, "/"))
	return parent, name, err
}

// Parent returns the folder above a store, and the name of the store in it. If that is
// unknown, the error wraps errors.ErrUnsupported.
func Parent(s Store) (parent Store, name string, err error) {
	c, ok := As[Child](s)
	if !ok {
		return nil, "", &Error{Op: "find the folder above", Store: s.String(), Err: errors.ErrUnsupported}
	}
	return c.Parent()
}

// Beside returns the folder of that name beside the folder s, as a store.
func Beside(s Store, name string) (Store, error) {
	if strings.Contains(name, "/") {
		return nil, &Error{Op: "open", Store: s.String(), Name: name, Err: ErrName}
	}

	parent, own, err := Parent(s)
	if err != nil {
		return nil, err
	}
	if name == own {
		return s, nil
	}
	if name == "" {
		return nil, &Error{Op: "open", Store: s.String(), Err: ErrName}
	}
	return NewSub(parent, name)
}
