package inspect

import (
	"cmp"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/value"
)

func torchClass(name string) renderer {
	switch name {
	case "Size":
		return (*reprer).size
	case "device":
		return (*reprer).device
	}
	return nil
}

func collectionClass(name string) renderer {
	switch name {
	case "defaultdict":
		return (*reprer).defaultdict
	case "Counter":
		return (*reprer).counter
	case "deque":
		return (*reprer).deque
	}
	return nil
}

func builtinClass(name string) renderer {
	switch name {
	case "bytearray":
		return (*reprer).bytearray
	case "range":
		return (*reprer).rangeOf
	case "slice":
		return (*reprer).slice
	}
	return nil
}

func pathClass(name string) renderer {
	switch name {
	case "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath":
		return (*reprer).path
	}
	return nil
}

// isInt reports whether v is an integer of Python.
func isInt(v any) bool {
	switch v.(type) {
	case int64, uint64, *big.Int:
		return true
	}
	return false
}

func (r *reprer) size(o *value.Object) bool {
	t, ok := only[value.Tuple](o)
	if !ok || !allInts(t) {
		return false
	}
	r.seq("torch.Size([", t, "])")
	return true
}

func allInts(v []any) bool { return !slices.ContainsFunc(v, func(e any) bool { return !isInt(e) }) }

func (r *reprer) device(o *value.Object) bool {
	if len(o.Args) == 0 || len(o.Args) > 2 || !onlyArgs(o) {
		return false
	}
	name, ok := o.Args[0].(string)
	kind, index, has := strings.Cut(name, ":")
	n, err := strconv.ParseInt(index, 10, 64)
	if len(o.Args) == 2 {
		n, has = o.Args[1].(int64)
		ok, kind, err = ok && has, name, nil
	}
	if !ok || has && err != nil {
		return false
	}
	r.text("device(type=")
	r.str(kind)
	if has {
		r.text(", index=" + strconv.FormatInt(n, 10))
	}
	r.text(")")
	return true
}

func (r *reprer) defaultdict(o *value.Object) bool {
	if len(o.Args) > 1 || len(o.Kwargs) > 0 || o.State != nil || len(o.Items) > 0 {
		return false
	}
	r.text("defaultdict(")
	if len(o.Args) == 1 {
		r.value(o.Args[0])
	} else {
		r.text("None")
	}
	r.text(", ")
	r.pairs(o.Pairs)
	r.text(")")
	return true
}

// counter shows the most frequent first, as Python does.
func (r *reprer) counter(o *value.Object) bool {
	if len(o.Args) != 1 || !onlyArgs(o) {
		return false
	}
	pairs, ok := pairsOf(o.Args[0])
	if !ok {
		return false
	}
	if len(pairs) == 0 {
		r.text("Counter()")
		return true
	}
	if !slices.ContainsFunc(pairs, func(p value.Pair) bool { _, ok := p.Value.(int64); return !ok }) {
		slices.SortStableFunc(pairs, func(a, b value.Pair) int {
			return cmp.Compare(b.Value.(int64), a.Value.(int64))
		})
	}
	r.text("Counter(")
	r.pairs(pairs)
	r.text(")")
	return true
}

// deque is a call with nothing, or with an empty tuple and the largest length,
// and then the items.
func (r *reprer) deque(o *value.Object) bool {
	if len(o.Kwargs) > 0 || o.State != nil || len(o.Pairs) > 0 || len(o.Args) > 2 {
		return false
	}
	if len(o.Args) > 0 {
		if first, ok := o.Args[0].(value.Tuple); !ok || len(first) > 0 {
			return false
		}
	}
	r.seq("deque([", o.Items, "]")
	if len(o.Args) == 2 {
		r.text(", maxlen=")
		r.value(o.Args[1])
	}
	r.text(")")
	return true
}

// bytearray escapes single quotes also between double ones, as Python does.
func (r *reprer) bytearray(o *value.Object) bool {
	b, ok := only[[]byte](o)
	if ok {
		r.text("bytearray(")
		r.byteString(b, quoteForBytes(b), '\'')
		r.text(")")
	}
	return ok
}

func (r *reprer) rangeOf(o *value.Object) bool {
	if len(o.Args) != 3 || !onlyArgs(o) || !allInts(o.Args) {
		return false
	}
	args := o.Args
	if args[2] == any(int64(1)) {
		args = args[:2]
	}
	r.seq("range(", args, ")")
	return true
}

func (r *reprer) slice(o *value.Object) bool {
	if len(o.Args) != 3 || !onlyArgs(o) {
		return false
	}
	r.seq("slice(", o.Args, ")")
	return true
}

// path shows those of Windows with slashes, as Python does.
func (r *reprer) path(o *value.Object) bool {
	s, ok := only[string](o)
	if ok && strings.Contains(o.Name, "Windows") {
		s = strings.ReplaceAll(s, `\`, "/")
	}
	return ok && r.quoted(&value.Object{Args: value.Tuple{s}}, o.Name)
}

func (r *reprer) decimal(o *value.Object) bool { return r.quoted(o, "Decimal") }

func (r *reprer) uuid(o *value.Object) bool { return r.quoted(o, "UUID") }

// quoted adds the call of a class with one string.
func (r *reprer) quoted(o *value.Object, class string) bool {
	s, ok := only[string](o)
	if ok {
		r.text(class + "(")
		r.str(s)
		r.text(")")
	}
	return ok
}

// fraction is two integers, or before Python 3.12 the text "1/3".
func (r *reprer) fraction(o *value.Object) bool {
	args := o.Args
	if s, ok := only[string](o); ok {
		n, d, has := strings.Cut(s, "/")
		num, err := strconv.ParseInt(n, 10, 64)
		den, err2 := strconv.ParseInt(choose(has, d, "1"), 10, 64)
		if err != nil || err2 != nil {
			return false
		}
		args = value.Tuple{num, den}
	}
	if len(args) != 2 || !allInts(args) || !onlyArgs(o) {
		return false
	}
	r.seq("Fraction(", args, ")")
	return true
}

// pairsOf returns the pairs of a dict.
func pairsOf(v any) ([]value.Pair, bool) {
	switch v := v.(type) {
	case *value.Dict:
		return slices.Clone(v.Pairs), true
	case map[string]any:
		out := make([]value.Pair, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			out = append(out, value.Pair{Key: k, Value: v[k]})
		}
		return out, true
	}
	return nil, false
}
