package run

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/size"
	"github.com/cairn-ckpt/cairn/storage"
)

// Export says that a checkpoint is converted into another form, at another address, after its save. Notes
// keep it, and the command 'cairn export' carries it out.
type Export struct {
	// Form is "hf" or "hf/FAMILY", or another recipe; see ParseExport.
	Form string
	// To is the address of the result. It holds no secrets.
	To string
	// Model is the folder of a model with its configuration and its tokenizer, or a config.json.
	Model string
	// Rate bounds the bytes per second that are written. Zero: there is no bound.
	Rate int64
}

// exportRate is the end of the text of an Export with a rate.
var exportRate = regexp.MustCompile(`(?i) at ([^/]*)/s$`)

// ParseExport returns the export of a text, FORM to ADDRESS [with MODEL] [at SIZE/s], such as
// "hf/llama to s3://bucket/models with /models/Llama-3.1-8B at 200MB/s". FORM is "hf", for the form of
// Hugging Face, with the family of the model if there is no configuration that names it; or the name of a
// recipe, or the file of one. The error wraps storage.ErrOptions.
func ParseExport(text string) (Export, error) {
	e, err := parseExport(text)
	if err != nil {
		return Export{}, err
	}
	if err := e.check(); err != nil {
		return Export{}, fmt.Errorf("%w: the export %q: %w", storage.ErrOptions, text, err)
	}
	return e, nil
}

// parseExport is ParseExport without the checks of the parts.
func parseExport(text string) (Export, error) {
	var e Export
	form, rest, ok := strings.Cut(strings.TrimSpace(text), " to ")
	if !ok {
		return e, fmt.Errorf(`%w: the export is %q; want a form and an address, such as "hf/llama to s3://bucket/models"`, storage.ErrOptions, text)
	}
	e.Form = strings.TrimSpace(form)
	if m := exportRate.FindStringSubmatch(rest); m != nil {
		var err error
		if e.Rate, err = size.Parse(m[1]); err != nil {
			return Export{}, fmt.Errorf("%w: the rate of the export: %w", storage.ErrOptions, err)
		}
		if e.Rate == 0 {
			return Export{}, fmt.Errorf("%w: the rate of the export is zero", storage.ErrOptions)
		}
		rest = strings.TrimSuffix(rest, m[0])
	}
	if at := strings.LastIndex(rest, " with "); at >= 0 {
		rest, e.Model = rest[:at], strings.TrimSpace(rest[at+len(" with "):])
	}
	e.To = strings.TrimSpace(rest)
	return e, nil
}

// String returns the text of an export; see ParseExport.
func (e Export) String() string {
	if e == (Export{}) {
		return ""
	}
	out := e.Form + " to " + e.To
	if e.Model != "" {
		out += " with " + e.Model
	}
	if e.Rate != 0 {
		out += " at " + strings.ReplaceAll(bytesText(e.Rate), " ", "") + "/s"
	}
	return out
}

// MarshalText and UnmarshalText encode an export as its text.
func (e Export) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *Export) UnmarshalText(text []byte) (err error) {
	if *e = (Export{}); len(text) > 0 {
		*e, err = ParseExport(string(text))
	}
	return err
}

// maxExportText bounds the texts of an export.
const maxExportText = 4096

func (e Export) check() error {
	for _, text := range []string{e.Form, e.To, e.Model} {
		if len(text) > maxExportText || !utf8.ValidString(text) || strings.ContainsAny(text, "\n\r\x00") {
			return errors.New("a part of it is too long, or has characters that are not text")
		}
	}
	switch {
	case e.Form == "":
		return errors.New("it names no form")
	case e.To == "":
		return errors.New("it names no address")
	case e.To != withoutSecrets(e.To):
		return errors.New("the address has a password or a token, which would be noted beside checkpoints: put it into the environment")
	case blob.Scheme(e.To) == "memory":
		return errors.New("a run in memory is no place for it")
	case e.Rate < 0:
		return errors.New("its rate is negative")
	}
	if again, err := parseExport(e.String()); err != nil || again != e { // notes keep the text
		return errors.New("a path has \" to \", \" with \" or \" at \" in it, which separate the parts of an export")
	}
	return nil
}

