// Package safetensors reads and writes the header of a safetensors file, as strictly as the
// format's own library. It does not depend on checkpoints and leaves the data after the
// header to its callers. The contract is at Encode and Decode.
package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/tensor"
)

// ErrHeader reports a header that is malformed, or inconsistent with itself or
// its file.
var ErrHeader = errors.New("invalid safetensors header")

// MaxHeader bounds the JSON text of a header, as the format does.
const MaxHeader = 100_000_000

const (
	// lengthBytes is the size of the length field before the text.
	lengthBytes = 8
	// firstRead is the size of Decode's first read, before the length of the
	// header is known: enough for most headers, and cheap compared to a request.
	firstRead = 64 << 10
	// metadataKey is the only key of a header that is not a tensor.
	metadataKey = "__metadata__"
)

// Header is the header of a safetensors file.
type Header struct {
	// Entries are the tensors in the order of their data, which they tile without
	// gaps or overlaps.
	Entries []Entry
	// Metadata is the file's free-form metadata. Nil: the header has no metadata.
	Metadata map[string]string
	// Size is the size of the length field and the text with its padding, which
	// is the offset of the data. [Encode] ignores it.
	Size int64
}

// Entry is one tensor of a file.
type Entry struct {
	Name string
	// DType is the format's name of the element type, such as "BF16".
	DType string
	// Shape is not nil; a 0-d tensor has an empty one.
	Shape []int64
	// Begin and End are the range of the bytes, relative to the start of the
	// data.
	Begin, End int64
}

// Decode reads the header of a file of the given size. It calls read, which must
// fill p with the bytes at off, once or twice.
//
// It accepts the same headers as the format's library, with three exceptions that do not
// occur in sound files: repeated keys and unknown fields, a "__metadata__" of null, and
// element types smaller than a byte. Memory is bounded by the length of the header. Errors
// wrap [ErrHeader], except errors of read.
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

// dtypes are the format's element types of whole bytes. All libraries since
// safetensors 0.4 support the stock types. F4, F6_E2M3 and F6_E3M2, which are
// smaller than a byte, are not supported.
var dtypes = [...]struct {
	name  string
	dtype tensor.DType
	stock bool
}{
	{"F64", tensor.Float64, true},
	{"F32", tensor.Float32, true},
	{"F16", tensor.Float16, true},
	{"BF16", tensor.BFloat16, true},
	{"F8_E4M3", tensor.Float8E4M3FN, true},
	{"F8_E5M2", tensor.Float8E5M2, true},
	{"I64", tensor.Int64, true},
	{"I32", tensor.Int32, true},
	{"I16", tensor.Int16, true},
	{"I8", tensor.Int8, true},
	{"U64", tensor.Uint64, true},
	{"U32", tensor.Uint32, true},
	{"U16", tensor.Uint16, true},
	{"U8", tensor.Uint8, true},
	{"BOOL", tensor.Bool, true},
	{"F8_E8M0", tensor.Float8E8M0FNU, false},
	{"F8_E4M3FNUZ", tensor.Float8E4M3FNUZ, false},
	{"F8_E5M2FNUZ", tensor.Float8E5M2FNUZ, false},
	{"C64", tensor.Complex64, false},
}

var byName = func() map[string]tensor.DType {
	m := make(map[string]tensor.DType, len(dtypes))
	for _, t := range dtypes {
		m[t.name] = t.dtype
	}
	return m
}()

// TensorDType returns the type with the given name in the format. It accepts all
// names that any version of the format has for types of whole bytes.
func TensorDType(name string) (tensor.DType, bool) {
	d, ok := byName[name]
	return d, ok
}

// DTypeName returns the format's name of d. It returns false for complex128, which the
// format lacks. Older libraries do not read all of the names; see [StockName].
func DTypeName(d tensor.DType) (string, bool) {
	for _, t := range dtypes {
		if t.dtype == d {
			return t.name, true
		}
	}
	return "", false
}

// StockName is [DTypeName] for types that all libraries since safetensors 0.4 support, so
// that the file can be read everywhere. It returns false for the float8 types other than
// float8_e4m3fn and float8_e5m2 and for complex types.
func StockName(d tensor.DType) (string, bool) {
	for _, t := range dtypes {
		if t.dtype == d && t.stock {
			return t.name, true
		}
	}
	return "", false
}

// byOffset orders entries by their data. An empty entry comes before the entry at
// the same offset.
func byOffset(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
}

// checkEntries returns the end of the data, or an error unless the entries are
// valid and tile the data from its start.
func checkEntries(entries []Entry) (end int64, err error) {
	for i := range entries {
		e := &entries[i]
		if err := checkEntry(e); err != nil {
			return 0, fmt.Errorf("%w: tensor %q: %w", ErrHeader, e.Name, err)
		}
		if e.Begin != end {
			return 0, fmt.Errorf("%w: tensor %q begins at byte %d of the data, the one before ends at %d", ErrHeader, e.Name, e.Begin, end)
		}
		end = e.End
	}
	return end, nil
}

// checkEntry returns an error unless e's range has the size of its shape and
// type.
func checkEntry(e *Entry) error {
	d, ok := TensorDType(e.DType)
	if !ok {
		return fmt.Errorf("%w: %q", tensor.ErrDType, e.DType)
	}

	n, err := tensor.NumBytes(d, e.Shape)
	if err != nil {
		return err
	}
	if e.Begin < 0 || e.End < e.Begin || e.End-e.Begin != n {
		return fmt.Errorf("data_offsets [%d, %d] for %d bytes of %s %v", e.Begin, e.End, n, e.DType, e.Shape)
	}
	return nil
}
