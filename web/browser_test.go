package web_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// fakes are programs that tools/browser runs. The files in $FAKE say how they answer.
var fakes = map[string]string{
	"node":     `case "$1" in -p) cat "$FAKE/version" ;; *) echo v"$(cat "$FAKE/version")" ;; esac`,
	"npm":      `exit 0`,
	"id":       `cat "$FAKE/user"`,
	"chromium": `echo Chromium 1`,
	"apt-get": `echo "$*" >>"$FAKE/apt"; [ -e "$FAKE/offline" ] && exit 100
		case "$*" in *shell) [ -e "$FAKE/old" ] && exit 100; cp "$FAKE/chromium" "$PATH/chromium-headless-shell" ;; *chromium) cp "$FAKE/chromium" "$PATH/chromium" ;; esac`,

	"chromium-headless-shell": `echo Chromium 1`,
}

// The output and the exit code of tools/browser depend on the browsers of the machine. The
// programs here are fakes.
func TestBrowserIsFound(t *testing.T) {
	tools := []string{"bash", "sh", "cat", "cp", "timeout", "sleep"}
	for i, tool := range tools {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Skip(err)
		}
		tools[i] = path
	}
	for name, c := range map[string]struct {
		has      string // programs that there are
		files    string // in $FAKE
		env      string
		finds    string
		fails    bool
		says     string
		installs int // how often apt-get is called
	}{
		"all is there":                        {has: "node npm chromium", finds: "chromium"},
		"a headless shell, too":               {has: "node npm chromium chromium-headless-shell", finds: "chromium-headless-shell"},
		"nothing is there":                    {says: "left out: there is no node"},
		"no npm":                              {has: "node chromium", says: "left out: there is no npm"},
		"an old node":                         {has: "node npm chromium", files: "version=18", says: "left out: node is v18"},
		"no browser":                          {has: "node npm apt-get", says: "left out: there is no Chromium"},
		"CHROMIUM does not start":             {has: "node npm chromium", env: "CHROMIUM=/no/browser", says: "left out: CHROMIUM is /no/browser"},
		"needed, and all is there":            {has: "node npm chromium", env: "NEED=1", finds: "chromium"},
		"needed, without node":                {env: "NEED=1", fails: true, says: "FAILED: there is no node"},
		"needed, with an apt-get":             {has: "node npm apt-get", env: "NEED=1", finds: "chromium-headless-shell", installs: 2},
		"needed, with an older apt-get":       {has: "node npm apt-get", files: "old=1", env: "NEED=1", finds: "chromium", installs: 3},
		"needed, without an apt-get":          {has: "node npm", env: "NEED=1", fails: true, says: "no apt-get"},
		"needed, but not root":                {has: "node npm apt-get", files: "user=1000", env: "NEED=1", fails: true, says: "needs root"},
		"needed, but the download fails":      {has: "node npm apt-get", files: "offline=1", env: "NEED=1", fails: true, says: "could not install", installs: 3},
		"needed, but CHROMIUM does not start": {has: "node npm apt-get", env: "NEED=1 CHROMIUM=/no/browser", fails: true, says: "does not start"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, fake := t.TempDir(), t.TempDir()
			for _, tool := range tools {
				must.Do(t, os.Symlink(tool, filepath.Join(dir, filepath.Base(tool))))
			}
			for _, program := range append(strings.Fields(c.has), "id") {
				must.Do(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+fakes[program]+"\n"), 0o777))
			}
			files := map[string]string{"version": "20", "user": "0", "chromium": "#!/bin/sh\n" + fakes["chromium"] + "\n"}
			for _, f := range strings.Fields(c.files) {
				key, value, _ := strings.Cut(f, "=")
				files[key] = value
			}
			for key, value := range files {
				must.Do(t, os.WriteFile(filepath.Join(fake, key), []byte(value), 0o777))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var out, said bytes.Buffer
			cmd := exec.CommandContext(ctx, filepath.Join(dir, "bash"), must.Get(filepath.Abs("../tools/browser"))(t))
			cmd.Env = append([]string{"PATH=" + dir, "FAKE=" + fake, "PAUSE=0"}, strings.Fields(c.env)...)
			cmd.Stdout, cmd.Stderr = &out, &said
			err := cmd.Run()
			if (err != nil) != c.fails {
				t.Errorf("tools/browser: %v; want an error: %v\n%s", err, c.fails, &said)
			}
			want := c.finds
			if want != "" {
				want = filepath.Join(dir, want)
			}
			if found := strings.TrimSpace(out.String()); found != want {
				t.Errorf("tools/browser prints %q; want %q\n%s", found, want, &said)
			}
			if !strings.Contains(said.String(), c.says) {
				t.Errorf("tools/browser says %q; want %q", &said, c.says)
			}
			calls, _ := os.ReadFile(filepath.Join(fake, "apt"))
			if n := bytes.Count(calls, []byte("\n")); n != c.installs {
				t.Errorf("apt-get was called %d times; want %d:\n%s", n, c.installs, calls)
			}
		})
	}
}