// Absolute returns the export with absolute paths, and any file: addresses as paths. The error wraps
// storage.ErrOptions, as of an export that notes cannot keep with these paths.
func (e Export) Absolute() (Export, error) {
	for _, at := range []*string{&e.To, &e.Model} {
		path, local, err := file.LocalPath(*at)
		if err == nil && local && *at != "" {
			*at, err = filepath.Abs(path)
		}
		if err != nil {
			return e, fmt.Errorf("%w: the export: %w", storage.ErrOptions, err)
		}
	}
	if err := e.check(); err != nil {
		return e, fmt.Errorf("%w: the export to %s: %w", storage.ErrOptions, e.To, err)
	}
	return e, nil
}

// Apart returns an error that wraps storage.ErrOptions if the result would be in a place of the run, among its
// checkpoints.
func (e Export) Apart(places ...string) error {
	for _, place := range places {
		at := strings.TrimSuffix(place, "/") + "/"
		if place != "" && strings.HasPrefix(e.To+"/", at) {
			return fmt.Errorf("%w: the export goes to %s, which is in the run %s: give it another address", storage.ErrOptions, e.To, blob.Redact(place))
		}
	}
	return nil
}

// In returns the export of the checkpoint in a folder of a run, which goes to a folder of that name.
func (e Export) In(folder string) Export {
	e.To = blob.JoinAddress(e.To, folder)
	return e
}

// ExportState is the state of an export.
type ExportState string

// The states of an export.
const (
	ExportWaiting ExportState = "waiting" // or under way
	ExportDone    ExportState = "done"
	ExportFailed  ExportState = "failed" // and it will be tried again, as long as the checkpoint exists
)

// Exported is an export and what has become of it.
type Exported struct {
	// ID identifies the request: another save has another one.
	ID     string      `json:"id,omitempty"`
	Export Export      `json:"export"`
	State  ExportState `json:"state"`
	// Tries counts how often it has begun.
	Tries int `json:"tries,omitempty"`
	// Problem says why the last try has failed.
	Problem string `json:"problem,omitempty"`
	// Time is the end of the last try.
	Time time.Time `json:"time,omitzero"`
}

// The bounds of exports in Notes.
const (
	maxExports = 100
	maxProblem = 2000
	// ExportTries is how often an export begins for which Prune keeps its checkpoint.
	ExportTries = 3
	// maxWaiting bounds how many checkpoints Prune keeps only because their exports are not done.
	maxWaiting = 2
)

// Pending reports whether the export is still to be carried out.
func (x *Exported) Pending() bool { return x.State != ExportDone }

func (x *Exported) check() error {
	switch err := x.Export.check(); {
	case err != nil:
		return fmt.Errorf("the export to %.100q: %w", x.Export.To, err)
	case !slices.Contains([]ExportState{ExportWaiting, ExportDone, ExportFailed}, x.State):
		return fmt.Errorf("the state of an export is %.40q", x.State)
	case x.Tries < 0 || x.ID != "" && CheckID(x.ID) != nil || len(x.Problem) > maxProblem:
		return errors.New("an export has a number of tries or a problem that makes no sense")
	}
	return nil
}

// AskExport adds an export to the notes, unless they have it. It replaces another one to the same address.
func (n *Notes) AskExport(e Export) {
	if slices.ContainsFunc(n.Exports, func(x Exported) bool { return x.Export == e }) {
		return
	}
	n.Exports = slices.DeleteFunc(slices.Clone(n.Exports), func(x Exported) bool { return x.Export.To == e.To })
	n.Exports = append(n.Exports, Exported{ID: newID(), Export: e, State: ExportWaiting})
}

// BeginExport notes that an export begins. It has no effect if the notes do not have it.
func (n *Notes) BeginExport(e *Exported) {
	n.changeExport(e, func(x *Exported) { x.Tries++ })
}

// EndExport notes the end of an export: its error, or nil. What is done stays done.
func (n *Notes) EndExport(e *Exported, err error, now time.Time) {
	n.changeExport(e, func(x *Exported) {
		switch {
		case err == nil:
			x.State, x.Problem = ExportDone, ""
		case x.State == ExportDone: // by another process
			return
		default:
			x.State, x.Problem = ExportFailed, shorten(err.Error())
		}
		x.Time = now.UTC().Truncate(time.Second)
	})
}

