package hf

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// saved is what our files say of the save that they are of: what the format has
// no place for.
type saved struct {
	SaveID    string            `json:"save_id"`
	Step      int64             `json:"step"`
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

// describe takes down what the files say of their save as a whole, and refuses
// one that did not finish. Files of different saves, which somebody put together,
// say nothing as a whole; they are refused where each save has a commit of its
// own.
func (s *source) describe(ctx context.Context, dir *folder, files []*dataFile) error {
	out := &s.md.Storage
	out.Version = Version
	of, same, err := savesOf(files)
	if err != nil {
		return err
	}
	for _, save := range of {
		if save.Commit == "" {
			continue
		}
		if !same {
			return fmt.Errorf("%w: %w: files of different saves", storage.ErrCorrupt, ErrSharding)
		}
		if err := s.checkCommit(ctx, dir, save); err != nil {
			return fmt.Errorf("%s: %w", files[0].name, err)
		}
	}
	if len(of) != 1 || !same {
		out.Tags = tags(files)
		return nil
	}
	save := of[0]
	out.SaveID, out.Step, out.Time, out.WorldSize, out.Writer, out.Tags = save.SaveID, save.Step, save.Time, save.WorldSize, save.Writer, save.Tags
	return nil
}

// checkCommit looks whether the commit that files name is there, and that of
// their own save.
func (s *source) checkCommit(ctx context.Context, dir *folder, save saved) error {
	size, ok := dir.other[commitName]
	if !ok || save.Commit != commitName {
		return fmt.Errorf("%w: no %s: the save did not finish", storage.ErrIncomplete, save.Commit)
	}
	b, err := blob.ReadAll(ctx, s.store, commitName, maxIndex)
	if err != nil {
		return err
	}
	var commit saved
	if err := json.Unmarshal(b, &commit); err != nil {
		return fmt.Errorf("%w: %s: %w", storage.ErrCorrupt, commitName, err)
	}
	if commit.SaveID != save.SaveID {
		return fmt.Errorf("%w: %s is of the save %q, not of %q, which did not finish", storage.ErrIncomplete, commitName, commit.SaveID, save.SaveID)
	}
	s.add(commitName, size)
	return nil
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
	for _, k := range []string{keySharding, keyVersion, keyFormat, keySave} {
		delete(out, k)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
