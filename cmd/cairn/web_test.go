package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/cli"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// serveWeb runs 'cairn web' until the test ends. It returns a function that decodes the answer
// to a request, or the result of a stream.
func serveWeb(t *testing.T, args ...string) func(t *testing.T, request string, params url.Values, v any) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	code, stderr := make(chan int, 1), new(bytes.Buffer)
	go func() {
		code <- cli.Main(ctx, append([]string{"web", "--json", "--no-open", "--no-cache"}, args...), in, stderr)
		_ = in.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if n := <-code; n != 0 {
			t.Errorf("cairn web %q: exit code %d: %s", args, n, stderr)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	var started struct{ URL string }
	if err := json.NewDecoder(out).Decode(&started); err != nil {
		t.Fatalf("cairn web %q prints no address: %v", args, err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	u := must.Get(url.Parse(started.URL))(t)
	return func(t *testing.T, request string, params url.Values, v any) {
		t.Helper()
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+u.Host+"/api/"+request+"?"+params.Encode(), nil))(t)
		r.Header.Set("Authorization", "Bearer "+u.Query().Get("token"))
		answer := must.Get(http.DefaultClient.Do(r))(t)
		defer answer.Body.Close()
		body := must.Get(io.ReadAll(answer.Body))(t)
		if answer.Header.Get("Content-Type") == "application/x-ndjson" {
			lines := bytes.Split(bytes.TrimSpace(body), []byte("\n"))
			var last struct{ Result, Error json.RawMessage }
			must.Do(t, json.Unmarshal(lines[len(lines)-1], &last))
			if body = last.Result; last.Error != nil {
				t.Fatalf("%s %v: %s", request, params, last.Error)
			}
		}
		if err := json.Unmarshal(body, v); err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s %v: %d, %v: %.500s", request, params, answer.StatusCode, err, body)
		}
	}
}

// The explorer shows checkpoints of every format: all names, their values and statistics, and
// that a checkpoint is equal to itself.
func TestWebOnEveryFixture(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "*/*") {
		t.Run(c.Name, func(t *testing.T) {
			dir := c.Dir
			if fi := must.Get(os.Stat(c.Dir))(t); fi.IsDir() {
				at, _, err := formats.Locate(t.Context(), must.Get(file.Open(c.Dir, nil))(t)) // the folder of a run is shown as a run
				must.Do(t, err)
				dir = at.String()
			}
			ask := serveWeb(t, dir, c.Dir)
			self := url.Values{"c": {"."}}
			var sum struct {
				Format string
				Totals struct{ Tensors, Objects int }
			}
			ask(t, "checkpoint", self, &sum)
			var all inspect.Names
			ask(t, "names", url.Values{"c": {"."}, "of": {"all"}}, &all)
			names := namesOf(&all)
			if len(names) != len(c.Items) || sum.Totals.Tensors+sum.Totals.Objects != len(c.Items) || sum.Format == "" {
				t.Errorf("%d names, %+v; want %d", len(names), sum, len(c.Items))
			}
			for i, name := range names {
				form := all.Forms[all.Form[i]]
				of := url.Values{"c": {"."}, "name": {name}}
				var it struct {
					Item struct {
						FQN, Kind, DType, Problem string
						Shape                     []int64
					}
					Value  string
					Chunks []struct{ Sizes []int64 }
				}
				ask(t, "item", of, &it)
				want := c.Items[name]
				if it.Item.FQN != name || it.Item.Kind != want.Kind || it.Item.DType != want.DType || it.Item.Problem != "" || it.Item.Kind == "object" && it.Value == "" || len(it.Chunks) == 0 && form.Bytes > 0 {
					t.Errorf("%s is %+v; want %+v", name, it, want)
				}
				if form.DType == "" {
					continue
				}
				elements := int64(1)
				for _, n := range it.Item.Shape {
					elements *= n
				}
				var stats struct{ Elements int64 }
				ask(t, "stats", of, &stats)
				var heat struct{ Height, Width, Elements, Read int64 }
				ask(t, "heat", of, &heat)
				if stats.Elements != elements || heat.Read > heat.Elements || elements > 0 && heat.Height*heat.Width == 0 {
					t.Errorf("%s of %d elements: %+v, %+v", name, elements, stats, heat)
				}
			}
			var same struct {
				Equal     *bool
				Identical int
				Items     struct{ Names []string }
			}
			ask(t, "compare", url.Values{"a": {"."}, "b": {"@1"}, "of": {"all"}}, &same)
			if same.Equal == nil || !*same.Equal || same.Identical != len(c.Items) || len(same.Items.Names) != len(c.Items) {
				t.Errorf("the checkpoint is not equal to itself: %+v", same)
			}
			var drawn struct{ SVG string }
			ask(t, "plot", url.Values{"what": {"sizes"}, "c": {"."}}, &drawn)
			if !strings.HasPrefix(drawn.SVG, "<svg ") {
				t.Errorf("the picture is %.100s", drawn.SVG)
			}
		})
	}
}

