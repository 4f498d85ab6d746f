package hf

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// saved is what our files say of the save that they are of: what the format has
// no place for.
type saved struct {
	SaveID    string            `json:"save_id"`
	Step      *int64            `json:"step,omitempty"`
	Time      time.Time         `json:"time"`
	WorldSize int               `json:"world_size,omitempty"`
	Writer    string            `json:"writer,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	// Commit is the file that is written last, and says the same as this. Empty:
	// the file itself, or the index, is the commit.
	Commit string `json:"commit,omitempty"`
}

func savedOf(s meta.Storage) saved {
	return saved{SaveID: s.SaveID, Step: s.Step, Time: s.Time.UTC(), WorldSize: s.WorldSize, Writer: s.Writer, Tags: s.Tags}
}

// describe takes the description of the save from the files, and refuses a save that
// did not finish. Files of different saves have no common description; they are
// refused if each save has a commit of its own. c is the commit in the folder, or
// nil.
func (s *source) describe(files []*dataFile, c *commit) error {
	of, same, err := savesOf(files)
	if err != nil {
		return err
	}
	for _, save := range of {
		switch {
		case save.Commit == "":
		case c == nil || save.Commit != commitName:
			return fmt.Errorf("%s: %w: no %s: the save did not finish", files[0].name, storage.ErrIncomplete, save.Commit)
		case !same:
			return fmt.Errorf("%w: %w: files of different saves", storage.ErrCorrupt, ErrSharding)
		case c.SaveID != save.SaveID:
			return fmt.Errorf("%s: %w: %s is of the save %q, not of %q, which did not finish",
				files[0].name, storage.ErrIncomplete, commitName, c.SaveID, save.SaveID)
		}
	}
	s.tell(files, of, same)
	return nil
}

// tell takes the description of the save from the files, if it is the same in all.
func (s *source) tell(files []*dataFile, of []saved, same bool) {
	out := &s.md.Storage
	out.Version, out.Tags = Version, tags(files)
	if len(of) != 1 || !same {
		return
	}
	save := of[0]
	out.SaveID, out.Step, out.Time, out.WorldSize, out.Writer = save.SaveID, save.Step, save.Time, save.WorldSize, save.Writer
	if out.Tags == nil && len(save.Tags) > 0 {
		out.Tags = map[string]string{}
	}
	maps.Copy(out.Tags, save.Tags)
}

// readCommit reads cairn-save.json. It returns nil if it is not there.
func (s *source) readCommit(ctx context.Context, dir *folder) (*commit, error) {
	size, ok := dir.other[commitName]
	if !ok {
		return nil, nil
	}
	c, err := readCommitFile(ctx, s.store)
	if err != nil {
		return nil, err
	}
	s.add(commitName, size)
	return c, nil
}

// savesOf returns what the files say of their saves, each thing once, and whether
// all say the same.
func savesOf(files []*dataFile) (of []saved, same bool, err error) {
	seen := map[string]bool{}
	for _, f := range files {
		text, ok := f.header.Metadata[keySave]
		if seen[text] {
			continue
		}
		seen[text] = true
		if !ok {
			continue
		}
		var s saved
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return nil, false, fmt.Errorf("%w: %s: %s: %w", storage.ErrCorrupt, f.name, keySave, err)
		}
		of = append(of, s)
	}
	return of, len(seen) <= 1, nil
}

// tags returns the metadata that all files have in common, apart from what says
// how they are to be read.
func tags(files []*dataFile) map[string]string {
	var out map[string]string
	for i, f := range files {
		if i == 0 {
			out = maps.Clone(f.header.Metadata)
		}
		maps.DeleteFunc(out, func(k, v string) bool { return f.header.Metadata[k] != v })
	}
	for _, k := range keysOfReaders {
		delete(out, k)
	}
	if out[keyFormat] == "pt" { // what nearly every file says
		delete(out, keyFormat)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
