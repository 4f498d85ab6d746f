//go:build unix

package convert

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// Special files are not opened, and the error names their kind.
func TestSpecialTargetsAreRefused(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "x")
	must.Do(t, syscall.Mkfifo(fifo, 0o666))
	for path, want := range map[string]string{fifo: "is a FIFO", "/dev/null": "is a device"} {
		for _, overwrite := range []bool{false, true} {
			p := &Place{Path: path, File: "x.pt", Overwrite: overwrite, Look: func(string) ([]string, error) {
				t.Error("it was opened")
				return nil, nil
			}}
			if err := p.Check(); !errors.Is(err, ErrOccupied) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: Check = %v; want %v: %s", path, err, ErrOccupied, want)
			}
		}
	}
}
