package orbax

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/value"
)

// maxJSON bounds the size of a file of JSON.
const maxJSON = 256 << 20

// tree is the content of _METADATA: the tree that was saved.
type tree struct {
	leaves []leaf // in the order of their paths in the file
	// full means that every chunk was stored. Otherwise chunks with the fill value are left out.
	full bool
}

// leaf is a leaf of a tree.
type leaf struct {
	path meta.Path
	kind string // value_type
	// apart means that the value is not an array of its own: it is an empty container or None, or
	// it is in the file checkpoint.
	apart bool
}

// name returns the name of the leaf in the database: the keys, joined by dots.
func (l *leaf) name() string { return l.path.FQN() }

// The kinds of steps.
const (
	sequenceKey = 1
	dictKey     = 2 // also the fields of named tuples and other classes
)

// maxSteps bounds the length of a path.
const maxSteps = 1000

var errTree = errors.New("malformed tree")

// parseTree decodes _METADATA.
func parseTree(b []byte) (*tree, error) {
	var m struct {
		Tree map[string]struct {
			Keys []struct {
				Key  json.RawMessage `json:"key"`
				Type int             `json:"key_type"`
			} `json:"key_metadata"`
			Value struct {
				Type  string `json:"value_type"`
				Apart bool   `json:"skip_deserialize"`
			} `json:"value_metadata"`
		} `json:"tree_metadata"`
		Full bool `json:"store_array_data_equal_to_fill_value"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	if m.Tree == nil {
		return nil, fmt.Errorf("%w: no tree_metadata", errTree)
	}

	t := &tree{full: m.Full}
	for _, text := range slices.Sorted(maps.Keys(m.Tree)) {
		entry := m.Tree[text]
		l := leaf{kind: entry.Value.Type, apart: entry.Value.Apart}
		if len(entry.Keys) > maxSteps || len(entry.Keys) == 0 && text != "()" {
			return nil, fmt.Errorf("%w: %.200q has %d keys", errTree, text, len(entry.Keys))
		}
		for _, k := range entry.Keys {
			s, err := stepOf(k.Key, k.Type)
			if err != nil {
				return nil, fmt.Errorf("%.200q: %w", text, err)
			}
			l.path = append(l.path, s)
		}
		t.leaves = append(t.leaves, l)
	}
	return t, nil
}

// stepOf decodes a step of a path.
func stepOf(raw json.RawMessage, kind int) (meta.Step, error) {
	var key string
	if json.Unmarshal(raw, &key) != nil {
		var n json.Number
		if err := json.Unmarshal(raw, &n); err != nil {
			return meta.Step{}, fmt.Errorf("%w: the key %.100s", errTree, raw)
		}
		key = n.String()
	}

	switch kind {
	case dictKey:
		return meta.Key(key), nil
	case sequenceKey:
		n, err := strconv.ParseUint(key, 10, 31)
		if err != nil || strconv.FormatUint(n, 10) != key {
			return meta.Step{}, fmt.Errorf("%w: the position %.100q", errTree, key)
		}
		return meta.Pos(int(n)), nil
	}
	return meta.Step{}, fmt.Errorf("%w: a key of type %d", errTree, kind)
}

// empty returns the value of a leaf that has no bytes.
func (l *leaf) empty() (v any, ok bool) {
	switch l.kind {
	case "None":
		return nil, true
	case "Dict":
		return map[string]any{}, true
	case "List":
		return []any{}, true
	case "Tuple", "NamedTuple": // the metadata does not name the class of a named tuple
		return value.Tuple{}, true
	}
	return nil, false
}

// parseStrings decodes _strings.json.
func parseStrings(b []byte) (map[string]string, error) {
	out := map[string]string{}
	return out, json.Unmarshal(b, &out)
}

// parseJSON decodes JSON as a value of a checkpoint: numbers without a fraction are integers. NaN and infinities may be
// there as Python writes them.
func parseJSON(b []byte) (any, error) {
	v, err := parseStrict(b)
	if err == nil {
		return v, nil
	}
	if v, again := parseStrict(quoteFloats(b)); again == nil {
		return v, nil
	}
	return nil, err
}

// special are floats that Python writes and JSON lacks.
var special = map[string]float64{"NaN": math.NaN(), "Infinity": math.Inf(1), "-Infinity": math.Inf(-1)}

// mark begins the strings that quoteFloats makes.
const mark = "\x00float "

// quoteFloats makes strings of the floats that JSON lacks.
func quoteFloats(b []byte) []byte {
	out := make([]byte, 0, len(b)+64)
	inside := false // of a string
	for i := 0; i < len(b); i++ {
		switch {
		case inside && b[i] == '\\' && i+1 < len(b):
			out = append(out, b[i])
			i++
		case b[i] == '"':
			inside = !inside
		case !inside:
			word := ""
			for w := range special {
				if bytes.HasPrefix(b[i:], []byte(w)) {
					word = w
				}
			}
			if word != "" {
				out = append(append(append(out, `"\u0000float `...), word...), '"')
				i += len(word) - 1
				continue
			}
		}
		out = append(out, b[i])
	}
	return out
}

func parseStrict(b []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the end")
	}
	return plain(v)
}

// plain replaces the numbers of a value by integers and floats.
func plain(v any) (_ any, err error) {
	switch v := v.(type) {
	case json.Number:
		return number(v.String())
	case string:
		if word, ok := strings.CutPrefix(v, mark); ok {
			if x, ok := special[word]; ok {
				return x, nil
			}
		}
	case []any:
		for i := range v {
			if v[i], err = plain(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = plain(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// maxDigits bounds the length of a number.
const maxDigits = 1 << 10

func number(s string) (any, error) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if !strings.ContainsAny(s, ".eE") && len(s) <= maxDigits {
		if n, ok := new(big.Int).SetString(s, 10); ok {
			return n, nil
		}
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(x, 0) {
		return nil, fmt.Errorf("the number %.100s", s)
	}
	return x, nil
}

// damagedJSON returns the error for a malformed file of JSON.
func damagedJSON(file string, err error) error { return reading.Damaged(file, "%w", err) }
