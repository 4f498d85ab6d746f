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
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// maxRecordBytes bounds the commit record: room for some hundred thousand
// files.
const maxRecordBytes = 64 << 20

// formatName is the name of the format in the record.
const formatName = "cairn"

// record is the commit record: what makes a set of files a checkpoint. Its bytes
// are described in docs/format/native.md.
type record struct {
	SaveID    string
	Step      *int64 // nil: unknown
	Time      time.Time
	WorldSize int
	Writer    string
	Tags      map[string]string
	// PlannerData is a JSON value in compact form, or nil.
	PlannerData json.RawMessage
	Totals      recordTotals
	// Files are the checkpoint's other files. The first is the index.
	Files []storage.File

	sizes map[string]int64 // of the files; set by decodeRecord
}

// recordTotals count what the checkpoint holds.
type recordTotals struct {
	Tensors, Values, Chunks int64
	// Bytes are those of the whole tensors and of the values.
	Bytes int64
}

// size returns the size of the file of that name.
func (r *record) size(name string) (int64, bool) {
	if r.sizes == nil {
		for _, f := range r.Files {
			if f.Name == name {
				return f.Size, true
			}
		}
		return 0, false
	}
	n, ok := r.sizes[name]
	return n, ok
}

// wrapRecord returns the content of the file that holds the record value. It depends
// only on value and checksum, so a reader can detect every change of the other bytes.
func wrapRecord(crc string, value []byte) []byte {
	b := make([]byte, 0, len(value)+64)
	b = append(b, "{\n  \"crc32c\": \""+crc+"\",\n  \"record\": "...)
	b = append(b, value...)
	return append(b, "\n}\n"...)
}

// decodeRecord decodes a commit record. The error wraps storage.ErrCorrupt if the
// checksum does not match or the contents contradict each other, and storage.ErrVersion
// if the record is intact but has another version. Unknown fields of the record are
// ignored, so that later programs can add fields.
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

// unwrapRecord verifies the file and returns the fields of its record. In every version,
// the record has the fields format and version, and the field crc32c of the file is its
// checksum. Everything else may change, so unwrapRecord checks the version first.
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
		r.Files = append(r.Files, storage.File{Name: f.str("name"), Size: f.int("size", 0), CRC32C: f.crc("crc32c")})
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

// encodeRecord returns the bytes of the commit record: JSON, indented, a line
// for each file. The same record always gives the same bytes. It refuses what
// decodeRecord would refuse, with an error that wraps meta.ErrInvalid.
func encodeRecord(r *record) ([]byte, error) {
	if err := r.checkText(); err != nil {
		return nil, fmt.Errorf("record: %w: %w", meta.ErrInvalid, err)
	}
	var w recordWriter
	w.open('{')
	w.field("format", formatName)
	w.field("version", formatVersion)
	w.field("save_id", r.SaveID)
	if r.Step != nil {
		w.field("step", *r.Step)
	}
	w.field("time", r.Time.UTC().Format(time.RFC3339Nano))
	w.field("world_size", r.WorldSize)
	w.field("writer", r.Writer)
	if len(r.Tags) > 0 {
		w.field("tags", r.Tags)
	}
	if r.PlannerData != nil {
		w.field("planner_data", r.PlannerData)
	}
	w.key("totals")
	w.totals(r.Totals)
	w.key("files")
	w.files(r.Files)
	w.close('}')
	if w.err != nil {
		return nil, fmt.Errorf("record: %w: %w", meta.ErrInvalid, w.err)
	}
	b := wrapRecord(hexCRC(crc32c.Checksum(w.b.Bytes())), w.b.Bytes())
	if _, err := decodeRecord(b); err != nil {
		return nil, fmt.Errorf("record: %w: %w", meta.ErrInvalid, err)
	}
	return b, nil
}

// checkText returns an error if a string of r is not UTF-8, which encoding/json
// would replace silently.
func (r *record) checkText() error {
	if !utf8.ValidString(r.Writer) {
		return fmt.Errorf("writer %q is not UTF-8", r.Writer)
	}
	for k, v := range r.Tags {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("tag %q: %q is not UTF-8", k, v)
		}
	}
	return nil
}

// hexCRC returns a checksum as the record spells it.
func hexCRC(v uint32) string { return fmt.Sprintf("%08x", v) }

// recordWriter writes the record value, which is indented by one level.
type recordWriter struct {
	b      bytes.Buffer
	depth  int
	follow bool // whether the next member follows another one
	err    error
}

func (w *recordWriter) open(c byte) {
	w.b.WriteByte(c)
	w.depth++
	w.follow = false
}

func (w *recordWriter) close(c byte) {
	w.depth--
	if w.follow {
		w.newLine()
	}
	w.b.WriteByte(c)
	w.follow = true
}

func (w *recordWriter) newLine() {
	w.b.WriteByte('\n')
	for range w.depth + 1 {
		w.b.WriteString("  ")
	}
}

// next begins the next member of an object or list.
func (w *recordWriter) next() {
	if w.follow {
		w.b.WriteByte(',')
	}
	w.newLine()
	w.follow = true
}

func (w *recordWriter) key(name string) {
	w.next()
	w.b.WriteString(strconv.Quote(name) + ": ")
}

// field writes a member whose value encoding/json writes.
func (w *recordWriter) field(name string, v any) {
	w.key(name)
	w.value(v)
}

