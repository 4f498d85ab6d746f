package native

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
)

// pathForm says how an entry's path is stored.
type pathForm byte

const (
	// pathNone: there is no path.
	pathNone pathForm = 0
	// pathName: the path is the one key that is the name.
	pathName pathForm = 1
	// pathCut: the path is the name, cut at some of its dots. The lengths of the
	// parts are stored; so a path of n steps takes about n bytes.
	pathCut pathForm = 2
	// pathSteps: the path has nothing to do with the name and is spelled out.
	pathSteps pathForm = 3
	// pathCutInts and pathStepsInts are the same for paths with integers among
	// their keys: a step has a bit more to say.
	pathCutInts   pathForm = 4
	pathStepsInts pathForm = 5
)

// The kinds of steps.
const (
	stepKey = iota
	stepPos
	stepInt
)

// pathFormOf returns the shortest form of the path of an entry.
func pathFormOf(fqn string, p meta.Path) pathForm {
	ints := slices.ContainsFunc(p, func(s meta.Step) bool { return s.Int })
	switch {
	case len(p) == 0:
		return pathNone
	case len(p) == 1 && p[0] == meta.Key(fqn):
		return pathName
	case p.FQN() == fqn && ints:
		return pathCutInts
	case p.FQN() == fqn:
		return pathCut
	case ints:
		return pathStepsInts
	}
	return pathSteps
}

// cut reports whether the steps are parts of the name.
func (f pathForm) cut() bool { return f == pathCut || f == pathCutInts }

// bits returns how many bits of a step's number are its kind.
func (f pathForm) bits() int {
	if f == pathCutInts || f == pathStepsInts {
		return 2
	}
	return 1
}

// putPath writes p in its form. A step is a length or a position, and in the
// lowest bits its kind.
func putPath(w *wire.Writer, form pathForm, p meta.Path) error {
	if form == pathNone || form == pathName {
		return nil
	}
	w.Uvarint(uint64(len(p)))
	for _, s := range p {
		if err := s.Check(); err != nil {
			return err
		}
		n, kind := uint64(len(s.String())), uint64(stepKey)
		switch {
		case s.List && !form.cut():
			n, kind = uint64(s.Pos), stepPos
		case s.List:
			kind = stepPos
		case s.Int:
			kind = stepInt
		}
		if n<<form.bits()>>form.bits() != n {
			return fmt.Errorf("position %d in its path", n)
		}
		w.Uvarint(n<<form.bits() | kind)
		if !form.cut() && !s.List {
			w.B = append(w.B, s.Key...)
		}
	}
	return nil
}

// path reads what putPath wrote for the entry called fqn.
func (d *entryDecoder) path(r *wire.Reader, form pathForm, fqn string) meta.Path {
	switch form {
	case pathNone:
		return nil
	case pathName:
		p := d.steps.take(1)
		p[0] = meta.Key(fqn)
		return p
	case pathCut, pathCutInts:
		return d.cutPath(r, form.bits(), fqn)
	case pathSteps, pathStepsInts:
		return d.spelledPath(r, form.bits())
	}
	r.Fail("the unknown path form %d", form)
	return nil
}

func (d *entryDecoder) cutPath(r *wire.Reader, bits int, fqn string) meta.Path {
	p := d.steps.take(r.Count(1))
	rest := fqn
	for i := range p {
		v := r.Uvarint()
		n := v >> bits
		last := i == len(p)-1
		if n > uint64(len(rest)) || last != (n == uint64(len(rest))) || (!last && rest[n] != '.') {
			r.Fail("a path that does not cut %q at its dots", fqn)
			return nil
		}
		if kind := v & (1<<bits - 1); kind == stepPos {
			p[i] = listStep(r, rest[:n])
		} else {
			p[i] = keyStep(r, rest[:n], kind)
		}
		if !last {
			rest = rest[n+1:]
		}
	}
	if len(p) == 0 {
		r.Fail("a path without steps")
	}
	return p
}

// keyStep returns the step to a key.
func keyStep(r *wire.Reader, key string, kind uint64) meta.Step {
	s := meta.Step{Key: key, Int: kind == stepInt}
	if kind > stepInt {
		r.Fail("a step of kind %d", kind)
	}
	if err := s.Check(); err != nil {
		r.Fail("%w", err)
	}
	return s
}

// listStep returns the step whose text is s.
func listStep(r *wire.Reader, s string) meta.Step {
	pos, err := strconv.Atoi(s)
	if err != nil || pos < 0 || strconv.Itoa(pos) != s {
		r.Fail("%q is no position in a list", s)
		return meta.Step{}
	}
	return meta.Pos(pos)
}

func (d *entryDecoder) spelledPath(r *wire.Reader, bits int) meta.Path {
	p := d.steps.take(r.Count(1))
	for i := range p {
		v := r.Uvarint()
		n, kind := v>>bits, v&(1<<bits-1)
		if kind == stepPos {
			if pos := int(n); pos >= 0 && uint64(pos) == n {
				p[i] = meta.Pos(pos)
				continue
			}
			r.Fail("position %d in a list", n)
			return nil
		}
		if n > uint64(r.Len()) {
			r.Fail("a key of %d bytes, %d left", n, r.Len())
			return nil
		}
		p[i] = keyStep(r, string(r.Raw(int(n))), kind)
	}
	if len(p) == 0 {
		r.Fail("a path without steps")
	}
	return p
}
