package safetensors

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Encode returns the bytes before the data: the length field and the text, padded
// with spaces so that the data begins at a multiple of align, which must be
// positive. "__metadata__" comes first, with sorted keys, then the entries in the
// order of h.Entries. Equal headers give equal bytes.
//
// It returns [ErrHeader] for every header that [Decode] would refuse: entries
// that do not tile the data in their order, repeated names, strings that are not
// UTF-8, a header above [MaxHeader].
func Encode(h *Header, align int64) ([]byte, error) {
	if align < 1 {
		return nil, fmt.Errorf("%w: alignment of %d", ErrHeader, align)
	}
	if err := checkHeader(h); err != nil {
		return nil, err
	}
	room := 256 + 128*len(h.Entries)
	for _, v := range h.Metadata {
		room += len(v) + len(v)/4 // for escapes
	}
	b := make([]byte, lengthBytes, room)
	b = appendText(b, h)
	pad := (align - int64(len(b))%align) % align
	n := int64(len(b)) - lengthBytes + pad
	if n > MaxHeader || n < 0 {
		return nil, fmt.Errorf("%w: length %d, at most %d", ErrHeader, n, MaxHeader)
	}
	b = slices.Grow(b, int(pad))
	for range pad {
		b = append(b, ' ')
	}
	binary.LittleEndian.PutUint64(b, uint64(n))
	return b, nil
}

// checkHeader returns an error if Decode would refuse h.
func checkHeader(h *Header) error {
	names := make(map[string]struct{}, len(h.Entries))
	for i := range h.Entries {
		name := h.Entries[i].Name
		if _, twice := names[name]; twice || name == metadataKey || !utf8.ValidString(name) {
			return fmt.Errorf("%w: tensor name %q is repeated, reserved or not UTF-8", ErrHeader, name)
		}
		names[name] = struct{}{}
	}
	for k, v := range h.Metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("%w: metadata %q is not UTF-8", ErrHeader, k)
		}
	}
	_, err := checkEntries(h.Entries)
	return err
}

func appendText(b []byte, h *Header) []byte {
	b = append(b, '{')
	if h.Metadata != nil {
		b = appendMetadata(b, h.Metadata)
	}
	for i := range h.Entries {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = appendEntry(b, &h.Entries[i])
	}
	return append(b, '}')
}

func appendMetadata(b []byte, m map[string]string) []byte {
	b = append(b, `"`+metadataKey+`":{`...)
	for i, k := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, k)
		b = append(b, ':')
		b = appendString(b, m[k])
	}
	return append(b, '}')
}

func appendEntry(b []byte, e *Entry) []byte {
	b = appendString(b, e.Name)
	b = append(b, `:{"dtype":`...)
	b = appendString(b, e.DType)
	b = append(b, `,"shape":`...)
	b = appendSizes(b, e.Shape...)
	b = append(b, `,"data_offsets":`...)
	b = appendSizes(b, e.Begin, e.End)
	return append(b, '}')
}

func appendSizes(b []byte, v ...int64) []byte {
	b = append(b, '[')
	for i, n := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return append(b, ']')
}

// appendString appends s as a JSON string with the fewest escapes.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		if c < ' ' {
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		} else {
			b = append(b, '\\', c)
		}
	}
	return append(append(b, s[start:]...), '"')
}
