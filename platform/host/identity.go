package host

import (
	"crypto/rand"

	"github.com/cairn-ckpt/cairn/group"
)

// identity says on all ranks which group it is that they remember. The zero one
// is that of a group of which nobody can say so; it is equal to none.
type identity [16]byte

// worldID is the identity of the platform's world, of which there is one.
var worldID = identity{15: 1}

// newID returns an identity that no other group has.
func newID() identity {
	var id identity
	rand.Read(id[:]) // never an error
	return id
}

// identityOf returns the name that a group made elsewhere has for itself, and
// zero where it has none.
func identityOf(g group.Group) identity {
	if named, ok := g.(interface{ ID() [16]byte }); ok {
		return named.ID()
	}
	return identity{}
}
