package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

// uploading is a store like one of a service: each upload that did not finish is a Temp,
// and its folder may have no objects.
type uploading struct {
	*mem.Store
	uploads map[string]time.Duration // ages, by the names of the objects
}

func (s *uploading) Temps(_ context.Context, dir string) ([]blob.Temp, error) {
	var out []blob.Temp
	for name, age := range s.uploads {
		if folder, base := splitName(name); folder == dir {
			out = append(out, blob.Temp{Name: strings.TrimPrefix(folder+"/"+blob.Reserved+base, "/"), Size: 1 << 20, ModTime: time.Now().Add(-age)})
		}
	}
	return out, nil
}

func (s *uploading) SweepTemp(_ context.Context, dir string, olderThan time.Duration) (n int, err error) {
	for name, age := range s.uploads {
		if folder, _ := splitName(name); folder == dir && age >= olderThan {
			delete(s.uploads, name)
			n++
		}
	}
	return n, nil
}

func (s *uploading) TempFolders(_ context.Context, dir string) ([]string, error) {
	var out []string
	for name := range s.uploads {
		if folder, _ := splitName(name); folder != "" {
			out = append(out, folder)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// execute runs a command line and returns its exit code and its output.
func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	code = Main(t.Context(), args, &out, &errOut)
	return code, out.String(), errOut.String()
}

func splitName(name string) (folder, base string) {
	i := strings.LastIndexByte(name, '/')
	return name[:max(i, 0)], name[i+1:]
}

// Clean finds uploads in folders without objects, at every depth, and latest hints at the
// command that removes them.
func TestCleanUploadsAtEveryDepth(t *testing.T) {
	s := &uploading{new(mem.Store), map[string]time.Duration{"top": 48 * time.Hour, "step-1/a": 48 * time.Hour, "old/run/step-7/b": 48 * time.Hour, "step-2/c": time.Minute}}
	blob.Register("uploading", func(context.Context, string) (blob.Store, error) { return s, nil })
	const run = "uploading://bucket"

	code, _, stderr := execute(t, "latest", run)
	if want := `4 files, 4.0 MiB, left by saves that did not finish; 'cairn clean uploading://bucket --older-than 24h' removes them`; code != 3 || !strings.Contains(stderr, want) {
		t.Errorf("cairn latest = %d, printed %q; want %q", code, stderr, want)
	}
	code, stdout, stderr := execute(t, "clean", run, "--older-than", "24h")
	if code != 0 || !strings.Contains(stdout, "3 files removed, 3.0 MiB") || !strings.Contains(stdout, "old/run/step-7/"+blob.Reserved+"b") {
		t.Errorf("cairn clean = %d, printed %q, %q; want three uploads", code, stdout, stderr)
	}
	if len(s.uploads) != 1 {
		t.Errorf("left are %v; want the new one", s.uploads)
	}
}

func TestPermissionErrorsAreOne(t *testing.T) {
	denied := func(name string) error { return fmt.Errorf("open %s: %w", name, fs.ErrPermission) }
	err := joinDenied([]error{nil, denied("a"), denied("b"), denied("c"), errors.New("other")})
	if want := "open a: permission denied (and 2 more for want of permission)\nother"; err == nil || err.Error() != want || !errors.Is(err, fs.ErrPermission) {
		t.Errorf("joinDenied = %q; want %q", err, want)
	}
	if err := joinDenied([]error{nil, nil}); err != nil {
		t.Errorf("joinDenied of no errors = %v", err)
	}
}
