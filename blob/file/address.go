package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
)

func init() {
	blob.Register("file", func(_ context.Context, address string) (blob.Store, error) {
		path, _, err := LocalPath(address)
		if err != nil {
			return nil, err
		}
		return OpenPath(path)
	})
}

// LocalPath returns the path of an address in the file system: a path itself, or the path
// of file:///path, without its escapes. local is false if the address has another scheme.
// The error wraps blob.ErrAddress.
func LocalPath(address string) (path string, local bool, err error) {
	if blob.Scheme(address) != "file" {
		return address, false, nil
	}
	if !strings.HasPrefix(strings.ToLower(address), "file:/") {
		return address, true, nil
	}

	u, err := url.Parse(address)
	if err != nil || !strings.Contains(address, "://") || u.Path == "" || u.User != nil || u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.Fragment != "" {
		return "", true, fmt.Errorf("%w: %s: want file:///path", blob.ErrAddress, blob.Redact(address))
	}
	return filepath.FromSlash(u.Path), true, nil
}

// RealPath returns the absolute path without links. The end of the path need not exist. If the
// current folder is unknown, it returns path.
func RealPath(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return path
	}
	for dir := abs; ; dir = filepath.Dir(dir) {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(real, abs[len(dir):])
		}
		if dir == filepath.Dir(dir) {
			return abs
		}
	}
}

// Folders implements [blob.FolderLister]. It returns links to folders too. Names need not
// be valid names of objects.
func (s *Store) Folders(ctx context.Context, dir string) ([]string, error) {
	if dir != "" {
		if err := s.check(ctx, dir); err != nil {
			return nil, s.fail("list", dir, err)
		}
	}

	entries, err := os.ReadDir(s.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, s.fail("list", dir, err)
	}

	var out []string
	for _, e := range entries {
		if e.Name() == spareFolder {
			continue
		}
		folder, err := isFolder(filepath.Join(s.path(dir), e.Name()), e)
		if err != nil {
			return nil, s.fail("list", dir, err)
		}
		if folder {
			out = append(out, e.Name())
		}
	}

	return out, nil
}

// isFolder reports whether an entry is a folder or a link to one.
func isFolder(path string, e fs.DirEntry) (bool, error) {
	if e.Type()&fs.ModeSymlink == 0 {
		return e.IsDir(), nil
	}

	fi, err := os.Stat(path)
	switch {
	case err == nil:
		return fi.IsDir(), nil
	case gone(err):
		return false, nil // a dangling link
	}

	return false, err
}
