package hf

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

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
	// Commit is the file that is written last. Empty: the file itself, or the
	// index, is the commit.
	Commit string `json:"commit,omitempty"`
}

func savedOf(s meta.Storage) saved {
	return saved{SaveID: s.SaveID, Step: s.Step, Time: s.Time.UTC(), WorldSize: s.WorldSize, Writer: s.Writer, Tags: s.Tags}
}

// describe returns what the files say of their save as a whole, and refuses one
// that did not finish. Files of different saves, which somebody put together,
// say nothing as a whole; they are refused where each save has a commit of its
// own.
func describe(files []*dataFile) (meta.Storage, error) {
	out := meta.Storage{Version: Version}
	of, same, err := savesOf(files)
	if err != nil {
		return out, err
	}
	for _, s := range of {
		switch {
		case s.Commit == "":
		case !same:
			return out, fmt.Errorf("%w: %w: files of different saves", storage.ErrCorrupt, ErrSharding)
		case !slices.ContainsFunc(files, func(f *dataFile) bool { return f.name == s.Commit }):
			return out, fmt.Errorf("%w: %s but no %s: the save did not finish", storage.ErrIncomplete, files[0].name, s.Commit)
		}
	}
	if len(of) != 1 || !same {
		out.Tags = tags(files)
		return out, nil
	}
	s := of[0]
	out.SaveID, out.Step, out.Time, out.WorldSize, out.Writer, out.Tags = s.SaveID, s.Step, s.Time, s.WorldSize, s.Writer, s.Tags
	return out, nil
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
