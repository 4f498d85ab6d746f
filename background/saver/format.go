package saver

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The options of a format in messages are the fields of its type: FileBytes is
// "file_bytes". docs/saver.md lists them.

var wordEnd = regexp.MustCompile(`([a-z])([A-Z])`)

// optionName returns the name of an option in messages.
func optionName(field string) string {
	return strings.ToLower(wordEnd.ReplaceAllString(field, "${1}_${2}"))
}

// FormatOptions returns the options of a format as a message contains them. The error
// wraps storage.ErrOptions if a saver process cannot use them.
func FormatOptions(f storage.Format) (json.RawMessage, error) {
	known, err := formats.ByName(f.Name(), nil)
	if err != nil || reflect.TypeOf(known) != reflect.TypeOf(f) {
		return nil, fmt.Errorf("%w: a saver process cannot use the format %T", storage.ErrOptions, f)
	}
	out := map[string]any{}
	for field, v := range reflect.ValueOf(f).Fields() {
		if v.IsZero() {
			continue
		}
		switch x := v.Interface().(type) {
		case tensor.DType:
			out[optionName(field.Name)] = x.String()
		case bool, int, int64, string:
			out[optionName(field.Name)] = x
		default:
			return nil, fmt.Errorf("%w: a saver process cannot use %T.%s", storage.ErrOptions, f, field.Name)
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return json.Marshal(out)
}

// decodeFormat returns a format with its options. An option that the format does not have
// is an error that wraps storage.ErrOptions.
func decodeFormat(name string, options json.RawMessage) (storage.Format, error) {
	f, err := formats.ByName(name, nil)
	if err != nil || len(options) == 0 {
		return f, err
	}
	left := map[string]json.RawMessage{}
	if err := json.Unmarshal(options, &left); err != nil {
		return nil, fmt.Errorf("%w: the options of %s: %w", storage.ErrOptions, name, err)
	}
	out := reflect.New(reflect.TypeOf(f)).Elem()
	for field, v := range out.Fields() {
		option := optionName(field.Name)
		text, ok := left[option]
		if !ok {
			continue
		}
		delete(left, option)
		if err := setOption(v, text); err != nil {
			return nil, fmt.Errorf("%w: the option %s of %s: %w", storage.ErrOptions, option, name, err)
		}
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("%w: the format %s does not have the options %q", storage.ErrOptions, name, slices.Sorted(maps.Keys(left)))
	}
	return out.Interface().(storage.Format), nil
}

// setOption sets a field to the value of an option.
func setOption(v reflect.Value, text json.RawMessage) error {
	switch p := v.Addr().Interface().(type) {
	case *tensor.DType:
		var s string
		err := json.Unmarshal(text, &s)
		if err == nil {
			*p, err = tensor.ParseDType(s)
		}
		return err
	case *bool, *int, *int64, *string:
		return json.Unmarshal(text, p)
	}
	return fmt.Errorf("a saver process cannot use it")
}
