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

// describe notes what the files say about their save as a whole, and refuses a
// save that did not finish. Files of different saves say nothing as a whole; they
// are refused if each save has a commit of its own. It returns the commit, or nil
// if there is none that lists its files.
func (s *source) describe(ctx context.Context, dir *folder, files []*dataFile) (*commit, error) {
	out := &s.md.Storage
	out.Version = Version
	of, same, err := savesOf(files)
	if err != nil {
		return nil, err
	}
	var c *commit
	for _, save := range of {
		if save.Commit == "" {
			continue
		}
		if !same {
			return nil, fmt.Errorf("%w: %w: files of different saves", storage.ErrCorrupt, ErrSharding)
		}
		if c, err = s.readCommit(ctx, dir, save); err != nil {
			return nil, fmt.Errorf("%s: %w", files[0].name, err)
		}
	}
	if len(of) != 1 || !same {
		out.Tags = tags(files)
		return c, nil
	}
	save := of[0]
	out.SaveID, out.Step, out.Time, out.WorldSize, out.Writer, out.Tags = save.SaveID, save.Step, save.Time, save.WorldSize, save.Writer, save.Tags
	for k, v := range tags(files) { // those that other programs have added since
		if _, ours := out.Tags[k]; !ours {
			if out.Tags == nil {
				out.Tags = map[string]string{}
			}
			out.Tags[k] = v
		}
	}
	return c, nil
}

// readCommit reads the commit that files name, which must be that of their save.
// It returns nil if the commit does not list its files: cairn wrote no list before.
func (s *source) readCommit(ctx context.Context, dir *folder, save saved) (*commit, error) {
	size, ok := dir.other[commitName]
	if !ok || save.Commit != commitName {
		return nil, fmt.Errorf("%w: no %s: the save did not finish", storage.ErrIncomplete, save.Commit)
	}
	c, err := readCommitFile(ctx, s.store)
	if err != nil {
		return nil, err
	}
	if c.SaveID != save.SaveID {
		return nil, fmt.Errorf("%w: %s is of the save %q, not of %q, which did not finish", storage.ErrIncomplete, commitName, c.SaveID, save.SaveID)
	}
	s.add(commitName, size)
	if len(c.Files) == 0 {
		return nil, nil
	}
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
