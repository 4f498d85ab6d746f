package inspect

import (
	"maps"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/value"
)

// each calls add for 0 to n-1 with commas between, as long as there is room.
func (r *reprer) each(n int, add func(i int)) {
	for i := range n {
		if r.full() {
			return
		}
		if i > 0 {
			r.text(", ")
		}
		add(i)
	}
}

func (r *reprer) seq(open string, v []any, end string) {
	r.text(open)
	r.each(len(v), func(i int) { r.value(v[i]) })
	r.text(end)
}

func (r *reprer) ints(v []int64) {
	r.text("[")
	r.each(len(v), func(i int) { r.b = strconv.AppendInt(r.b, v[i], 10) })
	r.text("]")
}

func (r *reprer) tuple(v value.Tuple) {
	r.seq("(", v, choose(len(v) == 1, ",)", ")"))
}

func (r *reprer) dict(v map[string]any) {
	keys := slices.Sorted(maps.Keys(v))
	r.text("{")
	r.each(len(keys), func(i int) {
		r.str(keys[i])
		r.text(": ")
		r.value(v[keys[i]])
	})
	r.text("}")
}

func (r *reprer) pairs(v []value.Pair) {
	r.text("{")
	r.each(len(v), func(i int) {
		r.value(v[i].Key)
		r.text(": ")
		r.value(v[i].Value)
	})
	r.text("}")
}

func (r *reprer) ordered(v *value.Dict) {
	switch {
	case !v.Ordered:
		r.pairs(v.Pairs)
	case len(v.Pairs) == 0:
		r.text("OrderedDict()")
	default:
		r.text("OrderedDict(")
		r.pairs(v.Pairs)
		r.text(")")
	}
}

func (r *reprer) set(v *value.Set) {
	switch {
	case len(v.Items) == 0:
		r.text(choose(v.Frozen, "frozenset()", "set()"))
	case v.Frozen:
		r.seq("frozenset({", v.Items, "})")
	default:
		r.seq("{", v.Items, "}")
	}
}
