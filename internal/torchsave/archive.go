package torchsave

import (
	"context"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The records that mean something, inside of the archive's folder.
const (
	recordPickle    = "data.pkl"
	recordStorages  = "data/" // and the key of a storage
	recordByteOrder = "byteorder"
	recordVersion   = "version"
	recordVersion15 = ".data/version"
	recordFormat    = ".format_version"
	recordAlignment = ".storage_alignment"
	recordID        = ".data/serialization_id"
)

// The versions of the archive that PyTorch reads.
const minVersion, maxVersion = 1, 10

// archive is the zip form of a file: its records by their names inside of the
// one folder that they are all in.
type archive struct {
	src     *source
	records []record
	byName  map[string]*record
	folder  string
}

func openArchive(ctx context.Context, s *source) (*archive, error) {
	records, limit, err := readDirectory(ctx, s)
	if err != nil {
		return nil, err
	}
	a := &archive{src: s, records: records, byName: make(map[string]*record, len(records))}
	if err := a.name(); err != nil {
		return nil, err
	}
	if err := locate(ctx, s, records, limit); err != nil {
		return nil, err
	}
	return a, a.checkKind(ctx)
}

// name finds the records' folder and sorts them by their names inside of it.
func (a *archive) name() error {
	if len(a.records) == 0 {
		return fmt.Errorf("%w: an archive without records", ErrMalformed)
	}
	seen := make(map[string]bool, len(a.records))
	for i := range a.records {
		r := &a.records[i]
		folder, rest, ok := strings.Cut(r.name, "/")
		if i == 0 {
			a.folder = folder
		}
		if !ok || folder != a.folder {
			return fmt.Errorf("%w: %q is not in the folder %q of the archive", ErrName, r.name, a.folder)
		}
		low := strings.ToLower(r.name) // PyTorch looks names up in any case
		if seen[low] {
			return fmt.Errorf("%w: %q", ErrDuplicate, r.name)
		}
		seen[low] = true
		a.byName[rest] = r
	}
	return nil
}

// checkName refuses names that would lead elsewhere if somebody unpacked the
// archive.
func checkName(name string) error {
	ok := utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return r == '\\' || r < ' ' || r == 0x7f })
	for e := range strings.SplitSeq(name, "/") {
		ok = ok && e != "" && e != "." && e != ".."
	}
	if !ok {
		return fmt.Errorf("%w: %q", ErrName, name)
	}
	return nil
}

// checkKind checks the records that say what kind of archive this is.
func (a *archive) checkKind(ctx context.Context) error {
	version, ok, err := a.text(ctx, recordVersion)
	if err == nil && !ok {
		version, ok, err = a.text(ctx, recordVersion15)
	}
	if err != nil {
		return err
	}
	n, convErr := strconv.Atoi(strings.TrimSpace(version))
	if !ok || convErr != nil || n < minVersion || n > maxVersion {
		return fmt.Errorf("%w: %q", ErrVersion, version)
	}
	format, ok, err := a.text(ctx, recordFormat)
	if err != nil {
		return err
	}
	if ok && strings.TrimSpace(format) != "1" {
		return fmt.Errorf("%w: format %q", ErrVersion, format)
	}
	order, ok, err := a.text(ctx, recordByteOrder)
	if err != nil {
		return err
	}
	if ok && order != "little" {
		return fmt.Errorf("%w: %q", ErrByteOrder, order)
	}
	return nil
}

// maxText bounds the records that hold a word.
const maxText = 64

// text returns a record that holds a word, and whether there is one.
func (a *archive) text(ctx context.Context, name string) (string, bool, error) {
	r := a.byName[name]
	if r == nil {
		return "", false, nil
	}
	b, err := a.content(ctx, r, maxText)
	return string(b), true, err
}

// content returns a record's bytes, checked against the directory's checksum.
func (a *archive) content(ctx context.Context, r *record, limit int64) ([]byte, error) {
	if r.size > limit {
		return nil, fmt.Errorf("%w: %q has %d bytes, at most %d", ErrLimit, r.name, r.size, limit)
	}
	b, err := a.src.bytes(ctx, r.data, r.size)
	if err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(b) != r.crc {
		return nil, fmt.Errorf("%w: %q", ErrChecksum, r.name)
	}
	return b, nil
}
