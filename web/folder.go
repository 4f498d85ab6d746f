package web

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// folder keeps results in files, so that they are not computed again by the next program
// either. A result that cannot be kept, or is damaged, is computed again: no problem of the
// folder is an error.
type folder struct {
	dir  string
	most int64 // bytes of all files

	mu sync.Mutex // held while old files are removed
}

const (
	keptSuffix = ".cairn-stats"
	// tempPrefix begins the names of files that are being written. Those of programs that
	// died are removed after tempAge.
	tempPrefix = ".new-"
	tempAge    = time.Hour
	sumLine    = 2*sha256.Size + 1 // a file begins with the checksum of the rest
)

// path returns the path of the file for a key.
func (f *folder) path(key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(f.dir, hex.EncodeToString(sum[:])+keptSuffix)
}

// kept is the content of a file.
type kept[T any] struct {
	Key   string `json:"key"` // so that people can see the question of a file
	Value T      `json:"value"`
}

// load returns the result that was kept under a key.
func load[T any](f *folder, key string) (v T, ok bool) {
	if f == nil {
		return v, false
	}
	b, err := os.ReadFile(f.path(key))
	if err != nil || len(b) < sumLine {
		return v, false
	}
	if string(b[:sumLine]) != checksum(b[sumLine:]) {
		return v, false
	}
	var k kept[T]
	if json.Unmarshal(b[sumLine:], &k) != nil || k.Key != key {
		return v, false
	}
	return k.Value, true
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]) + "\n"
}

// store keeps a result under a key, in one atomic step. It then removes the oldest files
// until the folder is within its bound.
func store[T any](f *folder, key string, v T) {
	if f == nil {
		return
	}
	text, err := json.Marshal(kept[T]{key, v})
	if err != nil {
		return
	}
	if f.write(f.path(key), slices.Concat([]byte(checksum(text)), text)) == nil {
		f.trim()
	}
}

// write writes a file whole or not at all.
func (f *folder) write(path string, b []byte) error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(f.dir, tempPrefix+"*")
	if err != nil {
		return err
	}
	_, err = bytes.NewReader(b).WriteTo(tmp)
	err = cmp.Or(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

// trim removes the oldest files beyond the bound. It removes only files that a folder writes.
func (f *folder) trim() {
	f.mu.Lock()
	defer f.mu.Unlock()
	list, err := os.ReadDir(f.dir)
	if err != nil {
		return
	}

	var files []os.FileInfo
	var total int64
	for _, e := range list {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		switch {
		case strings.HasSuffix(e.Name(), keptSuffix):
			files = append(files, info)
			total += info.Size()
		case strings.HasPrefix(e.Name(), tempPrefix) && time.Since(info.ModTime()) > tempAge:
			_ = os.Remove(filepath.Join(f.dir, e.Name()))
		}
	}

	slices.SortFunc(files, func(a, b os.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, info := range files {
		if total <= f.most {
			return
		}
		if os.Remove(filepath.Join(f.dir, info.Name())) == nil {
			total -= info.Size()
		}
	}
}
