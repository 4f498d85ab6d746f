package pickle

import (
	"strings"

	"github.com/cairn-ckpt/cairn/value"
)

// normal returns o in its normal form.
func (b *builder) normal(o *value.Object) any {
	switch o.Module {
	case "collections":
		return b.collection(o)
	case "builtins", "_codecs":
		return b.builtin(b.fixed(o))
	case "torch.serialization":
		return layout(b.fixed(o))
	case "pathlib":
		return b.path(b.fixed(o))
	case "datetime":
		return dateTime(b.fixed(o))
	case "uuid":
		return uuid(b.fixed(o))
	}

	if o.Module == "numpy" || strings.HasPrefix(o.Module, "numpy.") {
		return numpy(b.fixed(o))
	}
	return o
}

// fixed returns o, with its own values in place of those that vary: the normal form depends on
// them.
func (b *builder) fixed(o *value.Object) *value.Object {
	if len(b.varying) > 0 {
		o.Args, _ = fixAll(o.Args).(value.Tuple)
		o.Kwargs, _ = fixAll(o.Kwargs).(map[string]any)
		o.State = fixAll(o.State)
	}
	return o
}

// bare reports whether o is a call with n positional arguments only.
func bare(o *value.Object, n int) bool {
	return len(o.Args) == n && o.Kwargs == nil && o.State == nil && o.Items == nil && o.Pairs == nil
}

// builtin returns the value of an object of a built-in class.
func (b *builder) builtin(o *value.Object) any {
	switch o.Name {
	case "complex":
		if bare(o, 2) {
			re, ok := o.Args[0].(float64)
			im, ok2 := o.Args[1].(float64)
			if ok && ok2 {
				return complex(re, im)
			}
		}
	case "set", "frozenset":
		if bare(o, 0) {
			return &value.Set{Frozen: o.Name == "frozenset"}
		}
		if !bare(o, 1) {
			break
		}

		if l, ok := o.Args[0].([]any); ok {
			b.charge(anyBytes * len(l))
			return &value.Set{Items: b.keys.distinct(append([]any{}, l...)), Frozen: o.Name == "frozenset"} // the list may be shared
		}
	case "bytes", "encode":
		if bs, ok := latin1(o); ok {
			b.charge(boxBytes + len(bs))
			return bs
		}
	case "bytearray":
		if bs, ok := latin1(o); ok {
			b.charge(valueObject + boxBytes + len(bs))
			return &value.Object{Module: "builtins", Name: "bytearray", Call: true, Args: value.Tuple{bs}}
		}
	case "getattr":
		return memoryFormat(o)
	}
	return o
}

// rawBytes returns the bytes of v, which may be a bytearray in its normal form.
func rawBytes(v any) ([]byte, bool) {
	if o, ok := v.(*value.Object); ok && o.Call && o.Module == "builtins" && o.Name == "bytearray" && bare(o, 1) {
		v = o.Args[0]
	}
	b, ok := v.([]byte)
	return b, ok
}

// latin1 returns bytes that the older protocols write as Latin-1 text.
func latin1(o *value.Object) ([]byte, bool) {
	encode := o.Module == "_codecs"
	switch {
	case bare(o, 0) && !encode:
		return []byte{}, true
	case bare(o, 1) && !encode:
		bs, ok := o.Args[0].([]byte)
		return bs, ok
	case !bare(o, 2):
		return nil, false
	}

	s, ok := o.Args[0].(string)
	codec, ok2 := o.Args[1].(string)
	if !ok || !ok2 || codec != "latin1" && codec != "latin-1" {
		return nil, false
	}

	out := make([]byte, 0, len(s))
	for _, r := range s {
		if r > 0xff {
			return nil, false
		}
		out = append(out, byte(r))
	}

	return out, true
}

