package inspect

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/value"
)

// Names is the tree of many names, compactly: a column for each property. Nodes are groups,
// which are beginnings of names up to a dot, and leaves, which are names. They are in
// depth-first order without the root, siblings in natural order. The row of a name is its place
// among the leaves.
type Names struct {
	// Labels are the different parts of names. Label has the place of each node's part.
	Labels []string `json:"labels"`
	Label  []int32  `json:"label"`
	// Below counts the nodes below each node: none below a leaf.
	Below []int32 `json:"below"`
	// Forms are the different forms of names. Form has the place of each row's form.
	Forms []NameForm `json:"forms"`
	Form  []int32    `json:"form"`
	// Tied has, by row, the first name of a tensor that the checkpoint stores once under
	// several names.
	Tied map[int]string `json:"tied"`
	// Values has, by row, the first 80 bytes of an object as Repr prints it, if the object is
	// part of the index.
	Values map[int]string `json:"values"`

	// Entries are the entries, by row.
	Entries []*meta.Entry `json:"-"`
}

// NameForm is the form of a name: its size as in Item, and its number of chunks. An object has
// no dtype and no shape.
type NameForm struct {
	DType  string  `json:"dtype,omitempty"`
	Shape  []int64 `json:"shape,omitzero"`
	Bytes  int64   `json:"bytes"`
	Chunks int     `json:"chunks"`
}

const (
	shownRepr = 80 // the limit of the reprs in Names
	mostParts = 48 // of a name: the last part of a longer name has dots
)

// NewNames returns the tree of entries, which are in the order of their names. ties are
// Metadata.Ties.
func NewNames(entries []*meta.Entry, ties map[string]string) *Names {
	t := newNameTree(entries)
	b := &namesBuilder{
		nameTree: t, labels: map[string]int32{}, forms: map[string]int32{},
		out: &Names{
			Labels: []string{}, Label: make([]int32, 0, len(t.nodes)), Below: make([]int32, 0, len(t.nodes)), Forms: []NameForm{}, Form: make([]int32, 0, len(entries)),
			Tied: map[int]string{}, Values: map[int]string{}, Entries: make([]*meta.Entry, 0, len(entries)),
		},
	}
	b.children(0)
	if len(ties) > 0 {
		b.out.tie(ties)
	}
	return b.out
}

// nameTree is a tree of names as it grows: children are in the order of names.
type nameTree struct {
	nodes []nameNode // the root first
	path  []int32    // the groups above the last name
}

type nameNode struct {
	label       string
	entry       *meta.Entry // nil: a group
	first, last int32       // children; zero: none
	next        int32       // sibling
}

func newNameTree(entries []*meta.Entry) *nameTree {
	t := &nameTree{nodes: make([]nameNode, 1, 1+len(entries)+len(entries)/2)}
	for _, e := range entries {
		rest := e.FQN
		shared := 0 // names with the same beginning follow each other
		for ; shared < len(t.path); shared++ {
			part, tail, more := strings.Cut(rest, ".")
			if !more || part != t.nodes[t.path[shared]].label {
				break
			}
			rest = tail
		}
		t.path = t.path[:shared]

		for len(t.path) < mostParts {
			part, tail, more := strings.Cut(rest, ".")
			if !more {
				break
			}
			t.path = append(t.path, t.add(part, nil))
			rest = tail
		}
		t.add(rest, e)
	}
	return t
}

// add adds a child to the last group of the path.
func (t *nameTree) add(label string, e *meta.Entry) int32 {
	parent := int32(0)
	if len(t.path) > 0 {
		parent = t.path[len(t.path)-1]
	}
	n := int32(len(t.nodes))
	t.nodes = append(t.nodes, nameNode{label: label, entry: e})
	p := &t.nodes[parent]
	if p.first == 0 {
		p.first = n
	} else {
		t.nodes[p.last].next = n
	}
	p.last = n
	return n
}

// namesBuilder turns a nameTree into Names.
type namesBuilder struct {
	*nameTree
	labels, forms map[string]int32
	siblings      []int32 // of the nodes above
	key           []byte
	out           *Names
}

