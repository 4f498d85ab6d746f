package slime

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
)

// indexName is the index of a version. It is the record: the last file of a version.
const indexName = "model.safetensors.index.json"

// maxIndex bounds the text of an index.
const maxIndex = 100_000_000

// index is the index of a delta version.
type index struct {
	Metadata  description       `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"` // the file of each tensor that has changed
}

// description is the metadata of a version in its index. Full versions have other keys.
type description struct {
	Version     string `json:"version"`
	BaseVersion string `json:"base_version"`
	Encoding    string `json:"delta_encoding"`
	Compression string `json:"compression_format"`
	Checksum    string `json:"checksum_format"`
}

// check returns the numbers of the version and of its base.
func (d *description) check() (version, base int64, err error) {
	if version, err = parseVersion(d.Version); err != nil {
		return 0, 0, err
	}
	if base, err = parseVersion(d.BaseVersion); err != nil {
		return 0, 0, err
	}

	_, known := sums[d.Checksum]
	switch {
	case base != version-1:
		return 0, 0, fmt.Errorf("%w: version %d has the base_version %d: versions are applied one after the other", storage.ErrCorrupt, version, base)
	case !slices.Contains(encodings, d.Encoding):
		return 0, 0, fmt.Errorf("%w: delta_encoding %.80q", storage.ErrVersion, d.Encoding)
	case d.Compression != compression:
		return 0, 0, fmt.Errorf("%w: compression_format %.80q", storage.ErrVersion, d.Compression)
	case !known:
		return 0, 0, fmt.Errorf("%w: checksum_format %.80q", storage.ErrVersion, d.Checksum)
	}

	return version, base, nil
}

var digits = regexp.MustCompile(`^[0-9]{6,18}$`)

// parseVersion returns the number of a version, which has six digits or more.
func parseVersion(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !digits.MatchString(text) || versionText(n) != text {
		return 0, fmt.Errorf("%w: %.80q is not the number of a version", storage.ErrCorrupt, text)
	}
	return n, nil
}

// versionText returns the number of a version as an index has it.
func versionText(n int64) string { return fmt.Sprintf("%06d", n) }

// folderPrefix is the beginning of the names of folders of versions.
const folderPrefix = "weight_v"

// Folder returns the name of the folder of a version.
func Folder(version int64) string { return folderPrefix + versionText(version) }

var folders = regexp.MustCompile(`^` + folderPrefix + `([0-9]{6,18})$`)

// ParseFolder returns the number of the version from the name of its folder.
func ParseFolder(name string) (version int64, ok bool) {
	m := folders.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	n, err := parseVersion(m[1])
	return n, err == nil
}

// IsFolder reports whether a folder of a delta version may have that name.
func IsFolder(name string) bool {
	n, ok := ParseFolder(name)
	return ok && n > 0
}

// decodeIndex reads the text of an index of a delta version.
func decodeIndex(b []byte) (*index, error) {
	m, err := hf.DecodeIndex(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}

	var doc map[string]json.RawMessage
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}

	var about map[string]any
	if err := json.Unmarshal(doc["metadata"], &about); err != nil {
		return nil, fmt.Errorf("%w: metadata: %w", storage.ErrCorrupt, err)
	}

	text := func(key string) string { // unlike a struct, a map distinguishes upper and lower case
		s, _ := about[key].(string)
		return s
	}
	return &index{description{
		text("version"), text("base_version"), text("delta_encoding"), text("compression_format"), text("checksum_format"),
	}, m}, nil
}

// IsDelta reports whether the root of store holds the index of a delta version. A full
// version is a checkpoint of the format hf.
func IsDelta(ctx context.Context, store blob.Store) (bool, error) {
	r, err := store.Open(ctx, indexName)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}

	defer r.Close()
	found, err := hasEncoding(bufio.NewReaderSize(section(ctx, r, 0, min(r.Size(), maxIndex))(), detectBytes))
	if e, ok := errors.AsType[storeError](err); ok {
		return false, e.error
	}
	return found, nil // opening a malformed index returns a clearer error
}

// detectBytes is the size of the reads of IsDelta. Most indexes begin with their metadata.
const detectBytes = 64 << 10

// hasEncoding reports whether the metadata of an index has a delta_encoding, or a
// base_version: without its encoding, a damaged delta version would look like a full one,
// with the bytes of its differences as tensors. It reads only up to the end of the metadata.
func hasEncoding(r io.Reader) (bool, error) {
	d := json.NewDecoder(r)
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return false, err
	}

	for d.More() {
		key, err := d.Token()
		if err != nil {
			return false, err
		}
		if key != "metadata" {
			if err := skip(d); err != nil {
				return false, err
			}
			continue
		}

		var m map[string]json.RawMessage
		if err := d.Decode(&m); err != nil {
			return false, err
		}

		_, encoded := m["delta_encoding"]
		_, based := m["base_version"]
		return encoded || based, nil
	}

	return false, nil
}

// skip reads one value without keeping it.
func skip(d *json.Decoder) error {
	for depth := 0; ; {
		t, err := d.Token()
		if err != nil {
			return err
		}

		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}

		if depth == 0 {
			return nil
		}
	}
}

// baseNumber returns the number of the version at an address: the number of a folder of
// versions, or 0.
func baseNumber(address string) int64 {
	if address == "" {
		return math.MinInt64
	}
	_, name := blob.SplitAddress(address)
	n, _ := ParseFolder(name)
	return n
}
