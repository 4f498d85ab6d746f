package storage

import (
	"bytes"
	"context"
	"unicode"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
)

// kinds lists kinds of files that users often mistake for a checkpoint, with the
// bytes that such a file begins with.
var kinds = []struct{ magic, name string }{
	{"version https://git-lfs", "a Git LFS pointer, in the place of the file itself: 'git lfs pull' fetches it"},
	{"<!DOCTYPE", "an HTML page"},
	{"<html", "an HTML page"},
	{"<?xml", "an XML file"},
	{"\x7fELF", "an executable"},
	{"MZ", "an executable"},
	{"#!", "a script"},
	{"\x93NUMPY", "a NumPy array"},
	{"\x89HDF", "an HDF5 file"},
	{"GGUF", "a GGUF file"},
	{"PAR1", "a Parquet file"},
	{"\x1f\x8b", "a gzip file"},
	{"\x28\xb5\x2f\xfd", "a Zstandard file"},
	{"\x89PNG", "an image"},
	{"\xff\xd8\xff", "an image"},
	{"%PDF", "a PDF file"},
}

// OtherKind returns the kind of a file if its first bytes show that no checkpoint
// format uses it. Otherwise it returns "". It reports text as such a kind, although
// the *.json files of checkpoints are text: do not call it for them.
func OtherKind(ctx context.Context, r blob.Reader) (string, error) {
	head := make([]byte, min(64, r.Size()))
	if err := r.ReadAt(ctx, head, 0); err != nil {
		return "", err
	}
	// The length of a safetensors header comes first, and can begin like a magic.
	if len(head) > 8 && head[8] == '{' && bytes.Equal(head[4:8], make([]byte, 4)) {
		return "", nil
	}
	for _, k := range kinds {
		if bytes.HasPrefix(head, []byte(k.magic)) {
			return k.name, nil
		}
	}
	if isText(head) {
		return "a text file", nil
	}
	return "", nil
}

// isText reports whether a file that begins with head is text. It returns false for
// fewer than 4 bytes, because they may also be the start of a binary header.
func isText(head []byte) bool {
	if len(head) < 4 {
		return false
	}
	for len(head) > 0 {
		r, n := utf8.DecodeRune(head)
		if r == utf8.RuneError && n == 1 {
			return !utf8.FullRune(head)
		}
		if unicode.IsControl(r) && !unicode.IsSpace(r) {
			return false
		}
		head = head[n:]
	}
	return true
}
