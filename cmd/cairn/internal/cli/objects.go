package cli

import (
	"context"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/value"
)

// The bounds of what is read to show the values of objects that are not part of
// the index: of one object, and of all together.
const (
	maxShown    = 64 << 10
	maxShownAll = 16 << 20
)

// readObjects fills in types and values of the items, as far as the bounds allow,
// or why they cannot be read.
func readObjects(ctx context.Context, c *cairn.Checkpoint, md *meta.Metadata, items []*inspect.Item) error {
	left := int64(maxShownAll)
	for _, it := range items {
		e, ok := md.Find(it.FQN)
		if !ok || !it.Unread() || it.NumBytes > min(maxShown, left) {
			continue
		}
		left -= it.NumBytes
		if err := readObject(ctx, c, e, it); ctx.Err() != nil {
			return err
		} else if err != nil {
			it.Problem = oneLine(err.Error())
		}
	}
	return nil
}

// readObject fills in type and value of an object, unless it is in a codec that is
// not known here.
func readObject(ctx context.Context, c *cairn.Checkpoint, e *meta.Entry, it *inspect.Item) error {
	codec, data, err := c.ReadBytes(ctx, e)
	if err != nil {
		return err
	}
	if v, err := value.Decode(codec, data); err == nil {
		it.Type, it.Repr = inspect.TypeName(v), inspect.Repr(v, inspect.MaxRepr)
	}
	return nil
}

// shownValue returns the beginning of an object's value.
func shownValue(it *inspect.Item) string {
	if it.Problem != "" {
		return "(unreadable)"
	}
	return shorten(it.Repr, 40)
}
