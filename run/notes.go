package run

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// NotesFile is the name of the file in the folder of a checkpoint that holds its Notes. It
// is not a file of the checkpoint: formats ignore it, and copies take it along.
const NotesFile = storage.NotesFile

// Notes describe a checkpoint beside its contents, and may change after its save.
type Notes struct {
	// Tags are words by which the checkpoint is found and kept, in order and each once.
	Tags []string
	// Metrics are numbers about the state, such as the loss.
	Metrics Metrics
	// Line is the place of the save in the history of its run, if the format of the
	// checkpoint does not record it. Nil: see the checkpoint, or unknown.
	Line *meta.Line
	// Exports are the exports that were asked for, and what has become of them.
	Exports []Exported
}

// isEmpty reports whether there are no notes.
func (n *Notes) isEmpty() bool {
	return len(n.Tags) == 0 && len(n.Metrics) == 0 && n.Line == nil && len(n.Exports) == 0
}

// equal reports whether both notes say the same.
func (n *Notes) equal(other *Notes) bool {
	a, err := n.encode("")
	b, err2 := other.encode("")
	return err == nil && err2 == nil && bytes.Equal(a, b)
}

// Metrics are numbers by their names. A number may be NaN or infinite; in JSON it is then
// the string "NaN", "+Inf" or "-Inf".
type Metrics map[string]float64

// MarshalJSON implements json.Marshaler.
func (m Metrics) MarshalJSON() ([]byte, error) {
	out := make(map[string]number, len(m))
	for name, v := range m {
		out[name] = number(v)
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Metrics) UnmarshalJSON(data []byte) error {
	var in map[string]number
	if err := json.Unmarshal(data, &in); err != nil || in == nil {
		return err
	}
	*m = make(Metrics, len(in))
	for name, v := range in {
		(*m)[name] = float64(v)
	}
	return nil
}

// The bounds of Notes.
const (
	maxTags    = 1000
	maxMetrics = 1000
)

// notesDocument is the file. Notes with the id of another save do not count: the checkpoint was
// replaced. If the format does not record its save, all notes count.
type notesDocument struct {
	Version int      `json:"version"`
	CRC     string   `json:"crc32c,omitempty"` // of the document without it
	SaveID  string   `json:"save_id"`
	Tags    []string `json:"tags,omitempty"`
	Metrics Metrics  `json:"metrics,omitempty"`
	// Line is noted for formats that do not record it.
	Line    *meta.Line `json:"line,omitempty"`
	Exports []Exported `json:"exports,omitempty"`
}

// number is a number in JSON. NaN and infinite ones are strings.
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
	if f := float64(n); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return json.Marshal(f)
	}
	return json.Marshal(strconv.FormatFloat(float64(n), 'g', -1, 64))
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(data []byte) error {
	var f float64
	if len(data) > 0 && data[0] != '"' {
		if string(data) == "null" {
			return errors.New("a metric is null")
		}
		err := json.Unmarshal(data, &f)
		*n = number(f)
		return err
	}
	switch string(data) {
	case `"NaN"`:
		f = math.NaN()
	case `"+Inf"`:
		f = math.Inf(1)
	case `"-Inf"`:
		f = math.Inf(-1)
	default:
		return fmt.Errorf("a metric is %.40s: want a number, \"NaN\", \"+Inf\" or \"-Inf\"", data)
	}
	*n = number(f)
	return nil
}

// Check returns an error that wraps storage.ErrOptions if a tag or the name of a metric is
// invalid (see CheckLabel), or if there are too many.
func (n *Notes) Check() error {
	var errs []error
	for _, t := range n.Tags {
		errs = append(errs, CheckLabel(t))
	}
	for name := range n.Metrics {
		errs = append(errs, CheckLabel(name))
	}
	if len(n.Tags) > maxTags {
		errs = append(errs, fmt.Errorf("there are %d tags, at most %d", len(n.Tags), maxTags))
	}
	if len(n.Metrics) > maxMetrics {
		errs = append(errs, fmt.Errorf("there are %d metrics, at most %d", len(n.Metrics), maxMetrics))
	}
	if n.Line != nil {
		errs = append(errs, n.Line.Check())
	}
	for i := range n.Exports {
		errs = append(errs, n.Exports[i].check())
	}
	if len(n.Exports) > maxExports {
		errs = append(errs, fmt.Errorf("there are %d exports, at most %d", len(n.Exports), maxExports))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrOptions, err)
	}
	return nil
}

// Tag adds a tag.
func (n *Notes) Tag(tag string) {
	if !slices.Contains(n.Tags, tag) {
		n.Tags = append(n.Tags, tag)
		slices.Sort(n.Tags)
	}
}

// Untag removes a tag, and reports whether it was there.
func (n *Notes) Untag(tag string) bool {
	i := slices.Index(n.Tags, tag)
	if i >= 0 {
		n.Tags = slices.Delete(n.Tags, i, i+1)
	}
	return i >= 0
}

// SetMetric sets a metric.
func (n *Notes) SetMetric(name string, value float64) {
	if n.Metrics == nil {
		n.Metrics = Metrics{}
	}
	n.Metrics[name] = value
}