// children appends the nodes below a node.
func (b *namesBuilder) children(n int32) {
	start := len(b.siblings)
	for k := b.nodes[n].first; k != 0; k = b.nodes[k].next {
		b.siblings = append(b.siblings, k)
	}
	order := func(x, y int32) int { return Natural(b.nodes[x].label, b.nodes[y].label) }
	if all := b.siblings[start:]; !slices.IsSortedFunc(all, order) {
		slices.SortStableFunc(all, order)
	}

	for i, end := start, len(b.siblings); i < end; i++ {
		k := b.siblings[i]
		at := len(b.out.Label)
		b.out.Label, b.out.Below = append(b.out.Label, b.label(b.nodes[k].label)), append(b.out.Below, 0)
		if e := b.nodes[k].entry; e != nil {
			b.leaf(e)
			continue
		}
		b.children(k)
		b.out.Below[at] = int32(len(b.out.Label) - at - 1)
	}
	b.siblings = b.siblings[:start]
}

func (b *namesBuilder) label(text string) int32 {
	i, ok := b.labels[text]
	if !ok {
		i = int32(len(b.labels))
		b.labels[text] = i
		b.out.Labels = append(b.out.Labels, text)
	}
	return i
}

func (b *namesBuilder) leaf(e *meta.Entry) {
	row := len(b.out.Entries)
	b.out.Entries = append(b.out.Entries, e)
	b.out.Form = append(b.out.Form, b.form(e))
	if e.Tensor != nil || e.Bytes == nil || e.Bytes.Inline == nil {
		return
	}
	if v, err := value.Decode(e.Bytes.Codec, e.Bytes.Inline); err == nil {
		b.out.Values[row] = Repr(v, shownRepr)
	}
}

// form returns the place of the form of an entry.
func (b *namesBuilder) form(e *meta.Entry) int32 {
	if e.Tensor == nil {
		b.key = appendInts(append(b.key[:0], 'o'), []int64{e.NumBytes()})
	} else {
		b.key = appendInts(append(b.key[:0], 't'), []int64{int64(e.Tensor.DType), int64(len(e.Tensor.Chunks))})
		b.key = appendInts(b.key, e.Tensor.Shape)
	}
	i, ok := b.forms[string(b.key)]
	if !ok {
		i = int32(len(b.forms))
		b.forms[string(b.key)] = i
		f := NameForm{Bytes: e.NumBytes(), Chunks: 1}
		if e.Tensor != nil {
			f.DType, f.Shape, f.Chunks = e.Tensor.DType.String(), nonNil(slices.Clone(e.Tensor.Shape)), len(e.Tensor.Chunks)
		}
		b.out.Forms = append(b.out.Forms, f)
	}
	return i
}

// tie sets Tied. The first of the names that are here has the bytes.
func (t *Names) tie(ties map[string]string) {
	groups := map[string][]int{} // rows by the first name
	for _, first := range ties {
		groups[first] = nil
	}
	for row, e := range t.Entries {
		first, ok := ties[e.FQN]
		if !ok {
			first = e.FQN
		}
		if rows, tied := groups[first]; tied {
			groups[first] = append(rows, row)
		}
	}
	for _, rows := range groups {
		if len(rows) < 2 {
			continue
		}
		lead := slices.MinFunc(rows, func(a, b int) int { return strings.Compare(t.Entries[a].FQN, t.Entries[b].FQN) })
		for _, row := range rows {
			if row != lead {
				t.Tied[row] = t.Entries[lead].FQN
			}
		}
	}
}

// MarshalJSON implements json.Marshaler. AppendJSON is faster.
func (t *Names) MarshalJSON() ([]byte, error) { return t.AppendJSON(nil), nil }

var _ json.Marshaler = (*Names)(nil)

// AppendJSON appends the tree as JSON to b. Names that are not UTF-8 have U+FFFD for each
// wrong byte, and no character has a meaning in HTML.
func (t *Names) AppendJSON(b []byte) []byte {
	b = slices.Grow(b, 256+10*len(t.Label)+4*len(t.Form))
	b = appendList(append(b, `{"labels":`...), t.Labels, appendJSONString)
	b = appendInts(append(b, `,"label":`...), t.Label)
	b = appendInts(append(b, `,"below":`...), t.Below)
	b = appendList(append(b, `,"forms":`...), t.Forms, appendForm)
	b = appendInts(append(b, `,"form":`...), t.Form)
	b = appendMap(append(b, `,"tied":`...), t.Tied)
	b = appendMap(append(b, `,"values":`...), t.Values)
	return append(b, '}')
}

func appendForm(b []byte, f NameForm) []byte {
	text, err := json.Marshal(f)
	if err != nil {
		panic(err) // it consists of a text and of integers
	}
	return append(b, text...)
}
