package interop

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

// fakePython answers the questions of setup to an interpreter. The files in its folder decide
// the answers: torch and frameworks are there if it has them, and pip holds a line for each
// time that it was run.
const fakePython = `#!/usr/bin/env bash
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip "*)
	echo "$*" >>"$FAKE/pip"
	[[ -e $FAKE/slow ]] && exec sleep 1000
	(($(wc -l <"$FAKE/pip") > $(cat "$FAKE/failures"))) || exit 1
	touch "$FAKE/torch" "$FAKE/frameworks" ;;
*"import torch"*) [[ -e $FAKE/torch ]] && echo 9.9 ;;
*"import metadata"*) [[ -e $FAKE/frameworks ]] && echo frameworks 1.0 ;;
*) exit 1 ;;
esac
`

// The output of setup, and whether it fails, for different machines. It uses no network.
func TestSetup(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	for name, c := range map[string]struct {
		files  string // of the fake interpreter, and "kept" for one in the cache
		env    string
		want   string // the path that is printed, or empty
		fails  bool
		says   string
		pipped int // -1: any number
	}{
		"nothing is there":                    {env: "WAYS=python,kept", says: "no PyTorch by way of kept"},
		"nothing is there and all is needed":  {env: "WAYS=python,kept NEED=all", fails: true, says: "set TORCH to a Python"},
		"python3":                             {files: "torch frameworks", want: "fake/python", says: "PyTorch 9.9"},
		"python3 has only PyTorch":            {files: "torch", want: "fake/python", says: "without lightning"},
		"all is needed, and python3 has less": {files: "torch", env: "WAYS=python NEED=all", fails: true, says: "does not count"},
		"kept":                                {files: "torch kept", env: "WAYS=kept", want: "cache/venv/bin/python"},
		"kept is filled if others are made":   {files: "torch kept", env: "WAYS=kept,venv NEED=all", want: "cache/venv/bin/python", pipped: 1},
		"venv":                                {env: "WAYS=venv NEED=all", want: "cache/venv/bin/python", pipped: 1},
		"venv, two downloads fail":            {files: "failures=2", env: "WAYS=venv NEED=all", want: "cache/venv/bin/python", pipped: 3},
		"venv, all downloads fail":            {files: "failures=9", env: "WAYS=venv NEED=all", fails: true, says: "venv.log", pipped: 3},
		"venv, a download that does not end":  {files: "slow", env: "WAYS=venv NEED=all LIMIT=2", fails: true, says: "LIMIT) were not enough", pipped: -1}, // a busy machine may not come that far
		"TORCH":                               {files: "torch", env: "TORCH=fake/python", want: "fake/python"},
		"TORCH has no PyTorch":                {env: "TORCH=fake/python", fails: true, says: "has no PyTorch"},
		"a way that there is not":             {env: "WAYS=conda", fails: true, says: "none of python, kept, debian, venv"},
	} {
		t.Run(name, func(t *testing.T) {
			fake, cache := fakeMachine(t, c.files)
			out, said, err := setUp(t, fake, cache, c.env)
			if got, _ := filepath.Rel(filepath.Dir(fake), strings.TrimSpace(out)); out != "" {
				out = got
			}
			if out != c.want || (err != nil) != c.fails || !strings.Contains(said, c.says) {
				t.Errorf("setup printed %q and ended with %v; want %q, failure %t and %q in\n%s", out, err, c.want, c.fails, c.says, said)
			}
			runs, _ := os.ReadFile(filepath.Join(fake, "pip")) // none if pip was not run
			if n := bytes.Count(runs, []byte("\n")); c.pipped >= 0 && n != c.pipped {
				t.Errorf("pip was run %d times; want %d\n%s", n, c.pipped, runs)
			}
		})
	}
}

// fakeMachine makes a folder with the files that are named, and a cache. A name may have a
// content, after "=".
func fakeMachine(t *testing.T, files string) (fake, cache string) {
	t.Helper()
	root := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	fake, cache = filepath.Join(root, "fake"), filepath.Join(root, "cache")
	kept := filepath.Join(cache, "venv", "bin", "python")
	contents := map[string]string{filepath.Join(fake, "python"): fakePython, filepath.Join(fake, "failures"): "0"}
	for _, name := range strings.Fields(files) {
		name, content, _ := strings.Cut(name, "=")
		if name == "kept" {
			contents[kept] = fakePython
			continue
		}
		contents[filepath.Join(fake, name)] = content
	}
	for name, content := range contents {
		must.Do(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must.Do(t, os.WriteFile(name, []byte(content), 0o755))
	}
	return fake, cache
}

// setUp runs setup with variables, in which a comma stands for a space, and returns its
// stdout and stderr.
func setUp(t *testing.T, fake, cache, variables string) (out, said string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	setup := must.Get(filepath.Abs("setup"))(t)
	cmd := exec.CommandContext(ctx, "bash", setup)
	cmd.Dir = filepath.Dir(fake)
	cmd.Env = append(os.Environ(), "FAKE="+fake, "CAIRN_INTEROP_PYTHON="+filepath.Join(fake, "python"), "CAIRN_INTEROP_CACHE="+cache,
		"TORCH=", "SUITES=", "WAYS=python", "NEED=", "PAUSE=0")
	for _, v := range strings.Fields(variables) {
		cmd.Env = append(cmd.Env, strings.ReplaceAll(v, ",", " "))
	}
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	return string(b), stderr.String(), err
}

// Where serving and beside cannot install anything, they say so and fail.
func TestSkippedLoudly(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	for script, what := range map[string]string{"./serving": "vLLM and SGLang", "./beside": "megatron"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, script, filepath.Join(t.TempDir(), "python3"), "megatron").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "SKIPPED: "+what) {
			t.Errorf("%s = %v, %s; want an error and SKIPPED", script, err, out)
		}
	}
}