// join adds the tags of other notes, and the metrics that n lacks.
func (n *Notes) join(other *Notes) {
	for _, t := range other.Tags {
		n.Tag(t)
	}
	for name, v := range other.Metrics {
		if _, ok := n.Metrics[name]; !ok {
			n.SetMetric(name, v)
		}
	}
	if n.Line == nil {
		n.Line = other.Line
	}
	n.joinExports(other.Exports)
}

func (n *Notes) encode(saveID string) ([]byte, error) {
	d := notesDocument{Version: documentVersion, SaveID: saveID, Tags: slices.Compact(slices.Sorted(slices.Values(n.Tags))), Metrics: n.Metrics, Line: n.Line, Exports: n.Exports}
	if len(n.Exports) > 0 { // older programs read notes without exports
		d.Version = exportsVersion
	}
	crc, err := seal(&d)
	if err != nil {
		return nil, err
	}
	d.CRC = crc
	b, err := json.Marshal(&d)
	return append(b, '\n'), err
}

// decodeNotes decodes the file and returns the id of the save that it belongs to.
func decodeNotes(data []byte) (n Notes, saveID string, err error) {
	var d notesDocument
	if err := decodeDocument(data, exportsVersion, &d); err != nil {
		return n, "", err
	}
	crc := d.CRC
	d.CRC = ""
	if err := checkSeal(&d, crc); err != nil {
		return n, "", err
	}
	n.Tags = slices.Compact(slices.Sorted(slices.Values(d.Tags)))
	if len(d.Metrics) > 0 {
		n.Metrics = d.Metrics
	}
	n.Line, n.Exports = d.Line, d.Exports
	if err := n.Check(); err != nil {
		return Notes{}, "", fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	return n, d.SaveID, nil
}

// ReadNotes returns the notes of the checkpoint at the root of store. saveID is the id of its
// save; it is empty if the format does not record it. The notes are empty if there are none,
// or only notes of another save. The error wraps storage.ErrCorrupt if the file is damaged.
func ReadNotes(ctx context.Context, store blob.Store, saveID string) (Notes, error) {
	data, _, err := readDocument(ctx, store, NotesFile)
	if err != nil || data == nil {
		return Notes{}, err
	}
	n, of, err := decodeNotes(data)
	if err != nil {
		return Notes{}, fmt.Errorf("%s of %s: %w; %s", NotesFile, store, err, withoutNotes)
	}
	if !isOf(of, saveID) {
		return Notes{}, nil
	}
	return n, nil
}

// withoutNotes is the advice about notes that cannot be read.
const withoutNotes = "remove the file to do without its tags and metrics"

// isOf reports whether notes belong to a checkpoint. of is the save of the notes, and
// saveID the save of the checkpoint, empty if its format does not record it.
func isOf(of, saveID string) bool { return saveID == "" || of == saveID }

// ChangeNotes changes the notes of the checkpoint at the root of store. saveID is the id of
// its save. change receives the current notes, and may be called several times: if another
// process changes the notes meanwhile, ChangeNotes begins again, and keeps that change.
// Notes of another save are replaced. Notes that cannot be read are an error: they may have tags.
func ChangeNotes(ctx context.Context, store blob.Store, saveID string, change func(*Notes) error) error {
	return changeNotes(ctx, store, saveID, false, change)
}

// changeNotes is ChangeNotes. If fresh is set, the save has just been made, so notes that
// cannot be read belong to a checkpoint that it has replaced: they are replaced too.
func changeNotes(ctx context.Context, store blob.Store, saveID string, fresh bool, change func(*Notes) error) error {
	err := changeDocument(ctx, store, NotesFile, func(old []byte) ([]byte, error) {
		n, id := Notes{}, saveID
		if old != nil {
			have, of, err := decodeNotes(old)
			switch {
			case err != nil && !fresh:
				return nil, fmt.Errorf("%w; %s", err, withoutNotes)
			case err == nil && isOf(of, saveID):
				n, id = have, of
			}
		}
		if err := change(&n); err != nil {
			return nil, err
		}
		if err := n.Check(); err != nil {
			return nil, err
		}
		if old == nil && n.isEmpty() {
			return nil, nil
		}
		return n.encode(id)
	})
	if err != nil {
		return fmt.Errorf("%s of %s: %w", NotesFile, store, err)
	}
	return nil
}

// Note changes the notes of a checkpoint of the run, in each place that has a complete copy;
// see ChangeNotes. The error wraps storage.ErrNotFound if no place has one, and ErrOtherRun or
// ErrUnconfirmed if the remote place has one and may belong to another run: only the local copy is
// changed then. See OwnsRemote.
func (r *Run) Note(ctx context.Context, name string, change func(*Notes) error) error {
	var missing error
	noted := false
	for _, p := range r.places() {
		f := p.look(ctx, name)
		switch {
		case f.err == nil:
			if err := r.mayNote(ctx, p); err != nil {
				return fmt.Errorf("the notes in %s were not changed: %w", p, err)
			}
			if err := ChangeNotes(ctx, f.folder.store, f.saveID, change); err != nil {
				return err
			}
			noted = true
		case isAny(f.err, storage.ErrNotFound, storage.ErrIncomplete, storage.ErrCorrupt):
			if missing == nil {
				missing = f.err
			}
		default:
			return f.err
		}
	}
	if !noted {
		return missing
	}
	return nil
}
