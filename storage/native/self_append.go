package native

import (
	"encoding/json"
	"strconv"
)

// object is a JSON object in the making, without its closing brace. Its methods
// append members as encoding/json does for fields with omitempty.
type object struct{ b []byte }

// key begins a member and returns the bytes for its value to be appended to.
func (o *object) key(name string) []byte {
	if o.b[len(o.b)-1] != '{' {
		o.b = append(o.b, ',')
	}
	return append(appendText(o.b, name), ':')
}

func (o *object) text(name, v string) {
	if v != "" {
		o.b = appendText(o.key(name), v)
	}
}

func (o *object) ints(name string, v []int64) {
	if len(v) > 0 {
		o.b = appendInts(o.key(name), v)
	}
}

func (o *object) flag(name string, v bool) {
	if v {
		o.b = append(o.key(name), "true"...)
	}
}

func appendInts(b []byte, v []int64) []byte {
	b = append(b, '[')
	for i, n := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return append(b, ']')
}

// appendText appends a string as encoding/json writes it.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			quoted, _ := json.Marshal(s) // never fails for a string
			return append(b, quoted...)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}
