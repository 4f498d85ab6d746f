package platform

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
)

// needGroup returns an error that wraps [group.ErrInvalid] where a call of that
// name is for no group.
func needGroup(op group.Op, g Group) error {
	if g == nil {
		return fmt.Errorf("%s: no group; a rank that is no member has none: %w", op, group.ErrInvalid)
	}
	return nil
}
