package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage"
)

const (
	// maxDocument bounds the size of the files of this package.
	maxDocument = 1 << 20
	// documentVersion is the version of their contents, and exportsVersion that of notes with exports.
	documentVersion = 1
	exportsVersion  = 2
	// changeTries bounds how often a file is changed again because another process has
	// changed it meanwhile.
	changeTries = 30
)

// decodeDocument decodes one value of JSON with a version. The error wraps storage.ErrVersion if a
// newer program than one of the version newest has written it, and storage.ErrCorrupt if it has no version, unknown fields, or bytes
// after the value.
func decodeDocument(data []byte, newest int, v any) error {
	if len(data) > maxDocument {
		return fmt.Errorf("%w: it has %d bytes, at most %d", storage.ErrCorrupt, len(data), maxDocument)
	}
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err == nil { // before the fields, which a newer program may have added
		if err := checkVersion(head.Version, newest); err != nil {
			return err
		}
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: there are more bytes after the object", storage.ErrCorrupt)
	}
	return nil
}

// checkVersion returns an error if this program cannot read a version. It reads up to newest.
func checkVersion(v, newest int) error {
	switch {
	case v < 1:
		return fmt.Errorf("%w: it has no version", storage.ErrCorrupt)
	case v > newest:
		return fmt.Errorf("%w: version %d of a newer cairn, and this one reads up to %d", storage.ErrVersion, v, newest)
	}
	return nil
}

// seal returns the checksum of a document, which is encoded while its checksum is empty.
func seal(doc any) (string, error) {
	b, err := json.Marshal(doc)
	return fmt.Sprintf("%08x", crc32c.Checksum(b)), err
}

// checkSeal returns an error that wraps storage.ErrCorrupt unless doc has the checksum crc. The
// caller has cleared the checksum in doc. A document without a checksum was written by a person,
// or by an older program.
func checkSeal(doc any, crc string) error {
	if crc == "" {
		return nil
	}
	want, err := seal(doc)
	if err == nil && want != crc {
		err = fmt.Errorf("%w: the checksum does not match: it says %.20q, it is %q", storage.ErrCorrupt, crc, want)
	}
	return err
}

// readDocument returns the bytes of a file and its version, which is empty if the store has
// no versions. Nil: there is no such file.
func readDocument(ctx context.Context, store blob.Store, name string) ([]byte, string, error) {
	data, version, err := blob.ReadVersion(ctx, store, name, maxDocument)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if errors.Is(err, blob.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	return data, version, err
}

// changeDocument replaces a file by the result of change, which receives the bytes of the file, or
// nil if it does not exist. If another process changes the file meanwhile, it begins again. It does
// not write bytes that are there already.
func changeDocument(ctx context.Context, store blob.Store, name string, change func(old []byte) ([]byte, error)) error {
	for try := 1; ; try++ {
		old, version, err := readDocument(ctx, store, name)
		if err != nil {
			return err
		}
		data, err := change(old)
		if err != nil || bytes.Equal(data, old) {
			return err
		}
		o := &blob.CreateOptions{IfAbsent: old == nil}
		if old != nil && version != "" && blob.HasVersions(store) {
			o.IfVersion = version
		}
		_, err = blob.WriteAll(ctx, store, name, data, o)
		if err == nil || try == changeTries || !isRace(err) {
			return err
		}
		select {
		case <-time.After(time.Duration(rand.Int64N(int64(try) * int64(10*time.Millisecond)))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// isRace reports whether another process has changed an object meanwhile, or whether it is
// unknown if this one did: reading it again shows that.
func isRace(err error) bool {
	return isAny(err, blob.ErrChanged, fs.ErrExist, blob.ErrUncertain)
}
