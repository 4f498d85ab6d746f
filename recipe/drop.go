package recipe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
)

// drop drops the names of the source that rules drop, unless another rule has used them.
func (b *binder) drop() error {
	for _, r := range b.rules {
		var err error
		switch r.kind {
		case dropRule:
			err = b.dropNames(r)
		case fillRule:
			err = b.dropFilled(r)
		}
		if err != nil {
			return fmt.Errorf("the rule in line %d: %w", r.line, b.explain(err))
		}
	}
	return nil
}

// dropNames drops the names of a rule: names with captures, for all values of the captures,
// and names that match a pattern with stars.
func (b *binder) dropNames(r *rule) error {
	for _, t := range r.sides[b.src] {
		if err := b.each(r, t.names[0].captures(), func() error {
			name, err := b.fillName(t.names[0])
			if err != nil || b.index[name] == nil {
				return err
			}
			return b.dropName(r, name)
		}); err != nil {
			return err
		}
	}
	globs := r.globs[b.src]
	if len(globs) == 0 {
		return nil
	}
	if ok, err := b.env.condition(r.when); err != nil || !ok {
		return err
	}
	return b.dropMatching(r, len(globs), func(name string) bool {
		return slices.ContainsFunc(globs, func(g glob) bool { return g.match(name) })
	})
}

// dropFilled drops the tensors that a rule fills in the other direction.
func (b *binder) dropFilled(r *rule) error {
	if len(r.sides[b.src]) == 0 {
		return nil
	}
	return b.dropMatching(r, 1, r.sides[b.src][0].names[0].regexp(b.lists()).MatchString)
}

// dropMatching drops the names that match one of n patterns.
func (b *binder) dropMatching(r *rule, n int, match func(name string) bool) error {
	if err := b.spend(len(b.md.Entries)); err != nil {
		return err
	}
	for i := range b.md.Entries {
		name := b.md.Entries[i].FQN
		if _, used := b.used[name]; used {
			continue
		}
		if err := b.spend(10 * n); err != nil {
			return err
		}
		if match(name) {
			if err := b.dropName(r, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropName drops a name of the source, unless another rule has used it.
func (b *binder) dropName(r *rule, name string) error {
	if _, used := b.used[name]; used {
		return nil
	}
	b.used[name], b.lost[name] = r.line, true
	reason := r.reason
	if r.copyOf != nil {
		other, err := b.copied(r, name)
		if err != nil {
			return err
		}
		reason += "; a copy of " + other
	}
	b.out.Dropped = append(b.out.Dropped, Dropped{name, reason})
	return nil
}

// copied adds the check that a dropped tensor is a copy, and returns the name of the
// original.
func (b *binder) copied(r *rule, name string) (string, error) {
	var names []string
	for _, p := range r.copyOf {
		other, err := b.fillName(p)
		if err != nil {
			return "", err
		}
		e := b.index[other]
		if e == nil {
			if len(names) < maxNamed {
				names = append(names, strconv.Quote(other))
			}
			continue
		}
		x, y := b.index[name].Tensor, e.Tensor
		if x == nil || y == nil || x.DType != y.DType || !slices.Equal(x.Shape, y.Shape) {
			return "", fmt.Errorf("%w: it drops %s as a copy of %s, but the two differ in shape or dtype", ErrIncomplete, describeEntry(name, x), describeEntry(other, y))
		}
		b.out.Checks = append(b.out.Checks, Check{Source: name, Other: other, Map: wholePiece(x.Shape), Rule: r.line})
		return other, nil
	}
	return "", fmt.Errorf("%w: it drops %q as a copy of %s, which the checkpoint does not have", ErrIncomplete, name, strings.Join(names, " or "))
}

// keptCopies returns an error if the original of a dropped copy is dropped too: then its
// elements would get lost.
func (b *binder) keptCopies() error {
	for _, c := range b.out.Checks {
		if b.lost[c.Source] && b.lost[c.Other] {
			return fmt.Errorf("the rule in line %d: %w: it drops %q as a copy of %q, which is dropped too (line %d): name a tensor that a rule uses", c.Rule, ErrIncomplete, c.Source, c.Other, b.used[c.Other])
		}
	}
	return nil
}

// describeEntry returns the name, the shape and the dtype of a tensor. Nil: it is not a
// tensor.
func describeEntry(name string, t *meta.Tensor) string {
	if t == nil {
		return fmt.Sprintf("%q, which is not a tensor,", name)
	}
	return fmt.Sprintf("%q (%v of %v)", name, t.Shape, t.DType)
}
