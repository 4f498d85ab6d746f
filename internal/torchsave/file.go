package torchsave

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/pickle"
)

// ReadFunc fills p with the bytes from off on of a file, or of the range of a
// larger file that holds one. There are no partial results. It may be called
// from several goroutines at once.
type ReadFunc func(ctx context.Context, p []byte, off int64) error

// File is an open file of torch.save. Nobody changes it.
type File struct {
	// Root is the value that was saved, in the types of package value. The
	// tensors inside are *Tensor. One of a class that is unknown here, sparse
	// and quantised ones too, is a *value.Object, in whose arguments a *Storage
	// may be.
	Root any
	// Legacy says that the file is a stream as PyTorch wrote it before 1.6.
	// Such a file has no checksums.
	Legacy bool
	// PickleOffset and PickleEnd are where the pickle of Root begins and ends.
	PickleOffset, PickleEnd int64
	// Unsummed is how many bytes of the pickle and of the storages have no
	// checksum: none of the zip form, all of the stream.
	Unsummed int64
	// records are those of the zip form.
	records []record
	folder  string
}

// Open reads the description of the size bytes that read gives: of the zip form
// the directory, the records' headers and the pickle, of the stream all but the
// storages. Of the tensors it reads no more than the few bytes that come along.
// A small file takes one read; a larger one takes two, one for each storage, and
// what of its pickle and directory is beyond them.
//
// Open returns an error that wraps ErrMalformed if the bytes are not a valid file.
// The error also wraps ErrForeign if they do not begin like a file of torch.save,
// or are an archive of another kind.
func Open(ctx context.Context, read ReadFunc, size int64) (*File, error) {
	s, err := newSource(ctx, read, size)
	if err != nil {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(s.head, []byte(signLocal)):
		f, err := openZip(ctx, s)
		if errors.Is(err, ErrMalformed) {
			if kind := otherArchive(ctx, s); kind != "" {
				return nil, foreign(kind)
			}
			if !looksSaved(s.head) {
				return nil, foreign("a zip archive of another program")
			}
		}
		return f, err
	case bytes.HasPrefix(s.head, []byte(signEnd)):
		return nil, foreign("an empty zip archive")
	case isLegacy(s.head):
		return openLegacy(ctx, s)
	case len(s.head) > 262 && string(s.head[257:262]) == "ustar":
		return nil, ErrTar
	case size == 0:
		return nil, fmt.Errorf("%w: it is empty", ErrTruncated)
	case s.head[0] == 0x80:
		return nil, fmt.Errorf("%w: a pickle that torch.save did not write", ErrForeign)
	}
	return nil, fmt.Errorf("%w: neither a zip archive nor a stream of PyTorch", ErrForeign)
}

// looksSaved reports whether an archive begins as torch.save lets it begin: with
// the pickle, or one of the records that say what kind of archive it is.
func looksSaved(head []byte) bool {
	if len(head) < localBytes {
		return true // it is cut short, and nothing speaks against it
	}
	n := int(binary.LittleEndian.Uint16(head[26:]))
	name := string(head[localBytes:min(len(head), localBytes+n)])
	_, rest, ok := strings.Cut(name, "/")
	switch {
	case !ok:
		return false
	case strings.HasPrefix(rest, recordStorages):
		return true
	}
	return slices.Contains([]string{recordPickle, recordByteOrder, recordVersion, recordVersion15, recordFormat, recordAlignment, recordID}, rest)
}

// otherArchive returns the kind of a zip archive by the names of its records, if it
// is a known kind that torch.save does not write, and "" otherwise.
func otherArchive(ctx context.Context, s *source) string {
	d, err := findDirectory(ctx, s)
	if err != nil {
		return ""
	}
	b, err := s.bytes(ctx, d.offset, d.size)
	if err != nil {
		return ""
	}
	arrays := len(b) > 0
	for len(b) >= centralBytes && bytes.HasPrefix(b, []byte(signCentral)) {
		le := binary.LittleEndian
		n := int(le.Uint16(b[28:]))
		total := centralBytes + n + int(le.Uint16(b[30:])) + int(le.Uint16(b[32:]))
		if total > len(b) {
			return ""
		}
		name := string(b[centralBytes:][:n])
		_, rest, _ := strings.Cut(name, "/")
		switch {
		case rest == "constants.pkl":
			return "a TorchScript archive"
		case rest == "archive_format", name == "archive_format", name == "serialized_exported_program.json":
			return "an exported program of torch.export"
		}
		arrays = arrays && strings.HasSuffix(name, ".npy")
		b = b[total:]
	}
	if arrays && len(b) == 0 {
		return "a NumPy archive (.npz)"
	}
	return ""
}

func openZip(ctx context.Context, s *source) (*File, error) {
	a, err := openArchive(ctx, s)
	if err != nil {
		return nil, err
	}
	r := a.byName[recordPickle]
	if r == nil {
		return nil, fmt.Errorf("%w: no record %q", ErrMalformed, recordPickle)
	}
	data, err := a.content(ctx, r, maxPickle)
	if err != nil {
		return nil, err
	}
	root, err := decode(ctx, data, a.storage)
	if err != nil {
		return nil, err
	}
	return &File{Root: root, PickleOffset: r.data, PickleEnd: r.end(), records: a.records, folder: a.folder}, nil
}

// decode decodes the value of a file.
func decode(ctx context.Context, data []byte, storage func(id any) (any, error)) (any, error) {
	v, err := pickle.Decode(data, &pickle.DecodeOptions{Persistent: storage, Construct: constructs(), Limits: &pickle.Limits{Context: ctx}})
	if err != nil {
		return nil, malformed(ctx, err)
	}
	return v, nil
}

// malformed makes an error of package pickle one of ours, unless it is the
// context's.
func malformed(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return fmt.Errorf("%w: %w", ErrMalformed, err)
}
