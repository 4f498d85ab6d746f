package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

const testToken = "0123456789abcdefXYZ"

// newServer returns a server with that name.
func (w *world) server(t testing.TB) *Server {
	t.Helper()
	return must.Get(NewServer(w.site, ServerOptions{Token: testToken, Hosts: []string{"127.0.0.1:80", "localhost:80"}}))(t)
}

// request sends a request, which change may change, to a server.
func request(v *Server, target string, change func(r *http.Request)) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:80"+target, nil)
	r.Header.Set("Authorization", "Bearer "+testToken)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	v.ServeHTTP(w, r)
	return w.Result()
}

// lastLine reads an answer and returns its last line. An answer that takes long begins with lines of progress.
func lastLine(t testing.TB, r *http.Response) []byte {
	t.Helper()
	b := bytes.TrimSpace(must.Get(io.ReadAll(r.Body))(t))
	return b[bytes.LastIndexByte(b, '\n')+1:]
}

func kindIn(t testing.TB, r *http.Response) string {
	t.Helper()
	var e struct {
		Error *Error `json:"error"`
	}
	if json.Unmarshal(lastLine(t, r), &e) != nil || e.Error == nil {
		return ""
	}
	if e.Error.Message == "" {
		t.Errorf("the error has no message: %+v", e.Error)
	}
	return e.Error.Kind
}

