package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// jsonFields are the members of one JSON object, read one by one under their
// exact names: encoding/json would take the last of several, and names in any
// case. Its first error sticks and names the field.
type jsonFields struct {
	fields map[string]json.RawMessage
	err    error
}

// parseJSONFields reads the object b, which may be anything and is called what
// in errors. The fields alias b.
func parseJSONFields(what string, b []byte) *jsonFields {
	var v json.RawMessage
	if err := json.Unmarshal(b, &v); err != nil {
		return &jsonFields{err: fmt.Errorf("%s: not a JSON object: %w", what, err)}
	}
	return newJSONFields(what, b)
}

// newJSONFields reads the object b, which must be empty or a valid JSON value.
func newJSONFields(what string, b []byte) *jsonFields {
	o := &jsonFields{fields: make(map[string]json.RawMessage)}
	if err := o.read(b); err != nil {
		o.err = fmt.Errorf("%s: %w", what, err)
	}
	return o
}

// read cuts a valid JSON value into the members of an object.
func (o *jsonFields) read(b []byte) error {
	b = jsonSpace(b)
	if len(b) == 0 || b[0] != '{' {
		return errors.New("not a JSON object")
	}
	b = jsonSpace(b[1:])
	for b[0] != '}' {
		n := jsonValue(b)
		key, err := jsonText(b[:n])
		if err != nil {
			return err
		}
		if _, twice := o.fields[key]; twice {
			return fmt.Errorf("the field %q twice", key)
		}
		b = jsonSpace(jsonSpace(b[n:])[1:]) // the colon
		n = jsonValue(b)
		o.fields[key] = json.RawMessage(b[:n:n])
		b = jsonSpace(b[n:])
		if b[0] == ',' {
			b = jsonSpace(b[1:])
		}
	}
	return nil
}

// jsonSpace returns b without the white space it begins with.
func jsonSpace(b []byte) []byte { return bytes.TrimLeft(b, " \t\r\n") }

// jsonValue returns the length of the valid JSON value that b begins with.
func jsonValue(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i += jsonString(b[i:]) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			// Within a number or word, the next byte tells whether it ends.
			if depth > 0 || i+1 < len(b) && bytes.IndexByte([]byte(",:}] \t\r\n"), b[i+1]) < 0 {
				continue
			}
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(b)
}

// jsonText returns the string that the valid JSON value raw is.
func jsonText(raw []byte) (s string, err error) {
	if len(raw) >= 2 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	err = json.Unmarshal(raw, &s)
	return s, err
}

// jsonString returns the length of the valid JSON string that b begins with.
func jsonString(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// fail makes err the error of a field, unless it is nil or there is one.
func (o *jsonFields) fail(name string, err error) {
	if o.err == nil && err != nil {
		o.err = fmt.Errorf("%s: %w", name, err)
	}
}

func (o *jsonFields) has(name string) bool {
	_, ok := o.fields[name]
	return ok
}

// raw returns the exact bytes of a field, which must be there.
func (o *jsonFields) raw(name string) json.RawMessage {
	v, ok := o.fields[name]
	if !ok {
		o.fail(name, errors.New("missing"))
	}
	return v
}

// value returns the bytes of a field that is there and not null, or nil.
func (o *jsonFields) value(name string) json.RawMessage {
	raw := o.raw(name)
	if string(raw) == "null" {
		o.fail(name, errors.New("null"))
	}
	if o.err != nil {
		return nil
	}
	return raw
}

// get decodes a field into v.
func (o *jsonFields) get(name string, v any) {
	if raw := o.value(name); raw != nil {
		o.fail(name, json.Unmarshal(raw, v))
	}
}

func (o *jsonFields) str(name string) string {
	raw := o.value(name)
	if raw == nil {
		return ""
	}
	s, err := jsonText(raw)
	o.fail(name, err)
	return s
}

// int reads a plain integer of at least low.
func (o *jsonFields) int(name string, low int64) (v int64) {
	o.get(name, &v)
	if o.err == nil && v < low {
		o.fail(name, fmt.Errorf("%d is below %d", v, low))
	}
	return v
}

func (o *jsonFields) list(name string) (v []json.RawMessage) {
	o.get(name, &v)
	return v
}

func (o *jsonFields) object(name string) *jsonFields {
	return newJSONFields(name, o.raw(name))
}
