package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/web"
)

// served is a 'cairn web' that runs.
type served struct {
	webResult
	cancel context.CancelFunc
	code   chan int
	errOut *sharedBuffer
}

// sharedBuffer is a buffer for several goroutines.
type sharedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (s *sharedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *sharedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// serveWeb runs 'cairn web' with args until the test ends.
func serveWeb(t *testing.T, args ...string) *served {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	s := &served{cancel: cancel, code: make(chan int, 1), errOut: new(sharedBuffer)}
	go func() {
		s.code <- Main(ctx, append([]string{"web", "--json", "--no-open"}, args...), in, s.errOut)
		_ = in.Close()
	}()
	t.Cleanup(func() { s.end(t) })
	if err := json.NewDecoder(out).Decode(&s.webResult); err != nil {
		t.Fatalf("cairn web %q prints no address: %v; %s", args, err, s.errOut)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return s
}

// end interrupts the command. The exit code must be 0.
func (s *served) end(t *testing.T) {
	t.Helper()
	s.cancel()
	select {
	case code, ok := <-s.code:
		if ok && code != 0 {
			t.Errorf("cairn web ends with exit code %d: %s", code, s.errOut)
		}
		if ok {
			close(s.code)
		}
	case <-time.After(2 * time.Minute):
		t.Error("cairn web does not end")
	}
	http.DefaultClient.CloseIdleConnections()
}

// get decodes the answer to a request, or the result in a stream.
func (s *served) get(t *testing.T, request string, v any) int {
	t.Helper()
	u := must.Get(url.Parse(s.URL))(t)
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+u.Host+request, nil))(t)
	r.Header.Set("Authorization", "Bearer "+u.Query().Get("token"))
	answer := must.Get(http.DefaultClient.Do(r))(t)
	defer answer.Body.Close()
	body := must.Get(io.ReadAll(answer.Body))(t)
	if answer.Header.Get("Content-Type") == "application/x-ndjson" {
		lines := bytes.Split(bytes.TrimSpace(body), []byte("\n"))
		var last struct{ Result, Error json.RawMessage }
		must.Do(t, json.Unmarshal(lines[len(lines)-1], &last))
		body = last.Result
		if last.Error != nil {
			body = []byte(`{"error":` + string(last.Error) + `}`)
		}
	}
	if err := json.Unmarshal(body, v); err != nil {
		t.Fatalf("%s: %v: %s", request, err, body)
	}
	return answer.StatusCode
}

func demoCheckpoint(t *testing.T, dir string) {
	t.Helper()
	var out bytes.Buffer
	if code := Main(t.Context(), []string{"demo", "--dir", dir, "--size", "64KiB", "--ranks", "2", "--quiet"}, &out, &out); code != 0 {
		t.Fatalf("cairn demo: exit code %d: %s", code, &out)
	}
}

func TestWeb(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	for _, name := range []string{"step-1", "step-2"} {
		demoCheckpoint(t, filepath.Join(dir, name))
	}
	s := serveWeb(t, dir, filepath.Join(dir, "step-1"), "--cache", filepath.Join(t.TempDir(), "cache"))
	if !strings.HasPrefix(s.URL, "http://127.0.0.1:") || s.Path != dir || s.Port == 0 {
		t.Errorf("cairn web --json prints %+v", s.webResult)
	}
	var place struct {
		Kind        string
		Checkpoints []web.Place
	}
	s.get(t, "/api/place", &place)
	if place.Kind != "run" || len(place.Checkpoints) != 3 || place.Checkpoints[2].ID != "@1" || !place.Checkpoints[2].Other {
		t.Errorf("the place is %+v; want a run of two checkpoints, and another", place)
	}
	var same struct{ Equal bool }
	if s.get(t, "/api/compare?a=step-1&b=@1&select=model.*", &same); !same.Equal {
		t.Error("a checkpoint and itself are not equal")
	}
	var steps struct{ Steps []struct{ Error string } }
	if s.get(t, "/api/steps", &steps); len(steps.Steps) != 2 || steps.Steps[0].Error != "" {
		t.Errorf("the steps are %+v", steps)
	}
	var line struct{ Phases []any }
	if s.get(t, "/api/timeline?c=step-2", &line); len(line.Phases) == 0 {
		t.Error("the timeline has no phases")
	}
	// A checkpoint that another command removes is gone, and not locked.
	var out bytes.Buffer
	if code := Main(t.Context(), []string{"rm", filepath.Join(dir, "step-2"), "--force"}, &out, &out); code != 0 {
		t.Fatalf("cairn rm of a checkpoint that is shown: exit code %d: %s", code, &out)
	}
	var gone struct{ Error web.Error }
	end := time.Now().Add(2 * time.Minute)
	for s.get(t, "/api/names?c=step-2", &gone) == http.StatusOK && time.Now().Before(end) {
		time.Sleep(50 * time.Millisecond) // a second, in which it is not looked at again
	}
	if gone.Error.Kind != web.KindGone {
		t.Errorf("after cairn rm: %+v; want the kind %q", gone.Error, web.KindGone)
	}
	s.end(t)
}