// Only requests of the page itself are answered.
func TestHostileRequests(t *testing.T) {
	w := newWorld(t, 1, nil)
	v := w.server(t)
	header := func(name string, values ...string) func(r *http.Request) {
		return func(r *http.Request) { r.Header[name] = values }
	}
	host := func(name string) func(r *http.Request) { return func(r *http.Request) { r.Host = name } }
	method := func(name string) func(r *http.Request) { return func(r *http.Request) { r.Method = name } }
	for _, c := range []struct {
		what   string
		target string
		change func(r *http.Request)
		want   string // "" if it is allowed
	}{
		{"a good request", "/api/place", nil, ""},
		{"localhost", "/api/place", host("localhost:80"), ""},
		{"LOCALHOST", "/api/place", host("LOCALHOST:80"), ""},
		{"another name", "/api/place", host("evil.example:80"), KindForbidden},
		{"another name for the page", "/", host("evil.example:80"), KindForbidden},
		{"a name that begins like ours", "/", host("127.0.0.1.evil.example:80"), KindForbidden},
		{"another port", "/api/place", host("127.0.0.1:81"), KindForbidden},
		{"no port", "/api/place", host("127.0.0.1"), KindForbidden},
		{"another loopback address", "/api/place", host("127.0.0.2:80"), KindForbidden},
		{"no host", "/api/place", host(""), KindForbidden},
		{"our origin", "/api/place", header("Origin", "http://127.0.0.1:80"), ""},
		{"another origin", "/api/place", header("Origin", "http://evil.example"), KindForbidden},
		{"another name of ours as the origin", "/api/place", header("Origin", "http://localhost:80"), KindForbidden},
		{"https", "/api/place", header("Origin", "https://127.0.0.1:80"), KindForbidden},
		{"origin null", "/api/place", header("Origin", "null"), KindForbidden},
		{"two origins", "/api/place", header("Origin", "http://127.0.0.1:80", "http://evil.example"), KindForbidden},
		{"an empty origin", "/api/place", header("Origin", ""), KindForbidden},
		{"another origin for the page", "/", header("Origin", "http://evil.example"), KindForbidden},
		{"same origin", "/api/place", header("Sec-Fetch-Site", "same-origin"), ""},
		{"typed", "/api/place", header("Sec-Fetch-Site", "none"), ""},
		{"cross-site", "/api/place", header("Sec-Fetch-Site", "cross-site"), KindForbidden},
		{"same site", "/api/place", header("Sec-Fetch-Site", "same-site"), KindForbidden},
		{"a script of another site", "/", header("Sec-Fetch-Site", "cross-site"), KindForbidden},
		{"a link to the page", "/", func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "navigate")
			r.Header.Set("Sec-Fetch-Dest", "document")
		}, ""},
		{"a frame", "/", func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "navigate")
			r.Header.Set("Sec-Fetch-Dest", "iframe")
		}, KindForbidden},
		{"a link to data", "/api/place", func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "navigate")
			r.Header.Set("Sec-Fetch-Dest", "document")
		}, KindForbidden},
		{"no token", "/api/place", header("Authorization"), KindUnauthorized},
		{"an empty token", "/api/place", header("Authorization", "Bearer "), KindUnauthorized},
		{"a wrong token", "/api/place", header("Authorization", "Bearer "+testToken+"x"), KindUnauthorized},
		{"the beginning of the token", "/api/place", header("Authorization", "Bearer "+testToken[:18]), KindUnauthorized},
		{"another scheme", "/api/place", header("Authorization", "Basic "+testToken), KindUnauthorized},
		{"a token without a scheme", "/api/place", header("Authorization", testToken), KindUnauthorized},
		{"a token in the address", "/api/place?token=" + testToken, header("Authorization"), KindUnauthorized},
		{"a token in a cookie", "/api/place", func(r *http.Request) {
			r.Header.Del("Authorization")
			r.Header.Set("Cookie", "token="+testToken)
		}, KindUnauthorized},
		{"no token and no such request", "/api/nothing", header("Authorization"), KindUnauthorized},
		{"the page without a token", "/", header("Authorization"), ""},
		{"POST", "/api/place", method("POST"), KindMethod},
		{"PUT", "/", method("PUT"), KindMethod},
		{"DELETE", "/api/checkpoint?c=step-1", method("DELETE"), KindMethod},
		{"OPTIONS", "/api/place", method("OPTIONS"), KindMethod},
		{"TRACE", "/", method("TRACE"), KindMethod},
		{"a body", "/api/place", func(r *http.Request) { r.ContentLength = 5 }, KindBadRequest},
		{"an unknown request", "/api/nothing", nil, KindNotFound},
		{"no request", "/api/", nil, KindNotFound},
		{"/api", "/api", nil, KindNotFound},
		{"a request with a slash", "/api/place/", nil, KindNotFound},
		{"a path above", "/api/../api/place", nil, KindNotFound},
		{"an unknown page", "/run", nil, KindNotFound},
		{"a folder", "/assets/", nil, KindNotFound},
		{"a file above", "/../site.go", nil, KindNotFound},
		{"an escaped file above", "/%2e%2e/site.go", nil, KindNotFound},
		{"a file with a zero", "/index.html%00.js", nil, KindNotFound},
		{"a backslash", "/..%5csite.go", nil, KindNotFound},
		{"two slashes", "//index.html", nil, KindNotFound},
		{"a semicolon", "/api/checkpoint?c=step-1;x", nil, KindBadRequest},
		{"a broken escape", "/api/checkpoint?c=%zz", func(r *http.Request) { r.URL.RawQuery = "c=%zz" }, KindBadRequest},
		{"a path as an id", "/api/checkpoint?c=..%2f..%2fetc", nil, KindNotFound},
	} {
		r := request(v, c.target, c.change)
		if got := kindIn(t, r); got != c.want || r.StatusCode != statusOf(c.want) {
			t.Errorf("%s: the status %d, and an error of the kind %q; want %q", c.what, r.StatusCode, got, c.want)
		}
		for name, want := range headers {
			if got := r.Header.Get(name); got != want && name != "Cache-Control" {
				t.Errorf("%s: the header %s is %q; want %q", c.what, name, got, want)
			}
		}
		if got := r.Header.Get("Cache-Control"); strings.HasPrefix(c.target, "/api/") && got != "no-store" {
			t.Errorf("%s: Cache-Control is %q", c.what, got)
		}
	}
}

// statusOf returns the status of an answer with an error of that kind, or without one.
func statusOf(kind string) int {
	if kind == "" {
		return http.StatusOK
	}
	return statuses[kind]
}

func TestNoTokenIsNoToken(t *testing.T) {
	w := newWorld(t, 1, nil)
	v := must.Get(NewServer(w.site, ServerOptions{Hosts: []string{"127.0.0.1:80"}}))(t)
	for _, token := range []string{"Bearer ", "", "Bearer x"} {
		r := request(v, "/api/place", func(r *http.Request) { r.Header.Set("Authorization", token) })
		if r.StatusCode != http.StatusUnauthorized {
			t.Errorf("a server without a token answers %q with the status %d", token, r.StatusCode)
		}
	}
}

