// Package safetensors reads and writes the header of a safetensors file, as
// strictly as the format's own library. It knows nothing of checkpoints, and
// leaves the data behind the header to its callers. The contract is in the
// comments of Encode and Decode.
package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"
)

// ErrHeader reports a header that is malformed or contradicts itself or its
// file.
var ErrHeader = errors.New("invalid safetensors header")

// MaxHeader bounds the JSON text of a header, as the format does.
const MaxHeader = 100_000_000

const (
	// lengthBytes is the size of the length field in front of the text.
	lengthBytes = 8
	// firstRead is how much Decode asks for before it knows how long the header
	// is: enough for most, and little beside a request's cost.
	firstRead = 64 << 10
	// metadataKey is the one key of a header that names no tensor.
	metadataKey = "__metadata__"
)

// Header is what a safetensors file says about its data.
type Header struct {
	// Entries are the tensors in the order of their data, which they tile
	// without holes or overlaps.
	Entries []Entry
	// Metadata are the file's own words. Nil: the header has none.
	Metadata map[string]string
	// Size is the number of bytes of the length field and the text with its
	// padding: where the data begins. [Encode] ignores it.
	Size int64
}

// Entry is one tensor of a file.
type Entry struct {
	Name string
	// DType is the format's name of the element type, such as "BF16".
	DType string
	// Shape is not nil; a 0-d tensor has an empty one.
	Shape []int64
	// Begin and End are the range of the bytes, counted from where the data
	// begins.
	Begin, End int64
}

// Decode reads the header of a file of the given size. It calls read, which
// must fill p with the bytes from off on, once or twice.
//
// It accepts what the format's library accepts, with three exceptions that
// cost no sound file anything: a repeated key or an unknown field anywhere, a
// "__metadata__" of null, and element types below a byte are refused too. The
// memory it takes is bounded by the length of the header in the file. Errors
// wrap [ErrHeader], apart from those of read.
func Decode(read func(p []byte, off int64) error, fileSize int64) (*Header, error) {
	text, err := readText(read, fileSize)
	if err != nil {
		return nil, err
	}
	h, err := parse(text)
	if err != nil {
		return nil, err
	}
	h.Size = lengthBytes + int64(len(text))
	if !slices.IsSortedFunc(h.Entries, byOffset) {
		slices.SortStableFunc(h.Entries, byOffset)
	}
	end, err := checkEntries(h.Entries)
	if err != nil {
		return nil, err
	}
	if end != fileSize-h.Size {
		return nil, fmt.Errorf("%w: the tensors end at byte %d of the data, the file has %d", ErrHeader, end, fileSize-h.Size)
	}
	return h, nil
}

// readText returns the JSON text of the header.
func readText(read func(p []byte, off int64) error, fileSize int64) (string, error) {
	if fileSize < lengthBytes {
		return "", fmt.Errorf("%w: a file of %d bytes has no room for one", ErrHeader, fileSize)
	}
	buf := make([]byte, min(fileSize, firstRead))
	if err := read(buf, 0); err != nil {
		return "", fmt.Errorf("safetensors header: %w", err)
	}
	n := binary.LittleEndian.Uint64(buf)
	if n > MaxHeader {
		return "", fmt.Errorf("%w: length %d, at most %d", ErrHeader, n, MaxHeader)
	}
	if n > uint64(fileSize-lengthBytes) {
		return "", fmt.Errorf("%w: length %d in a file of %d bytes", ErrHeader, n, fileSize)
	}
	have := len(buf)
	if want := lengthBytes + int(n); want > have {
		buf = append(make([]byte, 0, want), buf...)[:want]
		if err := read(buf[have:], int64(have)); err != nil {
			return "", fmt.Errorf("safetensors header: %w", err)
		}
	}
	text := buf[lengthBytes : lengthBytes+int(n)]
	if !utf8.Valid(text) {
		return "", fmt.Errorf("%w: not UTF-8", ErrHeader)
	}
	return string(text), nil
}