// A checkpoint may be in any store.
func TestWebOfStore(t *testing.T) {
	defer goleak.VerifyNone(t)
	demoCheckpoint(t, "mem://web/runs/a")
	for _, c := range []struct{ path, kind, id string }{{"mem://web/runs/a", "checkpoint", web.Self}, {"mem://web/runs", "run", "a"}} {
		s := serveWeb(t, c.path, "--no-cache")
		var place struct {
			Kind        string
			Checkpoints []web.Place
		}
		s.get(t, "/api/place", &place)
		if place.Kind != c.kind || len(place.Checkpoints) != 1 || place.Checkpoints[0].ID != c.id || place.Checkpoints[0].Label != "a" {
			t.Errorf("%s: the place is %+v; want a %s with the checkpoint %q", c.path, place, c.kind, c.id)
		}
		var names struct{ Form []int }
		if s.get(t, "/api/names?c="+c.id, &names); len(names.Form) == 0 {
			t.Errorf("%s: there are no names", c.path)
		}
		s.end(t)
	}
}

// A checkpoint of a run may have a name that looks like the id of another one of the command
// line. Each id stays as it was.
func TestWebIDsDiffer(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	for _, d := range []string{filepath.Join(dir, "step-1"), filepath.Join(dir, "@1"), other} {
		demoCheckpoint(t, d)
	}
	s := serveWeb(t, dir, other, "--no-cache")
	for range 2 { // the second list is a new one
		var place struct{ Checkpoints []web.Place }
		s.get(t, "/api/place", &place)
		seen := map[string]bool{}
		for _, c := range place.Checkpoints {
			var got struct{ Path string }
			s.get(t, "/api/checkpoint?c="+url.QueryEscape(c.ID), &got)
			want := filepath.Join(dir, c.Label)
			if c.Other {
				want = other
			}
			if seen[c.ID] || got.Path != want {
				t.Errorf("the id %s is that of %s; want %s, once", c.ID, got.Path, want)
			}
			seen[c.ID] = true
		}
		if len(seen) != 3 {
			t.Errorf("the checkpoints are %+v; want three", place.Checkpoints)
		}
		s.get(t, "/api/run", new(any))
	}
	s.end(t)
}

// Without --json, the address is the only line on stdout.
func TestWebPrintsItsAddress(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := filepath.Join(t.TempDir(), "a")
	demoCheckpoint(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, errOut := &canceller{at: "http://", cancel: cancel}, new(sharedBuffer)
	if code := Main(ctx, []string{"web", dir}, out, errOut); code != 0 {
		t.Fatalf("exit code %d: %s", code, errOut)
	}
	u, err := url.Parse(strings.TrimSpace(out.String()))
	if err != nil || u.Hostname() != "127.0.0.1" || len(u.Query().Get("token")) < 26 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("printed %q; want one address with a token", out.String())
	}
}