// collection returns an OrderedDict as a dict.
func (b *builder) collection(o *value.Object) any {
	if o.Name != "OrderedDict" || o.Kwargs != nil || o.Items != nil || len(o.Args) > 1 {
		return o
	}
	if len(o.Args) == 0 {
		return &value.Dict{Pairs: o.Pairs, Ordered: true}
	}

	// Python 2 stores the items as a list of lists.
	list, ok := o.Args[0].([]any)
	if !ok {
		return o
	}

	b.charge(2 * anyBytes * (len(list) + len(o.Pairs)))
	flat := make([]any, 0, 2*(len(list)+len(o.Pairs)))
	for _, e := range list {
		kv, ok := e.([]any)
		if !ok || len(kv) != 2 {
			return o
		}
		flat = append(flat, kv...)
	}

	for _, p := range o.Pairs {
		flat = append(flat, p.Key, p.Value)
	}

	return &value.Dict{Pairs: b.keys.pairs(flat), Ordered: true}
}

// layouts are the layouts of tensors. Pickles create them with torch's
// _get_layout.
var layouts = map[string]bool{
	"strided": true, "sparse_coo": true, "sparse_csr": true, "sparse_csc": true, "sparse_bsr": true,
	"sparse_bsc": true, "jagged": true, "_mkldnn": true,
}

func layout(o *value.Object) any {
	if o.Name != "_get_layout" || !bare(o, 1) {
		return o
	}
	s, _ := o.Args[0].(string)
	name, ok := strings.CutPrefix(s, "torch.")
	if !ok || !layouts[name] {
		return o
	}
	return &value.Object{Module: "torch", Name: name}
}

// memoryFormats are the memory formats of tensors. Pickles look them up in torch,
// as imported by torch._utils.
var memoryFormats = map[string]bool{
	"channels_last": true, "channels_last_3d": true, "contiguous_format": true, "preserve_format": true,
}

// memoryFormat returns the memory format that older protocols look up with
// getattr. It returns other such calls unchanged.
func memoryFormat(o *value.Object) any {
	if !bare(o, 2) || !isName(o.Args[0], "torch._utils", "torch") {
		return o
	}
	name, _ := o.Args[1].(string)
	if !memoryFormats[name] {
		return o
	}
	return &value.Object{Module: "torch", Name: name}
}

// posixPaths are the classes of paths with POSIX rules.
var posixPaths = map[string]bool{"PosixPath": true, "PurePosixPath": true, "Path": true, "PurePath": true}

// path joins the parts of a path as Python prints it.
func (b *builder) path(o *value.Object) any {
	if !posixPaths[o.Name] || !bare(o, len(o.Args)) {
		return o
	}

	parts, size := []string{""}, 0
	for _, a := range o.Args {
		s, ok := a.(string)
		if !ok {
			return o
		}
		if strings.HasPrefix(s, "/") {
			parts, size = parts[:0], 0 // an absolute part discards the parts before it
		}
		b.charge(2 * anyBytes)
		parts, size = append(parts, s), size+1+len(s)
	}

	b.charge(valueObject + 2*size)
	return &value.Object{Module: o.Module, Name: o.Name, Call: true, Args: value.Tuple{cleanPath(parts, size)}}
}

// cleanPath joins strings with a total of at most size bytes, of which only the
// first may begin with a slash. Like Python it drops empty and "." parts and
// keeps "..".
func cleanPath(parts []string, size int) string {
	root := ""
	if s := parts[0]; strings.HasPrefix(s, "//") && !strings.HasPrefix(s, "///") {
		root = "//" // POSIX gives two slashes a meaning of their own
	} else if strings.HasPrefix(s, "/") {
		root = "/"
	}

	var out strings.Builder
	out.Grow(size)
	out.WriteString(root)

	for _, s := range parts {
		for p := range strings.SplitSeq(s, "/") {
			if p == "" || p == "." {
				continue
			}
			if out.Len() > len(root) {
				out.WriteByte('/')
			}
			out.WriteString(p)
		}
	}

	if out.Len() == 0 {
		return "."
	}
	return out.String()
}