func TestAnyIP(t *testing.T) {
	w := newWorld(t, 1, nil)
	v := must.Get(NewServer(w.site, ServerOptions{Token: testToken, Hosts: []string{"node7:8080"}, AnyIP: true, Port: 8080}))(t)
	for host, want := range map[string]int{
		"node7:8080": 200, "10.1.2.3:8080": 200, "[fe80::1]:8080": 200, "10.1.2.3:80": 403, "10.1.2.3": 403,
		"10.1.2.3.evil.example:8080": 403, "evil.example:8080": 403, "0x7f000001:8080": 403, "2130706433:8080": 403,
	} {
		if r := request(v, "/", func(r *http.Request) { r.Host = host }); r.StatusCode != want {
			t.Errorf("the host %s: the status %d; want %d", host, r.StatusCode, want)
		}
	}
}

func TestNewToken(t *testing.T) {
	a, b := NewToken(), NewToken()
	if a == b || len(a) < 26 { // of 5 bits each
		t.Errorf("the tokens are %q and %q; want different ones of 128 bits", a, b)
	}
}

func TestAssets(t *testing.T) {
	w := newWorld(t, 1, nil)
	v := w.server(t)
	r := request(v, "/", nil)
	body := must.Get(io.ReadAll(r.Body))(t)
	if r.StatusCode != 200 || r.Header.Get("Content-Type") != "text/html; charset=utf-8" || !bytes.Contains(body, []byte("<title>")) {
		t.Errorf("the page: %d %v %s", r.StatusCode, r.Header, body)
	}
	v.assets = must.Get(loadAssets(fstest.MapFS{
		"index.html": {Data: []byte("page")}, "assets/index-1a2b.js": {Data: []byte("code")}, "assets/x.map": {Data: []byte("no")}, ".hidden": {Data: []byte("no")},
	}))(t)
	for path, want := range map[string]string{
		"/": "page", "/index.html": "page", "/assets/index-1a2b.js": "code", "/assets/x.map": "", "/.hidden": "", "/assets": "",
	} {
		r := request(v, path, nil)
		body := string(must.Get(io.ReadAll(r.Body))(t))
		if want == "" && r.StatusCode != 404 || want != "" && (r.StatusCode != 200 || body != want) {
			t.Errorf("%s: %d %s; want %q", path, r.StatusCode, body, want)
		}
		if got := r.Header.Get("Cache-Control"); strings.Contains(got, "immutable") != strings.HasSuffix(path, ".js") {
			t.Errorf("%s: Cache-Control is %q", path, got)
		}
	}
	r = request(v, "/assets/index-1a2b.js", func(r *http.Request) { r.Method = http.MethodHead })
	if body := must.Get(io.ReadAll(r.Body))(t); r.StatusCode != 200 || len(body) > 0 || r.ContentLength != 4 {
		t.Errorf("HEAD: %d, %d bytes of %d", r.StatusCode, len(body), r.ContentLength)
	}
	empty := must.Get(loadAssets(fstest.MapFS{}))(t)
	v.assets = empty
	if r := request(v, "/", nil); r.StatusCode != 404 {
		t.Errorf("without a page: the status %d", r.StatusCode)
	}
}

// HEAD does not compute an answer.
func TestHead(t *testing.T) {
	w := newWorld(t, 1, nil)
	v := w.server(t)
	for target, kind := range map[string]string{"/api/stats?c=step-1&name=x": "application/x-ndjson", "/api/names?c=step-1": "application/json"} {
		r := request(v, target, func(r *http.Request) { r.Method = http.MethodHead })
		if b := must.Get(io.ReadAll(r.Body))(t); r.StatusCode != 200 || r.Header.Get("Content-Type") != kind || len(b) > 0 || len(w.opened) > 0 {
			t.Errorf("HEAD of %s: %d %v %q, and %q were opened", target, r.StatusCode, r.Header, b, w.opened)
		}
	}
}

// apiRequests are requests with all kinds of answers.
var apiRequests = map[string]string{
	"place":        "/api/place",
	"run":          "/api/run",
	"steps":        "/api/steps?select=model.layers.*",
	"checkpoint":   "/api/checkpoint?c=step-1",
	"names":        "/api/names?c=step-1",
	"item":         "/api/item?c=step-1&name=model.layers.0.w",
	"value":        "/api/item?c=step-1&name=%3Cb%3Eodd%3C/b%3E",
	"stats":        "/api/stats?c=step-1&name=model.layers.0.b&buckets=4",
	"stats-log2":   "/api/stats?c=step-1&name=model.layers.0.b&buckets=4&scale=log2",
	"heat":         "/api/heat?c=step-1&name=model.layers.1.w&rows=1:3",
	"heat-small":   "/api/heat?c=step-1&name=model.layers.1.w&height=2&width=2&index=:,:",
	"compare":      "/api/compare?a=step-1&b=step-2&select=model.layers.*",
	"overlay":      "/api/overlay?a=step-1&b=step-2&name=model.layers.1.w&buckets=3",
	"tensors":      "/api/tensors?c=step-1&of=all",
	"error":        "/api/item?c=step-1&name=nothing",
	"history":      "/api/history?name=model.layers.1.w&in=step-2&scale=log2",
	"stream-error": "/api/stats?c=step-1&name=nothing",
}