// The checkpoints of a run may be of all programs.
func TestWebOnRunOfEveryFixture(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	n := 0
	for _, c := range storagetest.Fixtures(t, "*/*") {
		if fi := must.Get(os.Stat(c.Dir))(t); !fi.IsDir() {
			continue
		}
		at, _, err := formats.Locate(t.Context(), must.Get(file.Open(c.Dir, nil))(t))
		must.Do(t, err)
		storagetest.CopyFolder(t, at.String(), filepath.Join(run, strings.ReplaceAll(c.Name, "/", "+")))
		n++
	}
	ask := serveWeb(t, run)
	var place struct {
		Kind        string
		Checkpoints []struct{ ID string }
	}
	ask(t, "place", nil, &place)
	if place.Kind != "run" || len(place.Checkpoints) != n {
		t.Fatalf("the place is %+v; want a run of %d checkpoints", place, n)
	}
	var log struct{ Checkpoints []struct{ Name string } }
	ask(t, "run", nil, &log)
	var steps struct {
		Steps []struct{ ID, Error string }
		L2    [][]any
	}
	ask(t, "steps", nil, &steps)
	if len(log.Checkpoints) != n || len(steps.Steps) != n || len(steps.L2) != n {
		t.Errorf("%d checkpoints and %d steps; want %d", len(log.Checkpoints), len(steps.Steps), n)
	}
	for _, s := range steps.Steps {
		if s.Error != "" {
			t.Errorf("%s: %s", s.ID, s.Error)
		}
	}
	for _, c := range place.Checkpoints {
		var sum struct{ Format string }
		if ask(t, "checkpoint", url.Values{"c": {c.ID}}, &sum); sum.Format == "" {
			t.Errorf("%s has no format", c.ID)
		}
	}
}

// A training program's pointer to its newest checkpoint does not make the folder a
// checkpoint: the explorer shows the run.
func TestWebOnPointer(t *testing.T) {
	n := 0
	for _, c := range storagetest.Fixtures(t, "*/*") {
		fi := must.Get(os.Stat(c.Dir))(t)
		if !fi.IsDir() {
			continue
		}
		at, _, err := formats.Locate(t.Context(), must.Get(file.Open(c.Dir, nil))(t))
		must.Do(t, err)
		if at.String() == c.Dir {
			continue
		}
		n++
		t.Run(c.Name, func(t *testing.T) {
			var place struct {
				Kind        string
				Checkpoints []struct{ ID string }
			}
			serveWeb(t, c.Dir)(t, "place", nil, &place)
			want := "run"
			if strings.HasPrefix(c.Name, "fsdp/") {
				want = "checkpoint" // of the step that the run names
			}
			if place.Kind != want || len(place.Checkpoints) == 0 {
				t.Errorf("the place is %+v; want a %s", place, want)
			}
		})
	}
	if n == 0 {
		t.Error("no fixture is the folder of a run")
	}
}

// namesOf returns the names of a tree, by row.
func namesOf(n *inspect.Names) []string {
	var out []string
	var walk func(from, to int, above string)
	walk = func(from, to int, above string) {
		for i := from; i < to; i += 1 + int(n.Below[i]) {
			name := above + n.Labels[n.Label[i]]
			if n.Below[i] == 0 {
				out = append(out, name)
				continue
			}
			walk(i+1, i+1+int(n.Below[i]), name+".")
		}
	}
	walk(0, len(n.Label), "")
	return out
}

// With a base, the explorer shows an adapter as the merged model.
func TestWebOfAdapter(t *testing.T) {
	const dir = "../../storage/adapter/testdata/plain_bf16/"
	ask := serveWeb(t, dir+"input/adapter", dir+"expected", "--base", dir+"input/base")
	var all inspect.Names
	ask(t, "names", url.Values{"c": {"."}, "of": {"all"}}, &all)
	const name = "model.layers.0.self_attn.q_proj.weight"
	if names := namesOf(&all); !slices.Contains(names, name) || len(names) != 21 {
		t.Errorf("the names are %q; want those of the base", names)
	}
	var stats struct{ Elements int64 }
	ask(t, "stats", url.Values{"c": {"."}, "name": {name}}, &stats)
	if stats.Elements == 0 {
		t.Errorf("%s has no elements", name)
	}
}
