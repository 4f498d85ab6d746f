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

// JournalFolder is the folder of a journal in the store of a conversion. No file of a
// checkpoint is in such a folder.
const JournalFolder = ".cairn-convert"

const journalPrefix = JournalFolder + "/"

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
	// removed. It is for a staging store: in the store of the checkpoint itself, a commit is
	// repeated instead.
	Report *Report `json:"report,omitempty"`
	// Ended means that the run has ended with an error and will not commit. A killed process
	// cannot set it.
	Ended bool `json:"ended,omitempty"`
}

const recordVersion = 2

// journal records which files of a conversion are finished. It is in the store that the
// writers write to.
type journal struct {
	store blob.Store
	// direct means that the store is the place of the checkpoint, which other programs use
	// too. There is no lock that keeps a second run of the same conversion out: it would
	// write the same bytes to the same names, and the commit has a condition.
	direct bool
	rec    record
	// before is the record of another conversion that was there. Nil: there was none.
	before *record
	// goesOn is set if this run continues an earlier one, and kept counts the files
	// that the earlier one had finished.
	goesOn  bool
	kept    atomic.Int64
	begun   atomic.Bool // a file is noted
	started bool        // this run is the coordinator of the conversion and has written files
	proof   *proof      // nil: no proof
}

var _ storage.Journal = (*journal)(nil)

// openJournal returns the journal of the conversion with that fingerprint: the existing one,
// or a new one with the identity now. It writes no files.
func openJournal(ctx context.Context, t *Target, fingerprint string, now record, warn func(error)) (*journal, error) {
	s := t.store()
	old, err := readRecord(ctx, s)
	if err != nil {
		return nil, err
	}

	j := &journal{store: s, direct: t.Direct != nil, rec: now}
	if old != nil && old.Fingerprint == fingerprint {
		j.rec, j.goesOn = *old, true
		return j, nil
	}
	if old != nil {
		j.before = old
		warn(fmt.Errorf("%s has files of another conversion, or of another source: starting from the beginning", s))
	}

	j.rec.Version, j.rec.Fingerprint = recordVersion, fingerprint
	return j, nil
}

// start writes the record of a new conversion. In the place of the checkpoint, a run that
// goes on writes it again: it has not ended, and its time is the time of this run.
func (j *journal) start(ctx context.Context) error {
	j.started = true
	if j.goesOn && !j.direct {
		return nil
	}
	j.rec.Ended = false
	return j.writeRecord(ctx)
}

// end records that this run has ended and will not commit, unless the journal is of another
// conversion by now.
func (j *journal) end(ctx context.Context) error {
	now, err := readRecord(ctx, j.store)
	if err != nil || now == nil || now.SaveID != j.rec.SaveID {
		return err
	}
	j.rec.Ended = true
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
	if j.direct {
		return nil // see forget
	}

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

// forget removes the journal and the files of another conversion that was begun in the place
// of the checkpoint. leftovers returns the files of a save that no checkpoint needs. If the
// other conversion may be under way, all of its files stay, with a warning.
func (j *journal) forget(ctx context.Context, leftovers func(ctx context.Context, saveID string) ([]string, error), warn func(error)) error {
	if !j.direct || j.before == nil {
		return nil
	}
	if !j.before.Ended || leftovers == nil {
		warn(fmt.Errorf("files of the other conversion stay in %s, because it may be under way: 'cairn clean --older-than' removes them by age", j.store))
		return nil
	}

	names, err := leftovers(ctx, j.before.SaveID)
	if err != nil {
		return err
	}

	if err := blob.RemoveAll(ctx, j.store, names); err != nil {
		return err
	}
	return j.remove(ctx)
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

	if len(names) > 0 {
		if err := blob.RemoveAll(ctx, j.store, names); err != nil {
			return err
		}
	}

	if keep(recordName) {
		return nil
	}
	return j.store.Remove(ctx, recordName)
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
	if !j.goesOn {
		return nil, false, nil
	}

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
	j.begun.Store(true)
	return r, true, nil
}

// Note implements storage.Journal.
func (j *journal) Note(ctx context.Context, file string, r *storage.WriteResults) error {
	j.proof.fill(r)
	b, err := storage.ResultCodec{}.Encode(r)
	if err != nil {
		return err
	}
	if _, err = blob.WriteAll(ctx, j.store, resultsPrefix+file, b, nil); err == nil {
		j.begun.Store(true)
	}
	return err
}

// Begun implements storage.Journal.
func (j *journal) Begun(ctx context.Context) bool {
	if j.begun.Load() {
		return true
	}
	for range j.store.List(ctx, resultsPrefix) { // other processes may have noted files
		return true
	}
	return false
}

// complete records that the checkpoint is complete.
func (j *journal) complete(ctx context.Context, r *Report) error {
	j.rec.Report = r
	return j.writeRecord(ctx)
}

// done removes the journal of a checkpoint that is complete. The record comes first: if the
// rest stays, a later run must not take it for the notes of this conversion, and write files
// of the checkpoint again.
func (j *journal) done(ctx context.Context) error {
	if err := j.store.Remove(ctx, recordName); err != nil {
		return err
	}
	return j.removeAll(ctx, journalPrefix, func(name string) bool { return name == recordName })
}

// remove removes the journal.
func (j *journal) remove(ctx context.Context) error {
	return j.removeAll(ctx, journalPrefix, func(string) bool { return false })
}

// UnfinishedIn returns the unfinished conversion to the root of a store, or nil if the store has no
// unfinished conversion. Its Path and Staging are for messages. Its Bytes are the bytes of the
// journal, without the files of the save SaveID. Its Owner is dead if the conversion has ended with
// an error, and otherwise unknown.
func UnfinishedIn(ctx context.Context, s blob.Store) (*Unfinished, error) {
	var u *Unfinished
	for info, err := range s.List(ctx, journalPrefix) {
		if err != nil {
			return nil, err
		}

		if u == nil {
			u = &Unfinished{Path: s.String(), Staging: blob.JoinAddress(s.String(), JournalFolder)}
		}

		u.Bytes += info.Size
		if info.ModTime.After(u.ModTime) {
			u.ModTime = info.ModTime
		}
	}

	if u == nil {
		return nil, nil
	}

	rec, err := readRecord(ctx, s)
	if err != nil || rec == nil { // without a record, the rest of a journal of which most was removed
		return u, err
	}

	u.SaveID = rec.SaveID
	if rec.Ended {
		u.Owner = blob.OwnerDead
	}
	return u, nil
}

// DropIn removes the journal of the unfinished conversion in a store, so that it cannot be
// continued. The caller removes the files of its save first.
func DropIn(ctx context.Context, s blob.Store) error {
	return (&journal{store: s}).remove(ctx)
}
