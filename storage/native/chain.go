package native

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
)

// A save refers to others only within these bounds, so that a run that removes old
// checkpoints keeps few of them for others. Every rank decides by the record of the base, so
// all ranks with the same base decide alike.
const (
	// maxNeeds bounds the checkpoints that have to stay with a checkpoint.
	maxNeeds = 8
	// maxReferring bounds the saves between two that stand alone. A damaged file reaches no
	// save after them.
	maxReferring = 15
	// maxStored bounds the bytes of a checkpoint and of all that it needs, in relation to its
	// bytes if it stood alone. A save is expected to write as many bytes as the one before it.
	maxStored = 2
)

// chain describes the checkpoints that a checkpoint needs because it refers to others.
type chain struct {
	// Referring is the number of saves in a row, up to this one, that refer to others.
	Referring int64
	// Needs are the checkpoints that have to stay with this one, sorted by name: its bases, and
	// the checkpoints that its bases need.
	Needs []needed
}

// needed is a checkpoint that another one needs.
type needed struct {
	Folder string `json:"folder"`
	Bytes  int64  `json:"bytes"`
}

// ownBytes returns the size of the files in the folder of a checkpoint.
func (r *record) ownBytes() (n int64) {
	for _, f := range r.Files {
		n += f.Size
	}
	for _, f := range r.Hashes {
		n += f.Size
	}
	return n
}

// wholeBytes returns the size of the files of a checkpoint if it stood alone.
func (r *record) wholeBytes() (n int64) {
	if len(r.Coded) == 0 {
		return r.ownBytes()
	}
	for _, f := range r.alone().Files {
		n += f.Size
	}
	return n
}

// mayExtend returns an error if a save to the folder own may not refer to the checkpoint in
// folder, with the record r.
func (r *record) mayExtend(folder, own string) error {
	if len(r.Bases) == 0 {
		return nil
	}
	if r.Chain == nil {
		return errors.New("it does not say which checkpoints it needs")
	}
	needs := r.Chain.Needs
	if slices.ContainsFunc(needs, func(n needed) bool { return n.Folder == own }) {
		return errors.New("it needs the checkpoint that is replaced")
	}
	bytes := 2 * r.ownBytes() // of this save, and of the next
	for _, n := range needs {
		bytes += n.Bytes
	}
	switch whole := r.wholeBytes(); {
	case len(needs)+1 > maxNeeds:
		return fmt.Errorf("%s and %d others would have to stay", folder, len(needs))
	case r.Chain.Referring+1 > maxReferring:
		return fmt.Errorf("%d saves in a row refer to others", r.Chain.Referring)
	case bytes > maxStored*whole:
		return fmt.Errorf("%d bytes would have to stay for %d", bytes, whole)
	}
	return nil
}

// add adds the checkpoint in a folder to which c refers. rec is its record, or nil if it
// cannot be read.
func (c *chain) add(folder string, rec *record) {
	n := needed{Folder: folder}
	switch {
	case rec == nil, len(rec.Bases) > 0 && rec.Chain == nil:
		c.Referring = maxReferring // the next save stands alone
	case rec.Chain != nil:
		c.Referring = max(c.Referring, rec.Chain.Referring+1)
		for _, n := range rec.Chain.Needs {
			c.need(n)
		}
	default:
		c.Referring = max(c.Referring, 1)
	}
	if rec != nil {
		n.Bytes = rec.ownBytes()
	}
	c.need(n)
}

func (c *chain) need(n needed) {
	i, ok := slices.BinarySearchFunc(c.Needs, n, func(a, b needed) int { return strings.Compare(a.Folder, b.Folder) })
	if !ok {
		c.Needs = slices.Insert(c.Needs, i, n)
	}
}

// readChain reads the field of a chain.
func (r *record) readChain(o *jsonFields) {
	if !o.has("chain") {
		return
	}
	f := o.object("chain")
	r.Chain = &chain{Referring: f.int("referring", 0)}
	f.get("needs", &r.Chain.Needs)
	o.fail("chain", f.err)
}

// check returns an error unless the fields make sense.
func (c *chain) check() error {
	if c == nil {
		return nil
	}
	for i, n := range c.Needs {
		if err := delta.CheckFolder(n.Folder); err != nil || n.Bytes < 0 {
			return fmt.Errorf("chain: needs[%d]: %d bytes: %w", i, n.Bytes, errors.Join(err, storage.ErrCorrupt))
		}
	}
	return nil
}
