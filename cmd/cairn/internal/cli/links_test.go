package cli

import (
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/web"
)

// The page of a run does not show files outside of its folder: a link to another checkpoint, a
// checkpoint of links to files, and a remote run that only a file names.
func TestWebDoesNotFollowLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need rights there")
	}
	defer goleak.VerifyNone(t)
	dir, secret := t.TempDir(), t.TempDir()
	demoCheckpoint(t, filepath.Join(dir, "step-1"))
	demoCheckpoint(t, filepath.Join(secret, "step-4"))
	must.Do(t, os.Symlink(filepath.Join(secret, "step-4"), filepath.Join(dir, "step-2")))
	must.Do(t, os.Mkdir(filepath.Join(dir, "step-3"), 0o777))
	for _, f := range must.Get(os.ReadDir(filepath.Join(secret, "step-4")))(t) {
		must.Do(t, os.Symlink(filepath.Join(secret, "step-4", f.Name()), filepath.Join(dir, "step-3", f.Name())))
	}
	must.Do(t, os.Symlink("step-1", filepath.Join(dir, "step-5"))) // within the run
	must.Do(t, os.WriteFile(filepath.Join(dir, "cairn-run.json"), []byte(`{"version":1,"id":"x","remote":"`+secret+`"}`), 0o666))

	s := serveWeb(t, dir, "--no-cache")
	if !strings.Contains(s.errOut.String(), "is not shown, because only a file of the run names it") {
		t.Errorf("cairn web prints %q", s.errOut)
	}
	for id, want := range map[string]int{"step-1": http.StatusOK, "step-2": http.StatusForbidden, "step-3": http.StatusForbidden, "step-4": http.StatusNotFound} {
		var answer struct{ Error web.Error }
		if got := s.get(t, "/api/names?c="+id, &answer); got != want {
			t.Errorf("%s: status %d, %+v; want %d", id, got, answer.Error, want)
		} else if want == http.StatusForbidden && !strings.Contains(answer.Error.Message+answer.Error.Hint, "outside of the folder") {
			t.Errorf("%s: %+v; want the reason", id, answer.Error)
		}
	}
	s.end(t)

	s = serveWeb(t, dir, "--no-cache", "--follow-links")
	for _, id := range []string{"step-1", "step-2", "step-3", "step-4"} {
		var answer struct{ Error web.Error }
		if got := s.get(t, "/api/names?c="+id, &answer); got != http.StatusOK {
			t.Errorf("%s with --follow-links: status %d, %+v", id, got, answer.Error)
		}
	}
	s.end(t)
}

// The files of a model in the cache of the Hugging Face hub are links to a folder beside it.
func TestWebOfHubCache(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need rights there")
	}
	hub := filepath.Join(t.TempDir(), "models--a--b")
	snapshot := filepath.Join(hub, "snapshots", "abc")
	must.Do(t, os.MkdirAll(snapshot, 0o777))
	must.Do(t, os.MkdirAll(filepath.Join(hub, "blobs"), 0o777))
	must.Do(t, os.WriteFile(filepath.Join(hub, "blobs", "1"), nil, 0o666))
	must.Do(t, os.Symlink(filepath.Join("..", "..", "blobs", "1"), filepath.Join(snapshot, "model.safetensors")))
	for _, root := range []string{hub, filepath.Dir(snapshot), snapshot} {
		if err := checkLinks(root, snapshot); err != nil {
			t.Errorf("checkLinks(%s): %v", root, err)
		}
	}
}
