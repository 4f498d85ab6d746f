package file_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// A folder that cannot be made is named, and is no missing object.
func TestFolderThatCannotBeMade(t *testing.T) {
	in := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(in, nil, 0o666))
	places := []string{filepath.Join(in, "below")}
	if runtime.GOOS == "linux" {
		places = append(places, "/proc/cairn/below")
	}
	for _, place := range places {
		s := must.Get(file.Open(place, nil))(t)
		_, lockErr := s.TryLock(t.Context(), "a", nil)
		_, createErr := s.Create(t.Context(), "a", nil)
		for what, err := range map[string]error{"TryLock": lockErr, "Create": createErr} {
			if !errors.Is(err, file.ErrFolder) || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "cannot be made: ") {
				t.Errorf("%s in %s = %v; want ErrFolder", what, place, err)
			}
		}
	}
}