// A recipe shows the first checkpoint in the form of the second.
func TestWebThroughRecipe(t *testing.T) {
	defer goleak.VerifyNone(t)
	model := filepath.Join(must.Get(filepath.Abs("../../../../storage/view/testdata"))(t), "qwen3")
	titan := filepath.Join(t.TempDir(), "titan")
	var out bytes.Buffer
	if code := Main(t.Context(), []string{"convert", model, titan, "--recipe", "hf-to-titan", "--quiet"}, &out, &out); code != 0 {
		t.Fatalf("cairn convert: exit code %d: %s", code, &out)
	}
	s := serveWeb(t, titan, model, "--recipe", "titan-to-hf", "--no-cache")
	var plain, through struct {
		Equal   bool
		Missing int
		Error   *web.Error
	}
	s.get(t, "/api/compare?a=.&b=@1", &plain)
	s.get(t, "/api/compare?a=.&b=@1&recipe=1", &through)
	if plain.Equal || plain.Missing == 0 || !through.Equal || through.Error != nil {
		t.Errorf("without the recipe: %+v, with it: %+v; want equality with it alone", plain, through)
	}
	var wrong struct{ Error *web.Error }
	if s.get(t, "/api/compare?a=@1&b=.&recipe=1", &wrong); wrong.Error == nil || wrong.Error.Kind != web.KindRecipe || wrong.Error.Hint == "" {
		t.Errorf("a recipe that does not fit: %+v; want an error of the kind %q with a hint", wrong.Error, web.KindRecipe)
	}
	s.end(t)
}

func TestTokenFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files have no modes")
	}
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	must.Do(t, os.WriteFile(good, []byte(" 0123456789abcdef\n"), 0o600))
	cmd := newWebCmd()
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string // "" if it is fine
	}{
		{"0123456789abcdef", 0o400, ""},
		{"0123456789abcdef", 0o640, "others may read the token: its mode is 0640"},
		{"0123456789abcdef", 0o604, "others may read the token"},
		{"0123456789abcde", 0o600, "at least 16 characters"},
		{"0123456789 abcdef", 0o600, "without spaces"},
		{"0123456789abcdef\n0123456789abcdef", 0o600, "one line"},
		{"0123456789abcdéf", 0o600, "ASCII"},
		{strings.Repeat("x", 5000), 0o600, "at most 4096"},
		{"", 0o600, "at least 16 characters"},
	} {
		file := filepath.Join(t.TempDir(), "token")
		must.Do(t, os.WriteFile(file, []byte(c.text), c.mode))
		must.Do(t, os.Chmod(file, c.mode)) // whatever the umask is
		token, err := (&webFlags{tokenFile: file}).token(cmd, "0.0.0.0")
		if c.want == "" && (err != nil || token != c.text) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("a file of mode %o with %.40q: %q, %v; want %q", c.mode, c.text, token, err, c.want)
		}
	}
	if token, err := (&webFlags{tokenFile: good}).token(cmd, "127.0.0.1"); err != nil || token != "0123456789abcdef" {
		t.Errorf("the token is %q, %v", token, err)
	}
	for host, want := range map[string]bool{"127.0.0.1": true, "localhost": true, "::1": true, "127.9.9.9": true, "": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "localhost.example": false} {
		if _, err := new(webFlags).token(cmd, host); (err == nil) != want {
			t.Errorf("--listen on %q without a token: %v", host, err)
		}
	}
}

func TestHostsOf(t *testing.T) {
	if got := strings.Join(hostsOf("127.0.0.1", 8080), " "); got != "127.0.0.1:8080 localhost:8080 [::1]:8080" {
		t.Errorf("on loopback, the names are %s", got)
	}
	// Browsers do not send the port of HTTP.
	if got := strings.Join(hostsOf("127.0.0.1", 80), " "); got != "127.0.0.1:80 127.0.0.1 localhost:80 localhost [::1]:80 [::1]" {
		t.Errorf("on the port of HTTP, the names are %s", got)
	}
	if got := strings.Join(hostsOf("Node7.example", 8080), " "); !strings.HasSuffix(got, " node7.example:8080") || !strings.Contains(got, strings.ToLower(hostName())+":8080") {
		t.Errorf("elsewhere, the names are %s", got)
	}
}