// The answers equal the files in testdata.
func TestAPI(t *testing.T) {
	w := newWorld(t, 2, nil)
	v := w.server(t)
	for name, target := range apiRequests {
		t.Run(name, func(t *testing.T) {
			r := request(v, target, nil)
			body := must.Get(io.ReadAll(r.Body))(t)
			body = bytes.ReplaceAll(body, must.Get(json.Marshal(w.dir))(t)[1:], []byte("DIR\"")) // at the end of a string
			body = bytes.ReplaceAll(body, []byte(w.dir), []byte("DIR"))
			body = regexp.MustCompile(`"state":"[0-9a-f]{16}"`).ReplaceAll(body, []byte(`"state":"STATE"`)) // of paths, too
			var got bytes.Buffer
			fmt.Fprintf(&got, "GET %s\n%d %s\n", target, r.StatusCode, r.Header.Get("Content-Type"))
			for line := range bytes.Lines(body) {
				if !json.Valid(line) {
					t.Errorf("a line is not JSON: %s", line)
				}
				must.Do(t, json.Indent(&got, line, "", "  "))
			}
			file := filepath.Join("testdata", name+".txt")
			if *update {
				must.Do(t, os.WriteFile(file, got.Bytes(), 0o644))
			}
			if d := cmp.Diff(string(must.Get(os.ReadFile(file))(t)), got.String()); d != "" {
				t.Errorf("the answer differs (-testdata +got); -update rewrites it:\n%s", d)
			}
		})
	}
}

// docs/web.md names every request, every parameter, every kind of error and every field.
func TestAPIIsExplained(t *testing.T) {
	page := string(must.Get(os.ReadFile("../docs/web.md"))(t))
	_, page, _ = strings.Cut(page, "\n## API\n")
	words := strings.FieldsFunc(page, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	has := func(what, word string) {
		if !slices.Contains(words, word) {
			t.Errorf("docs/web.md does not name the %s %s", what, word)
		}
	}
	for name, q := range questions {
		if !strings.Contains(page, "`/api/"+name) {
			t.Errorf("docs/web.md does not have /api/%s", name)
		}
		for _, p := range strings.Fields(q.params) {
			has("parameter", p)
		}
	}
	for name, p := range pictures {
		if !strings.Contains(page, "\n| `"+name+"` |") {
			t.Errorf("docs/web.md does not have the picture %s", name)
		}
		for _, param := range strings.Fields(p.params) {
			has("parameter", param)
		}
	}
	for kind, status := range statuses {
		if !strings.Contains(page, "`"+kind+"`") || !strings.Contains(page, fmt.Sprintf("| %d |", status)) {
			t.Errorf("docs/web.md does not have errors of the kind %s, with the status %d", kind, status)
		}
	}
	for _, v := range []any{
		place{}, run.Log{}, steps{}, tensors{}, history{}, summary{}, inspect.Names{}, item{}, inspect.TensorStats{}, inspect.Heat{}, comparison{},
		inspect.Overlaid{}, inspect.Timeline{}, drawn{}, state{}, Error{},
	} {
		for _, f := range jsonFields(reflect.TypeOf(v), nil) {
			has("field", f)
		}
	}
}

// jsonFields returns the JSON names of the fields of a type, and of their fields.
func jsonFields(t reflect.Type, seen []reflect.Type) []string {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || slices.Contains(seen, t) || t.PkgPath() == "time" {
		return nil
	}
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() && !f.Anonymous {
			continue
		}
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			out = append(out, name)
		}
		out = append(out, jsonFields(f.Type, append(seen, t))...)
	}
	return out
}

