package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// movingName is the list of the files that are being moved into a folder, in
// their order. While it is there, those that have arrived are to be taken back,
// unless the last has.
const movingName = JournalPrefix + "moving.json"

// moveIn moves the new files into the folder at Path, in which nothing has their
// names.
func (p *Place) moveIn() error {
	names, err := p.newFiles()
	if err != nil {
		return err
	}
	for _, n := range names {
		if exists(p.inPath(n)) {
			return fmt.Errorf("%w: %s", ErrOccupied, p.inPath(n))
		}
	}
	if err := p.do("list", func() error { return p.writeMoving(names) }); err != nil {
		return err
	}
	for i, n := range names {
		if i == len(names)-1 { // nothing is a checkpoint before its data is there for good
			if err := p.do("sync", func() error { return syncDir(p.Path) }); err != nil {
				return err
			}
		}
		if err := p.do("move "+n, func() error { return move(p.inStaging(n), p.inPath(n)) }); err != nil {
			return err
		}
	}
	return p.do("sync", func() error { return syncDir(p.Path) })
}

func (p *Place) inStaging(name string) string {
	return filepath.Join(p.Staging(), filepath.FromSlash(name))
}

func (p *Place) inPath(name string) string { return filepath.Join(p.Path, filepath.FromSlash(name)) }

// newFiles returns the files of the new checkpoint, what makes it one last.
func (p *Place) newFiles() ([]string, error) {
	var data, last []string
	err := filepath.WalkDir(p.Staging(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(p.Staging(), path)
		name := filepath.ToSlash(rel)
		switch {
		case strings.HasPrefix(name, JournalPrefix):
		case p.Record != nil && p.Record(name):
			last = append(last, name)
		default:
			data = append(data, name)
		}
		return err
	})
	return append(data, last...), err
}

// writeMoving writes the list in one step.
func (p *Place) writeMoving(names []string) error {
	b, err := json.Marshal(names)
	if err != nil {
		return err
	}
	path := p.inStaging(movingName)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// moving returns the list of a move that has not come to its end, or nothing.
func (p *Place) moving() ([]string, error) {
	b, err := os.ReadFile(p.inStaging(movingName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	if err == nil {
		err = json.Unmarshal(b, &names)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.inStaging(movingName), err)
	}
	if len(names) == 0 || !exists(p.inStaging(names[len(names)-1])) {
		return nil, nil // all has arrived
	}
	return names, nil
}

// moveBack takes back what an earlier Publish, killed before the last file, had
// moved into the folder.
func (p *Place) moveBack() error {
	names, err := p.moving()
	if err != nil || len(names) == 0 {
		return err
	}
	for _, n := range slices.Backward(names) {
		if !filepath.IsLocal(filepath.FromSlash(n)) || exists(p.inStaging(n)) || !exists(p.inPath(n)) {
			continue
		}
		if err := move(p.inPath(n), p.inStaging(n)); err != nil {
			return err
		}
	}
	return os.Remove(p.inStaging(movingName))
}

// move gives a file another name, in a folder that is made if need be.
func move(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