// CancelExport notes that an export that had begun was not tried.
func (n *Notes) CancelExport(e *Exported) {
	n.changeExport(e, func(x *Exported) { x.Tries = max(0, x.Tries-1) })
}

// changeExport changes an export of these notes. Notes of another save do not have it.
func (n *Notes) changeExport(e *Exported, change func(*Exported)) {
	n.Exports = slices.Clone(n.Exports)
	for i := range n.Exports {
		if n.Exports[i].Export == e.Export && n.Exports[i].ID == e.ID {
			change(&n.Exports[i])
		}
	}
}

// shorten returns a text as notes may have it.
func shorten(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > maxProblem {
		text = strings.ToValidUTF8(text[:maxProblem-3], "") + "..."
	}
	return text
}

// joinExports adds the exports of other notes. Of two that are the same, the one that is done or has begun
// more often counts.
func (n *Notes) joinExports(other []Exported) {
	n.Exports = slices.Clone(n.Exports)
	for _, x := range other {
		i := slices.IndexFunc(n.Exports, func(y Exported) bool { return y.Export == x.Export })
		if i < 0 {
			n.Exports = append(n.Exports, x)
		} else if y := &n.Exports[i]; y.Pending() && (!x.Pending() || x.Tries > y.Tries) {
			*y = x
		}
	}
}

// Exporting says which checkpoints of a run are exported, and as what.
type Exporting struct {
	Export Export
	// Due chooses the saves. Nil: all of them.
	Due *Due
}

// NewExporting says which checkpoints of the run at an address, and at remote if it is not empty, are exported: those
// of the saves that every chooses, or of all saves. It returns nil if e is zero. The error wraps storage.ErrOptions.
func NewExporting(e Export, every Policy, address, remote string) (*Exporting, error) {
	if e == (Export{}) {
		return nil, storage.RefuseIf(!every.KeepsAll(), "there is a policy for exports, but no export")
	}
	if blob.Scheme(address) == "memory" {
		return nil, storage.RefuseIf(true, "checkpoints in memory are not exported")
	}
	x := &Exporting{}
	var err error
	if x.Export, err = e.Absolute(); err != nil {
		return nil, err
	}
	if err := x.Export.Apart(address, remote); err != nil {
		return nil, err
	}
	if !every.KeepsAll() {
		x.Due, err = NewDue(every)
	}
	return x, err
}

// of returns the exports of a save.
func (x *Exporting) of(ctx context.Context, folder string, step *int64) ([]Export, error) {
	if x == nil || x.Export == (Export{}) {
		return nil, nil
	}
	if x.Due != nil && step != nil {
		if due, err := x.Due.At(ctx, group.Solo(), *step); !due {
			return nil, err
		}
	}
	return []Export{x.Export.In(folder)}, nil
}

// waitsForExport reports whether Prune should keep a checkpoint for its export.
func (c *Checkpoint) waitsForExport() bool {
	return slices.ContainsFunc(c.Exports, func(x Exported) bool { return x.Pending() && x.Tries < ExportTries })
}

// PendingExports returns the exports of checkpoints that are still to be carried out, those of the newest checkpoint
// first. A checkpoint without a complete copy has none.
func PendingExports(all []Checkpoint) (out []PendingExport) {
	for _, c := range slices.Backward(all) {
		for _, x := range c.Exports {
			if x.Pending() && c.Path() != "" {
				out = append(out, PendingExport{Name: c.Name, Path: c.Path(), SaveID: c.SaveID, Exported: x})
			}
		}
	}
	return out
}

// PendingExport is an export that is still to be carried out, and its checkpoint.
type PendingExport struct {
	Name   string
	Path   string // the address of the checkpoint
	SaveID string
	Exported
}

// ExportsState returns the state of several exports: failed if one has failed, then waiting if one is not done.
// It is empty if there are none.
func ExportsState(all []Exported) ExportState {
	for _, state := range []ExportState{ExportFailed, ExportWaiting, ExportDone} {
		if slices.ContainsFunc(all, func(x Exported) bool { return x.State == state }) {
			return state
		}
	}
	return ""
}