// Every picture is drawn, and is an SVG.
func TestPictures(t *testing.T) {
	w := newWorld(t, 2, nil)
	v := w.server(t)
	params := map[string]string{
		"sizes": "c=step-1&of=all", "shards": "c=step-1&name=model.layers.0.w", "histogram": "c=step-1&name=model.layers.0.w&counts=log",
		"heatmap": "c=step-1&name=model.layers.0.w", "changes": "a=step-1&b=step-2", "overlay": "a=step-1&b=step-2&name=model.layers.0.w",
		"steps": "measure=abs_max", "run": "", "metrics": "names=loss", "history": "name=model.layers.0.w&scale=log2&counts=log",
	}
	for _, what := range Pictures() {
		text, ok := params[what]
		if !ok && what != "timeline" { // these checkpoints have none
			t.Errorf("the picture %s has no test", what)
		}
		r := request(v, "/api/plot?what="+what+"&"+text, nil)
		var got struct {
			Result struct{ SVG string }
			Error  *Error
		}
		must.Do(t, json.Unmarshal(lastLine(t, r), &got))
		if ok && (!strings.HasPrefix(got.Result.SVG, "<svg ") || got.Error != nil) {
			t.Errorf("%s: %.200s, %v; want an SVG", what, got.Result.SVG, got.Error)
		}
		if len(PictureParams(what)) == 0 && what != "run" {
			t.Errorf("%s has no parameters", what)
		}
	}
}

// serve serves w on a real port until the test ends, and returns the address.
func (w *world) serve(t *testing.T) (address string, stop func()) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	v := must.Get(NewServer(w.site, ServerOptions{Token: testToken, Hosts: []string{l.Addr().String()}}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Serve(ctx, l) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v; want nil when its context ends", err)
		}
		done <- nil
	}
	t.Cleanup(stop)
	return "http://" + l.Addr().String(), stop
}

func get(ctx context.Context, t *testing.T, address string) *http.Response {
	t.Helper()
	r := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, address, nil))(t)
	r.Header.Set("Authorization", "Bearer "+testToken)
	return must.Get(http.DefaultClient.Do(r))(t)
}

// blocking makes reads wait until their contexts end. It counts those that wait.
func (w *world) blocking() *atomic.Int64 {
	var n atomic.Int64
	w.onRead(func(ctx context.Context) error {
		n.Add(1)
		defer n.Add(-1)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	return &n
}

// When the page goes away, its work ends, and the progress was sent before.
func TestCancelledRequests(t *testing.T) {
	w := newWorld(t, 2, nil)
	address, _ := w.serve(t)
	defer http.DefaultClient.CloseIdleConnections()
	reading := w.blocking()
	for _, target := range []string{
		"/api/stats?c=step-1&name=model.layers.0.w", "/api/compare?a=step-1&b=step-2", "/api/steps", "/api/overlay?a=step-1&b=step-2&name=model.layers.0.w",
		"/api/plot?what=changes&a=step-1&b=step-2",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		r := get(ctx, t, address+target)
		line := must.Get(bufio.NewReader(r.Body).ReadString('\n'))(t)
		if !strings.HasPrefix(line, `{"progress":{"done":`) {
			t.Errorf("%s: the first line is %s; want progress", target, line)
		}
		soon(t, "a read", func() bool { return reading.Load() > 0 })
		cancel()
		_ = r.Body.Close()
		soon(t, "the end of the reads of "+target, func() bool { return reading.Load() == 0 && len(w.site.working) == 0 })
	}
	// A request that reads a little, without a stream.
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/api/heat?c=step-1&name=model.layers.0.w", nil)
		if err == nil {
			r.Header.Set("Authorization", "Bearer "+testToken)
			if answer, err := http.DefaultClient.Do(r); err == nil {
				_ = answer.Body.Close()
			}
		}
	}()
	soon(t, "a read", func() bool { return reading.Load() > 0 })
	cancel()
	<-ended
	soon(t, "the end of the reads of /api/heat", func() bool { return reading.Load() == 0 && len(w.site.reading) == 0 })
}

// When the server ends, its requests end with it.
func TestServeEnds(t *testing.T) {
	w := newWorld(t, 1, nil)
	address, stop := w.serve(t)
	defer http.DefaultClient.CloseIdleConnections()
	reading := w.blocking()
	r := get(t.Context(), t, address+"/api/stats?c=step-1&name=model.layers.0.w")
	soon(t, "a read", func() bool { return reading.Load() > 0 })
	stop()
	body := must.Get(io.ReadAll(r.Body))(t)
	_ = r.Body.Close()
	if !bytes.Contains(body, []byte(`{"error":{"kind":"`)) {
		t.Errorf("the answer ends with %s; want an error", body)
	}
	if _, err := http.Get(address); err == nil {
		t.Error("the server still answers")
	}
}

// The limits of real connections.
func TestLargeHeaders(t *testing.T) {
	w := newWorld(t, 1, nil)
	address, _ := w.serve(t)
	defer http.DefaultClient.CloseIdleConnections()
	r := get(t.Context(), t, address+"/api/item?c=step-1&name="+strings.Repeat("x", 2*maxHeader))
	defer r.Body.Close()
	if r.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("an address of %d bytes: the status %d", 2*maxHeader, r.StatusCode)
	}
	long := get(t.Context(), t, address+"/api/item?c=step-1&name="+strings.Repeat("x", maxHeader/2))
	defer long.Body.Close()
	if b := must.Get(io.ReadAll(long.Body))(t); long.StatusCode != http.StatusNotFound || len(b) > 1000 {
		t.Errorf("a long name: the status %d, and %d bytes; want a short error", long.StatusCode, len(b))
	}
}

