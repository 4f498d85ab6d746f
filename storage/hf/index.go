package hf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/reading"
)

// maxIndex bounds the text of an index: it is of the kind of a header.
const maxIndex = 100_000_000

// index says in which file each tensor lies.
type index struct {
	Metadata  indexMetadata `json:"metadata"`
	WeightMap weightMap     `json:"weight_map"`
}

type indexMetadata struct {
	TotalSize int64 `json:"total_size"`
}

// weightMap maps the names of tensors to those of files. It is decoded strictly:
// no name comes twice.
type weightMap map[string]string

// UnmarshalJSON reads a map of strings to strings.
func (m *weightMap) UnmarshalJSON(b []byte) error {
	if *m != nil {
		return errors.New("weight_map comes twice")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("weight_map is no object: %w", err)
	}
	*m = weightMap{}
	files := map[string]string{} // each name once
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		value, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string) // keys always are
		file, ok := value.(string)
		if !ok {
			return fmt.Errorf("weight_map names %v as the file of %q", value, name)
		}
		if _, twice := (*m)[name]; twice {
			return fmt.Errorf("weight_map names %q twice", name)
		}
		if _, ok := files[file]; !ok {
			files[file] = file
		}
		(*m)[name] = files[file]
	}
	return nil
}

// readIndex reads an index and checks that it stays inside of its folder.
func readIndex(ctx context.Context, store blob.Store, name string) (weightMap, error) {
	b, err := blob.ReadAll(ctx, store, name, maxIndex)
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, badIndex(name, err)
	}
	if err != nil {
		return nil, err
	}
	m, err := decodeIndex(b)
	if err != nil {
		return nil, badIndex(name, err)
	}
	return m, nil
}

func badIndex(name string, err error) error {
	return reading.Damaged(name, "%w: %w", ErrIndex, err)
}

// decodeIndex returns the weight map of an index.
func decodeIndex(b []byte) (weightMap, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("it is not UTF-8")
	}
	var doc struct {
		WeightMap weightMap `json:"weight_map"` // all else is for people
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, err
	}
	if doc.WeightMap == nil {
		return nil, errors.New("it has no weight_map")
	}
	for name, file := range doc.WeightMap {
		if err := blob.CheckName(file); err != nil || strings.Contains(file, "/") {
			return nil, fmt.Errorf("the file %q of %q leaves the folder", file, name)
		}
	}
	return doc.WeightMap, nil
}

// encodeIndex returns the text of an index, its keys in order.
func encodeIndex(x *index) ([]byte, error) { return encodeJSON(x) }

// encodeJSON returns v as text for people and programs.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}
