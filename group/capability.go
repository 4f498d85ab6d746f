package group

// Leaver is a capability of groups that a rank can leave while the others go on.
type Leaver interface {
	// Leave marks this rank as gone for good, from the group and from all that
	// were made from it: calls of the others that wait for it, and all later
	// ones, fail with [ErrLeft] and with err, where that is not nil. Leaving
	// twice is the same as leaving once.
	Leave(err error)
}

// Backed is a capability of groups that can say what carries their messages.
type Backed interface {
	// Backend returns a name such as "tcp".
	Backend() string
}