func (w *recordWriter) value(v any) {
	start := w.b.Len()
	e := json.NewEncoder(&w.b)
	e.SetEscapeHTML(false)
	e.SetIndent("    ", "  ")
	if err := e.Encode(v); err != nil && w.err == nil {
		w.err = err
	}
	if w.b.Len() > start {
		w.b.Truncate(w.b.Len() - 1) // Encode ends with a newline
	}
}

func (w *recordWriter) totals(t recordTotals) {
	fmt.Fprintf(&w.b, `{"tensors": %d, "values": %d, "chunks": %d, "bytes": %d}`, t.Tensors, t.Values, t.Chunks, t.Bytes)
}

// files writes a line for each file.
func (w *recordWriter) files(files []storage.File) {
	w.open('[')
	for _, f := range files {
		w.next()
		w.b.WriteString(`{"name": `)
		w.value(f.Name)
		fmt.Fprintf(&w.b, `, "size": %d, "crc32c": "%s"}`, f.Size, hexCRC(f.CRC32C))
	}
	w.close(']')
}

// jsonFields are the members of one JSON object, read one by one under their
// exact names: encoding/json would take the last of several, and names in any
// case. Its first error sticks and names the field.
type jsonFields struct {
	fields map[string]json.RawMessage
	err    error
}

// parseJSONFields reads the object b, which may be anything and is called what
// in errors. The fields alias b.
func parseJSONFields(what string, b []byte) *jsonFields {
	var v json.RawMessage
	if err := json.Unmarshal(b, &v); err != nil {
		return &jsonFields{err: fmt.Errorf("%s: not a JSON object: %w", what, err)}
	}
	return newJSONFields(what, b)
}

// newJSONFields reads the object b, which must be empty or a valid JSON value.
func newJSONFields(what string, b []byte) *jsonFields {
	o := &jsonFields{fields: make(map[string]json.RawMessage)}
	if err := o.read(b); err != nil {
		o.err = fmt.Errorf("%s: %w", what, err)
	}
	return o
}

// read cuts a valid JSON value into the members of an object.
func (o *jsonFields) read(b []byte) error {
	b = jsonSpace(b)
	if len(b) == 0 || b[0] != '{' {
		return errors.New("not a JSON object")
	}
	b = jsonSpace(b[1:])
	for b[0] != '}' {
		n := jsonValue(b)
		key, err := jsonText(b[:n])
		if err != nil {
			return err
		}
		if _, twice := o.fields[key]; twice {
			return fmt.Errorf("the field %q twice", key)
		}
		b = jsonSpace(jsonSpace(b[n:])[1:]) // the colon
		n = jsonValue(b)
		o.fields[key] = json.RawMessage(b[:n:n])
		b = jsonSpace(b[n:])
		if b[0] == ',' {
			b = jsonSpace(b[1:])
		}
	}
	return nil
}

// jsonSpace returns b without the white space it begins with.
func jsonSpace(b []byte) []byte { return bytes.TrimLeft(b, " \t\r\n") }

// jsonValue returns the length of the valid JSON value that b begins with.
func jsonValue(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i += jsonString(b[i:]) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			// Within a number or word, the next byte tells whether it ends.
			if depth > 0 || i+1 < len(b) && bytes.IndexByte([]byte(",:}] \t\r\n"), b[i+1]) < 0 {
				continue
			}
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(b)
}

// jsonText returns the string that the valid JSON value raw is.
func jsonText(raw []byte) (s string, err error) {
	if len(raw) >= 2 && raw[0] == '"' && bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1]), nil
	}
	err = json.Unmarshal(raw, &s)
	return s, err
}

// jsonString returns the length of the valid JSON string that b begins with.
func jsonString(b []byte) int {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// fail makes err the error of a field, unless it is nil or there is one.
func (o *jsonFields) fail(name string, err error) {
	if o.err == nil && err != nil {
		o.err = fmt.Errorf("%s: %w", name, err)
	}
}

func (o *jsonFields) has(name string) bool {
	_, ok := o.fields[name]
	return ok
}

// raw returns the exact bytes of a field, which must be there.
func (o *jsonFields) raw(name string) json.RawMessage {
	v, ok := o.fields[name]
	if !ok {
		o.fail(name, errors.New("missing"))
	}
	return v
}

// value returns the bytes of a field that is there and not null, or nil.
func (o *jsonFields) value(name string) json.RawMessage {
	raw := o.raw(name)
	if string(raw) == "null" {
		o.fail(name, errors.New("null"))
	}
	if o.err != nil {
		return nil
	}
	return raw
}

// get decodes a field into v.
func (o *jsonFields) get(name string, v any) {
	if raw := o.value(name); raw != nil {
		o.fail(name, json.Unmarshal(raw, v))
	}
}

func (o *jsonFields) str(name string) string {
	raw := o.value(name)
	if raw == nil {
		return ""
	}
	s, err := jsonText(raw)
	o.fail(name, err)
	return s
}

// int reads a plain integer of at least low.
func (o *jsonFields) int(name string, low int64) (v int64) {
	o.get(name, &v)
	if o.err == nil && v < low {
		o.fail(name, fmt.Errorf("%d is below %d", v, low))
	}
	return v
}

func (o *jsonFields) list(name string) (v []json.RawMessage) {
	o.get(name, &v)
	return v
}

func (o *jsonFields) object(name string) *jsonFields {
	return newJSONFields(name, o.raw(name))
}
