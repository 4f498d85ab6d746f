package convert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// journalPrefix is the prefix of the names of a journal's files in a staging store. No
// file of a checkpoint has such a name.
const journalPrefix = ".cairn-convert/"

const (
	recordName    = journalPrefix + "cairn-convert.json"
	resultsPrefix = journalPrefix + "finished/"
	maxRecord     = 1 << 20
	maxResults    = 1 << 30
)

// record identifies the conversion of a journal.
type record struct {
	Version     int       `json:"version"`
	Fingerprint string    `json:"fingerprint"`
	SaveID      string    `json:"save_id"`
	Time        time.Time `json:"time"`
	// Report is set when the checkpoint is complete and only the journal must be
	// removed.
	Report *Report `json:"report,omitempty"`
}

const recordVersion = 1

// journal records in the staging store which files are finished.
type journal struct {
	store blob.Store
	rec   record
	// goesOn is set if this run continues an earlier one, and kept counts the files
	// that the earlier one had finished.
	goesOn bool
	kept   atomic.Int64
	proof  *proof // nil: nothing is proven
}

var _ storage.Journal = (*journal)(nil)

// openJournal returns the journal of the conversion with that fingerprint: the existing
// one, or a new one with the identity now. It changes nothing.
func openJournal(ctx context.Context, s blob.Store, fingerprint string, now record, warn func(error)) (*journal, error) {
	old, err := readRecord(ctx, s)
	if err != nil {
		return nil, err
	}
	if old != nil && old.Fingerprint == fingerprint {
		return &journal{store: s, rec: *old, goesOn: true}, nil
	}
	if old != nil {
		warn(fmt.Errorf("%s has files of another conversion, or of another source: starting from the beginning", s))
	}
	now.Version, now.Fingerprint = recordVersion, fingerprint
	return &journal{store: s, rec: now}, nil
}

// start writes the record of a new conversion.
func (j *journal) start(ctx context.Context) error {
	if j.goesOn {
		return nil
	}
	return j.writeRecord(ctx)
}

// readRecord returns the record in a staging store, or nil if the store has no record
// that decodeRecord accepts.
func readRecord(ctx context.Context, s blob.Store) (*record, error) {
	b, err := blob.ReadAll(ctx, s, recordName, maxRecord)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, blob.ErrTooLarge):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return decodeRecord(b), nil
}

// decodeRecord returns nil if b is damaged or of another version.
func decodeRecord(b []byte) *record {
	var r record
	if json.Unmarshal(b, &r) != nil || r.Version != recordVersion {
		return nil
	}
	return &r
}

func (j *journal) writeRecord(ctx context.Context) error {
	b, err := json.MarshalIndent(j.rec, "", "  ")
	if err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, j.store, recordName, b, nil)
	return err
}

// sweep removes the files in the store that this run cannot use. If it continues an
// earlier run, it keeps the journal and the files that the journal lists: other files,
// such as the files of an interrupted commit, have names that this run needs. Otherwise it
// removes all files.
func (j *journal) sweep(ctx context.Context) error {
	err := j.removeAll(ctx, "", func(name string) bool {
		return j.goesOn && (strings.HasPrefix(name, journalPrefix) || j.noted(ctx, name))
	})
	if err != nil {
		return err
	}
	if s, ok := blob.As[blob.Sweeper](j.store); ok {
		for _, dir := range []string{"", journalPrefix, resultsPrefix} { // files of a writer that was killed
			if _, err := s.SweepTemp(ctx, strings.TrimSuffix(dir, "/"), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeAll removes the files with a prefix for which keep returns false. It removes
// the record last, so that an interrupted sweep is repeated.
func (j *journal) removeAll(ctx context.Context, prefix string, keep func(name string) bool) error {
	var names []string
	for info, err := range j.store.List(ctx, prefix) {
		if err != nil {
			return err
		}
		if info.Name != recordName && !keep(info.Name) {
			names = append(names, info.Name)
		}
	}
	if !keep(recordName) {
		names = append(names, recordName)
	}
	for _, name := range names {
		if err := j.store.Remove(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// names returns the files that are noted.
func (j *journal) names(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for info, err := range j.store.List(ctx, resultsPrefix) {
		if err != nil {
			return nil, err
		}
		out[strings.TrimPrefix(info.Name, resultsPrefix)] = true
	}
	return out, nil
}

func (j *journal) noted(ctx context.Context, file string) bool {
	_, err := j.store.Stat(ctx, resultsPrefix+file)
	return err == nil
}

// Finished implements storage.Journal.
func (j *journal) Finished(ctx context.Context, file string) (*storage.WriteResults, bool, error) {
	b, err := blob.ReadAll(ctx, j.store, resultsPrefix+file, maxResults)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	r, err := storage.ResultCodec{}.Decode(b)
	if err != nil || len(r.Files) != 1 || r.Files[0].Name != file {
		return nil, false, nil // written anew
	}
	info, err := j.store.Stat(ctx, file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	if info.Size != r.Files[0].Size {
		return nil, false, nil
	}
	j.kept.Add(1)
	return r, true, nil
}

// Note implements storage.Journal.
func (j *journal) Note(ctx context.Context, file string, r *storage.WriteResults) error {
	j.proof.fill(r)
	b, err := storage.ResultCodec{}.Encode(r)
	if err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, j.store, resultsPrefix+file, b, nil)
	return err
}

// empty reports whether nothing is noted as finished.
func (j *journal) empty(ctx context.Context) bool {
	for range j.store.List(ctx, resultsPrefix) {
		return false
	}
	return true
}

// complete records that the checkpoint is complete.
func (j *journal) complete(ctx context.Context, r *Report) error {
	j.rec.Report = r
	return j.writeRecord(ctx)
}

// remove removes the journal.
func (j *journal) remove(ctx context.Context) error {
	return j.removeAll(ctx, journalPrefix, func(string) bool { return false })
}
