package native

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/meta"
)

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
// would replace without a word.
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
func (w *recordWriter) files(files []recordFile) {
	w.open('[')
	for _, f := range files {
		w.next()
		w.b.WriteString(`{"name": `)
		w.value(f.Name)
		fmt.Fprintf(&w.b, `, "size": %d, "crc32c": "%s"}`, f.Size, hexCRC(f.CRC32C))
	}
	w.close(']')
}
