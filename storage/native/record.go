package native

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/delta"
)

// maxRecordBytes bounds the commit record: room for some hundred thousand
// files.
const maxRecordBytes = 64 << 20

// formatName is the name of the format in the record.
const formatName = "cairn"

// record is the commit record, which makes a set of files a checkpoint. Its bytes are
// described in docs/format/native.md.
type record struct {
	// Tied means that tensors are tied.
	Tied      bool
	SaveID    string
	Step      *int64 // nil: unknown
	Time      time.Time
	WorldSize int
	Writer    string
	Tags      map[string]string
	// Line is the place in the history of the run. Nil: unknown.
	Line *meta.Line
	// PlannerData is a JSON value in compact form, or nil.
	PlannerData json.RawMessage
	Totals      recordTotals
	// Timeline has the phases of each rank. Nil: unknown.
	Timeline meta.Timeline
	// Files are the checkpoint's other files. The first is the index.
	Files []storage.File
	// Coded are the data files that are stored as delta files, which are in Files. Bases are
	// the folders with files to which they refer, the one of the base of the save first.
	Coded []storage.Coded
	Bases []baseFolder
	// Chain says which checkpoints this one needs. Nil: none, or unknown.
	Chain *chain
	// Hashes are delta files with the hashes of data files in Files. Readers do without
	// them.
	Hashes []storage.File

	sizes map[string]int64 // of the files; set by decodeRecord
}

// recordTotals count the tensors, values and chunks of a checkpoint.
type recordTotals struct {
	Tensors, Values, Chunks int64
	// Bytes counts whole tensors and values. A tensor with several names counts once.
	Bytes int64
}

// version returns the version of the checkpoint.
func (r *record) version() int {
	if len(r.Coded) > 0 {
		return deltaVersion
	}
	if r.Tied {
		return tiedVersion
	}
	return formatVersion
}

