package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage"
)

// decodeRecord decodes a commit record. A checksum that does not match, and
// contents that contradict themselves, are storage.ErrCorrupt; a sound record
// of another version is storage.ErrVersion. Fields that this version does not
// know are passed over where they stand inside the record: later programs may
// add some that may be ignored.
func decodeRecord(b []byte) (*record, error) {
	if len(b) > maxRecordBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", storage.ErrCorrupt, len(b), maxRecordBytes)
	}
	if !utf8.Valid(b) {
		return nil, fmt.Errorf("%w: not UTF-8", storage.ErrCorrupt)
	}
	o, err := unwrapRecord(b)
	if errors.Is(err, storage.ErrVersion) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	r := readRecordFields(o)
	if o.err == nil {
		o.err = r.check()
	}
	if o.err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, o.err)
	}
	return r, nil
}

// unwrapRecord verifies the file and returns the fields of its record. In every
// version the record says its format and version at the same place, and a
// checksum called crc32c covers it; anything else may change, so the version is
// looked at before the rest.
func unwrapRecord(b []byte) (*jsonFields, error) {
	file := parseJSONFields("file", b)
	value := file.raw("record")
	o := newJSONFields("record", value)
	if err := errors.Join(file.err, o.err); err != nil {
		return nil, err
	}
	crc, sealed := file.fields["crc32c"]
	want := hexCRC(crc32c.Checksum(value))
	if sealed && string(crc) != strconv.Quote(want) {
		return nil, fmt.Errorf("the checksum of the record does not match: it says %.20s, it is %q", crc, want)
	}
	if name := o.str("format"); o.err == nil && name != formatName {
		return nil, fmt.Errorf("format %q, want %q", name, formatName)
	}
	version := o.int("version", 0)
	if o.err != nil {
		return nil, o.err
	}
	if version != formatVersion {
		return nil, versionError(uint64(version), formatVersion)
	}
	if !bytes.Equal(b, wrapRecord(want, value)) {
		return nil, errors.New("the bytes around the record are not as they were written")
	}
	return o, nil
}

// readRecordFields reads the fields of a record of this version.
func readRecordFields(o *jsonFields) *record {
	r := &record{
		SaveID:    o.str("save_id"),
		Time:      o.time("time"),
		WorldSize: int(o.int("world_size", 0)),
		Writer:    o.str("writer"),
	}
	if o.has("step") {
		r.Step = new(o.int("step", -1<<63))
	}
	if o.has("tags") {
		r.Tags = readTags(o)
	}
	if o.has("planner_data") {
		var compact bytes.Buffer
		o.fail("planner_data", json.Compact(&compact, o.raw("planner_data")))
		r.PlannerData = compact.Bytes()
	}
	t := o.object("totals")
	r.Totals = recordTotals{t.int("tensors", 0), t.int("values", 0), t.int("chunks", 0), t.int("bytes", 0)}
	o.fail("totals", t.err)
	for i, raw := range o.list("files") {
		f := newJSONFields("file", raw)
		r.Files = append(r.Files, recordFile{f.str("name"), f.int("size", 0), f.crc("crc32c")})
		if f.err != nil {
			o.fail(fmt.Sprintf("files[%d]", i), f.err)
			break
		}
	}
	return r
}

func readTags(o *jsonFields) map[string]string {
	t := o.object("tags")
	tags := make(map[string]string, len(t.fields))
	for k := range t.fields {
		tags[k] = t.str(k)
	}
	o.fail("tags", t.err)
	return tags
}

// check returns an error unless the fields of r agree with each other. It fills
// in r.sizes.
func (r *record) check() error {
	if err := checkSaveID(r.SaveID); err != nil {
		return fmt.Errorf("save_id: %w", err)
	}
	if int64(int32(r.WorldSize)) != int64(r.WorldSize) {
		return fmt.Errorf("world_size: %d is absurd", r.WorldSize)
	}
	if len(r.Files) == 0 || r.Files[0].Name != indexFileName(r.SaveID) {
		return fmt.Errorf("files: the first is not the index, %s", indexFileName(r.SaveID))
	}
	r.sizes = make(map[string]int64, len(r.Files))
	for i, f := range r.Files {
		if err := blob.CheckName(f.Name); err != nil {
			return fmt.Errorf("files[%d]: name: %w", i, err)
		}
		if _, twice := r.sizes[f.Name]; twice || f.Name == recordName {
			return fmt.Errorf("files[%d]: %s is named twice or is the record itself", i, f.Name)
		}
		r.sizes[f.Name] = f.Size
	}
	return nil
}

// The record's own types of fields.

// time reads a field of RFC 3339 in UTC.
func (o *jsonFields) time(name string) time.Time {
	s := o.str(name)
	t, err := time.Parse(time.RFC3339Nano, s)
	if o.err == nil && (err != nil || !strings.HasSuffix(s, "Z")) {
		o.fail(name, fmt.Errorf("%q is no time in UTC", s))
	}
	return t
}

// crc reads a field of eight hexadecimal digits.
func (o *jsonFields) crc(name string) uint32 {
	s := o.str(name)
	v, err := strconv.ParseUint(s, 16, 32)
	if o.err == nil && (err != nil || hexCRC(uint32(v)) != s) {
		o.fail(name, fmt.Errorf("%q is no checksum", s))
	}
	return uint32(v)
}
