package native

import (
	"errors"
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
)

// pathFormOf returns the shortest form of the path of an entry.
func pathFormOf(fqn string, p meta.Path) pathForm {
	switch {
	case len(p) == 0:
		return pathNone
	case len(p) == 1 && p[0] == meta.Key(fqn):
		return pathName
	case p.FQN() == fqn:
		return pathCut
	}
	return pathSteps
}

// putPath writes p in its form. A step is a length or a position, doubled, plus
// one for a position in a list.
func putPath(w *wire.Writer, form pathForm, p meta.Path) error {
	if form != pathCut && form != pathSteps {
		return nil
	}
	w.Uvarint(uint64(len(p)))
	for _, s := range p {
		switch {
		case !s.List:
			w.Uvarint(uint64(len(s.Key)) << 1)
		case s.Pos < 0:
			return errors.New("a negative position in its path")
		case form == pathCut:
			w.Uvarint(uint64(len(s.String()))<<1 | 1)
		default:
			w.Uvarint(uint64(s.Pos)<<1 | 1)
		}
		if form == pathSteps && !s.List {
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
	case pathCut:
		return d.cutPath(r, fqn)
	case pathSteps:
		return d.spelledPath(r)
	}
	r.Fail("the unknown path form %d", form)
	return nil
}

func (d *entryDecoder) cutPath(r *wire.Reader, fqn string) meta.Path {
	p := d.steps.take(r.Count(1))
	rest := fqn
	for i := range p {
		v := r.Uvarint()
		n := v >> 1
		last := i == len(p)-1
		if n > uint64(len(rest)) || last != (n == uint64(len(rest))) || (!last && rest[n] != '.') {
			r.Fail("a path that does not cut %q at its dots", fqn)
			return nil
		}
		p[i] = meta.Key(rest[:n])
		if v&1 == 1 {
			p[i] = listStep(r, rest[:n])
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

// listStep returns the step whose text is s.
func listStep(r *wire.Reader, s string) meta.Step {
	pos, err := strconv.Atoi(s)
	if err != nil || pos < 0 || strconv.Itoa(pos) != s {
		r.Fail("%q is no position in a list", s)
		return meta.Step{}
	}
	return meta.Pos(pos)
}

func (d *entryDecoder) spelledPath(r *wire.Reader) meta.Path {
	p := d.steps.take(r.Count(1))
	for i := range p {
		v := r.Uvarint()
		if v&1 == 1 {
			if pos := int(v >> 1); pos >= 0 && uint64(pos) == v>>1 {
				p[i] = meta.Pos(pos)
				continue
			}
			r.Fail("position %d in a list", v>>1)
			return nil
		}
		if v>>1 > uint64(r.Len()) {
			r.Fail("a key of %d bytes, %d left", v>>1, r.Len())
			return nil
		}
		p[i] = meta.Key(string(r.Raw(int(v >> 1))))
	}
	if len(p) == 0 {
		r.Fail("a path without steps")
	}
	return p
}
