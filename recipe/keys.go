package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

var errManyKeys = errors.New("too many keys")

// keyWork estimates the work of the library that reads TOML: it compares each key with all
// keys that follow the beginning of its table, apart from other elements of the same array
// of tables.
type keyWork struct {
	steps, keys int
	of          map[string]int // keys of the current element of an array of tables
}

// add counts the keys of an expression in an element of an array of tables, if array is not
// empty. The error wraps errManyKeys.
func (w *keyWork) add(e *unstable.Node, array string, line int) error {
	_, again := w.of[array]
	own, all := w.count(e)
	w.steps += own * w.keys
	switch {
	case e.Kind == unstable.ArrayTable && again:
		w.keys -= w.of[array]
		w.of[array] = 0
	case e.Kind == unstable.ArrayTable:
		w.keys += all
		w.of[array] = 0
	default:
		w.keys += all
		if array != "" {
			w.of[array] += all
		}
	}
	if w.steps > maxSteps {
		return lineError(line, "%w: it takes more than %d steps to read the recipe", errManyKeys, maxSteps)
	}
	return nil
}

// count returns the number of keys of a node itself, and with the tables in it.
func (w *keyWork) count(e *unstable.Node) (own, all int) {
	for it := e.Children(); it.Next(); {
		n := it.Node()
		switch n.Kind {
		case unstable.Key:
			own++
			all++
		case unstable.KeyValue:
			k, inside := w.count(n)
			own, all = own+k, all+inside
		case unstable.InlineTable:
			k, inside := w.count(n)
			w.steps += k * inside
			all += inside
		case unstable.Array:
			_, inside := w.count(n)
			all += inside
		}
	}
	return own, all
}

// keyLines returns the line of each key. The path of a key in the third table [[rule]] is
// "rule.2.key". The error wraps errManyKeys if the library would take long to read all keys.
// keyLines itself takes time in proportion to the text.
func keyLines(text []byte) (map[string]int, error) {
	lines := map[string]int{}
	counts := map[string]int{}
	var parser unstable.Parser
	parser.Reset(text)
	table, array := "", ""
	work := keyWork{of: map[string]int{}}
	line, counted := 1, 0 // the line of text[counted]: keys come in order
	lineOf := func(offset int) int {
		line += bytes.Count(text[counted:max(offset, counted)], []byte("\n"))
		counted = max(offset, counted)
		return line
	}
	for parser.NextExpression() {
		e := parser.Expression()
		var keys []string
		line := 0
		for it := e.Key(); it.Next(); {
			if n := it.Node(); line == 0 {
				line = lineOf(int(n.Raw.Offset))
			}
			keys = append(keys, string(it.Node().Data))
		}
		path := strings.Join(keys, ".")
		top := keys[0] // of the document, if a table or a key has several steps
		if table != "" && e.Kind == unstable.KeyValue {
			top = table + "." + top
		}
		if _, ok := lines[top]; !ok {
			lines[top] = line
		}
		switch e.Kind {
		case unstable.ArrayTable:
			array = path
		case unstable.Table:
			array = ""
		}
		if err := work.add(e, array, line); err != nil {
			return nil, err
		}
		switch e.Kind {
		case unstable.ArrayTable:
			table = fmt.Sprintf("%s.%d", path, counts[path])
			counts[path]++
			lines[table] = line
		case unstable.Table:
			table = path
			lines[table] = line
		case unstable.KeyValue:
			if table != "" {
				path = table + "." + path
			}
			lines[path] = line
		}
	}
	return lines, parser.Error()
}