// alone returns the record of the checkpoint with all data files stored whole. It keeps the
// hashes, which show that other checkpoints may refer to the files that they are about.
func (r *record) alone() *record {
	out := *r
	stored := map[string]bool{}
	for _, c := range r.Coded {
		stored[c.Stored] = true
	}

	out.Files = slices.DeleteFunc(slices.Clone(r.Files), func(f storage.File) bool { return stored[f.Name] })
	for _, c := range r.Coded {
		out.Files = append(out.Files, c.File)
	}

	slices.SortFunc(out.Files[1:], func(a, b storage.File) int { return strings.Compare(a.Name, b.Name) })
	out.Coded, out.Bases, out.Chain = nil, nil, nil
	out.sizes = make(map[string]int64, len(out.Files))
	for _, f := range out.Files {
		out.sizes[f.Name] = f.Size
	}

	return &out
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
	switch o.int("version", 0) {
	case tiedVersion:
		r.Tied = true
	case deltaVersion:
		o.get("tied", &r.Tied)
		r.readCoded(o)
	}

	if o.has("hashes") {
		r.Hashes = readFiles(o, "hashes")
	}
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
	file := parseJSON("file", b)
	value := file.raw("record")
	o := parseJSON("record", value)
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
	if version < formatVersion || version > deltaVersion {
		return nil, versionError(uint64(version), deltaVersion)
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
	if o.has("line") {
		r.Line = new(meta.Line)
		o.get("line", r.Line)
		if o.err == nil {
			o.fail("line", r.Line.Check())
		}
	}

	if o.has("planner_data") {
		var compact bytes.Buffer
		o.fail("planner_data", json.Compact(&compact, o.raw("planner_data")))
		r.PlannerData = compact.Bytes()
	}

	t := o.object("totals")
	r.Totals = recordTotals{t.int("tensors", 0), t.int("values", 0), t.int("chunks", 0), t.int("bytes", 0)}
	o.fail("totals", t.err)
	if o.has("timeline") {
		var err error
		r.Timeline, err = readTimeline(o.raw("timeline"), r.WorldSize)
		o.fail("timeline", err)
	}

	r.Files = readFiles(o, "files")
	return r
}

// readFiles reads a list of files. There may be very many, so encoding/json decodes
// them at once.
func readFiles(o *jsonFields, field string) []storage.File {
	var list []struct {
		Name *string `json:"name"`
		Size *int64  `json:"size"`
		CRC  *string `json:"crc32c"`
	}
	o.get(field, &list)

	out := make([]storage.File, len(list))
	for i, f := range list {
		switch {
		case f.Name == nil || f.CRC == nil:
			o.fail(fmt.Sprintf("%s[%d]", field, i), errors.New("name or crc32c: missing"))
		case f.Size == nil:
			o.fail(fmt.Sprintf("%s[%d]", field, i), errors.New("size: missing"))
		case *f.Size < 0:
			o.fail(fmt.Sprintf("%s[%d]: size", field, i), fmt.Errorf("%d is below 0", *f.Size))
		default:
			crc, err := parseCRC(*f.CRC)
			if err != nil {
				o.fail(fmt.Sprintf("%s[%d]: crc32c", field, i), err)
			}
			out[i] = storage.File{Name: *f.Name, Size: *f.Size, CRC32C: crc}
		}
	}

	return out
}

// readCoded reads the data files that are stored as delta files, and the folders to which
// these refer.
func (r *record) readCoded(o *jsonFields) {
	var coded []struct {
		Name   string `json:"name"`
		Size   int64  `json:"size"`
		CRC    string `json:"crc32c"`
		Stored string `json:"stored"`
	}
	o.get("coded", &coded)

	if o.err == nil && len(coded) == 0 {
		o.fail("coded", errors.New("empty"))
	}

	for i, c := range coded {
		crc, err := parseCRC(c.CRC)
		o.fail(fmt.Sprintf("coded[%d]: crc32c", i), err)
		r.Coded = append(r.Coded, storage.Coded{File: storage.File{Name: c.Name, Size: c.Size, CRC32C: crc}, Stored: c.Stored})
	}

	var bases []struct {
		Folder string `json:"folder"`
		Files  []struct {
			Name string `json:"name"`
			Size int64  `json:"size"`
		} `json:"files"`
	}
	o.get("bases", &bases)

	for _, b := range bases {
		base := baseFolder{Folder: b.Folder}
		for _, f := range b.Files {
			base.Files = append(base.Files, storage.Reference{Folder: b.Folder, Name: f.Name, Size: f.Size})
		}
		r.Bases = append(r.Bases, base)
	}

	r.readChain(o)
}

// checkCoded returns an error unless the fields about delta files agree with the others.
func (r *record) checkCoded() error {
	for i, c := range r.Coded {
		if _, _, _, ok := parseDataFileName(c.Name); !ok || c.Size < 0 || c.Stored != deltaFileName(c.Name) {
			return fmt.Errorf("coded[%d]: %s of %d bytes in %s", i, c.Name, c.Size, c.Stored)
		}
		_, stored := r.sizes[c.Stored]
		if _, twice := r.sizes[c.Name]; twice || !stored {
			return fmt.Errorf("coded[%d]: %s is named twice, or %s is not", i, c.Name, c.Stored)
		}
		r.sizes[c.Name] = c.Size
	}

	for i, b := range r.Bases {
		if err := delta.CheckFolder(b.Folder); err != nil {
			return fmt.Errorf("bases[%d]: %w", i, err)
		}
		for k, f := range b.Files {
			if err := blob.CheckName(f.Name); err != nil || f.Size < 0 {
				return fmt.Errorf("bases[%d]: files[%d]: %d bytes: %w", i, k, f.Size, err)
			}
		}
	}

	for i, f := range r.Hashes {
		if _, ok := parseDataOrDelta(f.Name); !ok || !strings.HasSuffix(f.Name, deltaSuffix) {
			return fmt.Errorf("hashes[%d]: %q is not the name of a delta file", i, f.Name)
		}
	}

	return r.Chain.check()
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
		return fmt.Errorf("world_size: %d is too large", r.WorldSize)
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

	return r.checkCoded()
}

// time reads a field of RFC 3339 in UTC.
func (o *jsonFields) time(name string) time.Time {
	s := o.str(name)
	t, err := time.Parse(time.RFC3339Nano, s)
	if o.err == nil && (err != nil || !strings.HasSuffix(s, "Z")) {
		o.fail(name, fmt.Errorf("%q is not a time in UTC", s))
	}
	return t
}

// encodeRecord returns the bytes of the commit record: JSON, indented, a line for each file.
// The same record always gives the same bytes. It refuses a record that decodeRecord would
// refuse, with an error that wraps meta.ErrInvalid.
func encodeRecord(r *record) ([]byte, error) { return encodeWithin(r, maxRecordBytes) }

// encodeWithin is encodeRecord. If the record would have more than limit bytes, it leaves
// the timeline out.
func encodeWithin(r *record, limit int) ([]byte, error) {
	if err := r.checkText(); err != nil {
		return nil, fmt.Errorf("record: %w: %w", meta.ErrInvalid, err)
	}

	w := recordWriter{}
	w.field("format", formatName)
	w.field("version", r.version())
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
	if r.Line != nil {
		w.field("line", r.Line)
	}
	if r.PlannerData != nil {
		w.field("planner_data", r.PlannerData)
	}

	t := r.Totals
	w.member("totals", fmt.Sprintf(`{"tensors": %d, "values": %d, "chunks": %d, "bytes": %d}`, t.Tensors, t.Values, t.Chunks, t.Bytes))
	if text := timelineText(r.Timeline, r.WorldSize); text != "" {
		w.member("timeline", text)
	}
	if len(r.Coded) > 0 {
		w.field("tied", r.Tied)
	}

	w.list("files", len(r.Files), func(i int) string { return w.file(&r.Files[i]) })
	if len(r.Coded) > 0 {
		w.list("coded", len(r.Coded), func(i int) string {
			c := &r.Coded[i]
			return fmt.Sprintf(`{"name": %s, "size": %d, "crc32c": "%s", "stored": %s}`, w.text(c.Name), c.Size, hexCRC(c.CRC32C), w.text(c.Stored))
		})
		w.list("bases", len(r.Bases), func(i int) string { return w.base(&r.Bases[i]) })
	}

	if c := r.Chain; c != nil {
		w.member("chain", fmt.Sprintf(`{"referring": %d, "needs": [%s]}`, c.Referring, w.needs(c.Needs)))
	}
	if len(r.Hashes) > 0 {
		w.list("hashes", len(r.Hashes), func(i int) string { return w.file(&r.Hashes[i]) })
	}

	if w.err != nil {
		return nil, fmt.Errorf("record: %w: %w", meta.ErrInvalid, w.err)
	}

	value := []byte("{\n    " + strings.Join(w.members, ",\n    ") + "\n  }")
	b := wrapRecord(hexCRC(crc32c.Checksum(value)), value)
	if len(b) > limit && r.Timeline != nil {
		less := *r
		less.Timeline = nil
		return encodeWithin(&less, limit)
	}

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

// addCoded adds the files that are stored as delta files, and the folders to which these
// refer, the newest first. Delta files that store no data file have the hashes of one.
func (r *record) addCoded(coded []storage.Coded) {
	stored := map[string]bool{}
	bases := map[string][]storage.Reference{}
	for _, c := range coded {
		stored[c.Stored] = true
		for _, f := range c.Refers {
			if !slices.Contains(bases[f.Folder], f) {
				bases[f.Folder] = append(bases[f.Folder], f)
			}
		}
		c.Refers, c.Referring = nil, 0
		r.Coded = append(r.Coded, c)
	}
	for folder, files := range bases {
		slices.SortFunc(files, func(a, b storage.Reference) int { return strings.Compare(a.Name, b.Name) })
		r.Bases = append(r.Bases, baseFolder{folder, files})
	}
	newest := func(b *baseFolder) string { return b.Files[len(b.Files)-1].Name } // names begin with the time of the save
	slices.SortFunc(r.Bases, func(a, b baseFolder) int {
		return cmp.Or(strings.Compare(newest(&b), newest(&a)), strings.Compare(a.Folder, b.Folder))
	})
	r.Files = slices.DeleteFunc(r.Files, func(f storage.File) bool {
		hashes := strings.HasSuffix(f.Name, deltaSuffix) && !stored[f.Name]
		if hashes {
			r.Hashes = append(r.Hashes, f)
		}
		return hashes
	})
}

// hexCRC returns a checksum as the record spells it. parseCRC is its inverse.
func hexCRC(v uint32) string { return fmt.Sprintf("%08x", v) }

func parseCRC(s string) (uint32, error) {
	v, err := strconv.ParseUint(s, 16, 32)
	if err != nil || hexCRC(uint32(v)) != s {
		return 0, fmt.Errorf("%q is not a checksum", s)
	}
	return uint32(v), nil
}

// recordWriter collects the members of the record value, which is indented by one level.
type recordWriter struct {
	members []string
	err     error
}

func (w *recordWriter) member(name, text string) {
	w.members = append(w.members, strconv.Quote(name)+": "+text)
}

// list adds a member that is a list, a line for each element.
func (w *recordWriter) list(name string, n int, element func(i int) string) {
	if n == 0 {
		w.member(name, "[]")
		return
	}
	all := make([]string, n)
	for i := range all {
		all[i] = element(i)
	}
	w.member(name, "[\n      "+strings.Join(all, ",\n      ")+"\n    ]")
}

func (w *recordWriter) file(f *storage.File) string {
	return fmt.Sprintf(`{"name": %s, "size": %d, "crc32c": "%s"}`, w.text(f.Name), f.Size, hexCRC(f.CRC32C))
}

func (w *recordWriter) base(b *baseFolder) string {
	files := make([]string, len(b.Files))
	for i, f := range b.Files {
		files[i] = fmt.Sprintf(`{"name": %s, "size": %d}`, w.text(f.Name), f.Size)
	}
	return fmt.Sprintf(`{"folder": %s, "files": [%s]}`, w.text(b.Folder), strings.Join(files, ", "))
}

func (w *recordWriter) needs(all []needed) string {
	texts := make([]string, len(all))
	for i, n := range all {
		texts[i] = fmt.Sprintf(`{"folder": %s, "bytes": %d}`, w.text(n.Folder), n.Bytes)
	}
	return strings.Join(texts, ", ")
}

// field adds a member with a value that encoding/json encodes.
func (w *recordWriter) field(name string, v any) { w.member(name, w.text(v)) }

func (w *recordWriter) text(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("    ", "  ")
	w.err = cmp.Or(w.err, e.Encode(v))
	return strings.TrimSuffix(b.String(), "\n")
}

// jsonFields are the members of one JSON object, read one by one under their
// exact names: encoding/json would take the last of several, and names in any
// case. It keeps the first error, which names the field.
type jsonFields struct {
	fields map[string]json.RawMessage
	err    error
}

// parseJSON reads the object b. Errors call it what.
func parseJSON(what string, b []byte) *jsonFields {
	o := &jsonFields{fields: make(map[string]json.RawMessage)}
	if err := o.read(b); err != nil {
		o.err = fmt.Errorf("%s: not a JSON object: %w", what, err)
	}
	return o
}

func (o *jsonFields) read(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return cmp.Or(err, errors.New("it does not begin with a brace"))
	}

	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}

		name, _ := key.(string) // every key is a string
		if _, twice := o.fields[name]; twice {
			return fmt.Errorf("the field %q twice", name)
		}

		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		o.fields[name] = value
	}

	if _, err := d.Token(); err != nil { // the closing brace
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return cmp.Or(err, errors.New("text after its end"))
	}
	return nil
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

// get decodes a field, which must not be null, into v.
func (o *jsonFields) get(name string, v any) {
	raw := o.raw(name)
	if string(raw) == "null" {
		o.fail(name, errors.New("null"))
	}
	if o.err == nil {
		o.fail(name, json.Unmarshal(raw, v))
	}
}

func (o *jsonFields) str(name string) (s string) {
	o.get(name, &s)
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

func (o *jsonFields) object(name string) *jsonFields {
	return parseJSON(name, o.raw(name))
}