// slow is a client that does not read.
type slow struct {
	http.ResponseWriter
	deadlines int
}

func (s *slow) SetWriteDeadline(time.Time) error { s.deadlines++; return nil }
func (s *slow) Write([]byte) (int, error)        { return 0, errors.New("timeout") }

// A client that does not take its stream ends the work.
func TestStreamOfDeadClient(t *testing.T) {
	w := newWorld(t, 1, nil)
	reading := w.blocking()
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:80/api/stats?c=step-1&name=model.layers.0.w", nil)
	r.Header.Set("Authorization", "Bearer "+testToken)
	client := &slow{ResponseWriter: httptest.NewRecorder()}
	w.server(t).ServeHTTP(client, r) // it ends, although the read waits
	if client.deadlines == 0 || reading.Load() != 0 {
		t.Errorf("%d deadlines were set, and %d reads wait", client.deadlines, reading.Load())
	}
}

// stuck is a client that does not take its answer until released is closed.
type stuck struct {
	http.ResponseWriter
	writing  chan struct{}
	released chan struct{}
}

func (s *stuck) Write(b []byte) (int, error) {
	s.writing <- struct{}{}
	<-s.released
	return len(b), nil
}

// Answers that may be large are in memory until the client takes them. There are not more
// than maxLarge, and other questions do not wait for them.
func TestLargeAnswersAreBounded(t *testing.T) {
	w := newWorld(t, 1, nil)
	v := w.server(t)
	released, writing := make(chan struct{}), make(chan struct{}, 100)
	var clients sync.WaitGroup
	for range 3 * maxLarge {
		clients.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:80/api/heat?c=step-1&name=model.layers.0.w", nil)
			r.Header.Set("Authorization", "Bearer "+testToken)
			v.ServeHTTP(&stuck{httptest.NewRecorder(), writing, released}, r)
		})
	}
	for range maxLarge {
		select {
		case <-writing:
		case <-time.After(2 * time.Minute):
			t.Fatal("there are fewer answers than allowed")
		}
	}
	if r := request(v, "/api/place", nil); r.StatusCode != http.StatusOK {
		t.Errorf("meanwhile, /api/place has the status %d", r.StatusCode)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := request(v, "/api/heat?c=step-1&name=model.layers.0.w", func(r *http.Request) { *r = *r.WithContext(ctx) })
	if r.StatusCode == http.StatusOK || len(writing) > 0 {
		t.Errorf("one more answer was made: the status %d, and %d others", r.StatusCode, len(writing))
	}
	close(released)
	clients.Wait()
	if len(v.large) > 0 {
		t.Errorf("%d turns are still taken", len(v.large))
	}
}

func TestSeveralTokens(t *testing.T) {
	v := newWorld(t, 1, nil).server(t)
	for _, tokens := range [][]string{{"Bearer " + testToken, "Bearer x"}, {"Bearer x", "Bearer " + testToken}, {"Bearer " + testToken, "Bearer " + testToken}} {
		if r := request(v, "/api/place", func(r *http.Request) { r.Header["Authorization"] = tokens }); r.StatusCode != http.StatusUnauthorized {
			t.Errorf("with %q, the status is %d; want %d", tokens, r.StatusCode, http.StatusUnauthorized)
		}
	}
}