// The address of the page, which has the token, is not an argument of a program.
func TestOpenBrowser(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("other systems have other programs")
	}
	dir := t.TempDir()
	note := filepath.Join(dir, "args")
	must.Do(t, os.WriteFile(filepath.Join(dir, "xdg-open"), []byte("#!/bin/sh\necho \"$@\" > "+note+".new\nmv "+note+".new "+note+"\n"), 0o755))
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	remove, err := openBrowser("http://127.0.0.1:80/?token=a&b=<")
	must.Do(t, err)
	var args []byte
	for end := time.Now().Add(2 * time.Minute); len(args) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		args, _ = os.ReadFile(note) // it is written soon
	}
	page := strings.TrimSpace(string(args))
	if strings.Contains(page, "token") {
		t.Errorf("the arguments are %s; want no token", page)
	}
	text := string(must.Get(os.ReadFile(page))(t))
	mode := must.Get(os.Stat(page))(t).Mode().Perm()
	if !strings.Contains(text, `url=http://127.0.0.1:80/?token=a&amp;b=&lt;"`) || mode != 0o600 {
		t.Errorf("the file of mode %o is %s", mode, text)
	}
	remove()
	if _, err := os.Stat(page); err == nil {
		t.Error("the file is still there")
	}
}

// The version of a checkpoint changes with its files, and does not contain the address.
func TestVersionOf(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	demoCheckpoint(t, dir)
	version := func() (string, error) {
		_, at, c, err := openLocated(t.Context(), dir)
		if err != nil {
			return "", err
		}
		defer c.Close()
		return versionOf(t.Context(), dir, at, c)(t.Context())
	}
	a := must.Get(version())(t)
	if b := must.Get(version())(t); a != b || strings.Contains(a, dir) {
		t.Errorf("the versions are %q and %q; want the same, without the address", a, b)
	}
	record := filepath.Join(dir, recordName)
	must.Do(t, os.Chtimes(record, time.Time{}, time.Now().Add(-time.Hour)))
	if b := must.Get(version())(t); a == b {
		t.Error("a record of another time has the same version")
	}
	_, at, c, err := openLocated(t.Context(), dir)
	must.Do(t, err)
	defer c.Close()
	now := versionOf(t.Context(), dir, at, c)
	must.Do(t, os.Remove(record))
	if _, err := now(t.Context()); err == nil {
		t.Error("without the record, there is a version")
	}
}

// The checkpoints have short names if those differ.
func TestSiteLabels(t *testing.T) {
	for _, c := range []struct {
		addresses []string
		isRun     bool
		want      string
	}{
		{[]string{"runs/a/step-1"}, false, "step-1"},
		{[]string{"runs/a/step-1", "s3://user:pass@bucket/step-2?key=secret"}, false, "step-1 step-2"},
		{[]string{"a/ckpt", "s3://user:pass@bucket/b/ckpt"}, false, "a/ckpt s3://bucket/b/ckpt"},
		{[]string{"runs/a", "other/step-1"}, true, "runs/a other/step-1"},
	} {
		if got := strings.Join(labelsOf(c.addresses, c.isRun), " "); got != c.want {
			t.Errorf("%q, a run: %v: %s; want %s", c.addresses, c.isRun, got, c.want)
		}
	}
}

func TestSiteSecrets(t *testing.T) {
	r := secretsOf([]string{"web", "s3://user:pass@bucket/a?key=secret", "plain"})
	if got := r.Replace("open s3://user:pass@bucket/a?key=secret: key=secret"); strings.Contains(got, "secret") || strings.Contains(got, "pass") {
		t.Errorf("replaced: %s", got)
	}
	if blob.Redact("s3://user:pass@bucket/a?key=secret") != "s3://bucket/a" || labelOf("s3://user:pass@bucket/a?key=secret") != "a" {
		t.Error("a label has a secret")
	}
}
