package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/cli"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// cairnJSON runs a command with --json and decodes its output.
func cairnJSON(t *testing.T, out any, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := cli.Main(t.Context(), append(args, "--json"), &stdout, &stderr); code != 0 {
		t.Fatalf("cairn %v: exit code %d: %s", args, code, &stderr)
	}
	if err := json.Unmarshal(stdout.Bytes(), out); err != nil {
		t.Fatalf("cairn %v: %v", args, err)
	}
}

// The digests of checkpoints that other programs wrote are as they expect.
func TestDigestOfEveryFixture(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "*/*") {
		t.Run(c.Name, func(t *testing.T) {
			var found struct {
				Items map[string]struct {
					storagetest.Item
					Bytes int64 `json:"bytes"`
				} `json:"items"`
			}
			cairnJSON(t, &found, "digest", c.Dir)
			got := map[string]storagetest.Item{}
			for name, it := range found.Items {
				it.NumBytes = it.Bytes
				if it.Kind == "object" { // how an object is encoded is the format's own
					it.NumBytes, it.SHA256 = 0, ""
				}
				got[name] = it.Item
			}
			if d := cmp.Diff(c.Items, got); d != "" {
				t.Errorf("expected.json and cairn digest differ (-want +got):\n%s", d)
			}
		})
	}
}

// The other commands read every format too.
func TestReadingCommandsOnEveryFixture(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "*/*") {
		t.Run(c.Name, func(t *testing.T) {
			var ls struct {
				Items []struct {
					FQN string `json:"fqn"`
				} `json:"items"`
			}
			cairnJSON(t, &ls, "ls", c.Dir)
			if len(ls.Items) != len(c.Items) {
				t.Errorf("cairn ls prints %d names; there are %d", len(ls.Items), len(c.Items))
			}
			var sum struct {
				Format string `json:"format"`
				Files  []struct {
					Name string `json:"name"`
				} `json:"files"`
				Totals struct {
					Tensors int `json:"tensors"`
					Objects int `json:"objects"`
				} `json:"totals"`
			}
			cairnJSON(t, &sum, "inspect", c.Dir)
			if sum.Totals.Tensors+sum.Totals.Objects != len(c.Items) || sum.Format == "" || len(sum.Files) == 0 {
				t.Errorf("cairn inspect: %+v; want %d items, a format and files", sum, len(c.Items))
			}
			var v struct {
				OK    bool  `json:"ok"`
				Bytes int64 `json:"bytes"`
			}
			cairnJSON(t, &v, "verify", c.Dir)
			if !v.OK || v.Bytes == 0 {
				t.Errorf("cairn verify: %+v", v)
			}
		})
	}
}

// A run may consist of checkpoints of all programs: they are listed, tagged and removed. The
// checkpoints read the same with tags and without.
func TestRunOfEveryFixture(t *testing.T) {
	run := filepath.Join(t.TempDir(), "run")
	var names []string
	for _, c := range storagetest.Fixtures(t, "*/*") {
		if fi := must.Get(os.Stat(c.Dir))(t); !fi.IsDir() {
			continue
		}
		store := must.Get(file.Open(c.Dir, nil))(t)
		at, _, err := formats.Locate(t.Context(), store) // some are runs, of which a file names the newest checkpoint
		must.Do(t, err)
		name := strings.ReplaceAll(c.Name, "/", "+")
		storagetest.CopyFolder(t, at.String(), filepath.Join(run, name))
		names = append(names, name)
	}
	if len(names) < 10 {
		t.Fatalf("there are %d fixtures; want more", len(names))
	}
	type listing struct {
		Checkpoints []struct {
			Name, Format, Copies string
			Bytes                int64
			Tags                 []string
			Metrics              map[string]float64
		}
	}
	var before, after, last listing
	cairnJSON(t, &before, "log", run)
	for _, c := range before.Checkpoints {
		if c.Copies != "local" || c.Format == "" || c.Bytes == 0 || len(c.Tags) > 0 {
			t.Errorf("cairn log: %+v; want a complete checkpoint without tags", c)
		}
	}
	var ignored any
	for _, name := range names {
		dir := filepath.Join(run, name)
		var plain, tagged map[string]any
		cairnJSON(t, &plain, "digest", dir)
		cairnJSON(t, &ignored, "tag", dir, "x", "--metric", "loss=1.5")
		cairnJSON(t, &tagged, "digest", dir)
		if d := cmp.Diff(plain, tagged); d != "" {
			t.Errorf("%s: a tag changes the digest (-without +with):\n%s", name, d)
		}
		cairnJSON(t, &ignored, "verify", dir)
	}
	cairnJSON(t, &after, "log", run)
	if len(after.Checkpoints) != len(names) {
		t.Errorf("cairn log lists %d checkpoints; there are %d", len(after.Checkpoints), len(names))
	}
	for _, c := range after.Checkpoints {
		if !slices.Equal(c.Tags, []string{"x"}) || c.Metrics["loss"] != 1.5 || c.Copies != "local" {
			t.Errorf("cairn log after cairn tag: %+v", c)
		}
	}
	var pruned struct{ Removed int }
	cairnJSON(t, &pruned, "prune", run, "--keep", "last 1", "--tagged-too")
	if pruned.Removed != len(names)-1 {
		t.Errorf("cairn prune removes %d; want all but one of %d", pruned.Removed, len(names))
	}
	cairnJSON(t, &last, "log", run)
	if len(last.Checkpoints) != 1 {
		t.Fatalf("after cairn prune there are %v", last.Checkpoints)
	}
	cairnJSON(t, &ignored, "verify", filepath.Join(run, last.Checkpoints[0].Name))
}

// The files of the ranks of FSDP become a model of transformers: the weights under their own
// names and dtypes, and the configuration that verl keeps beside them.
func TestConvertFSDPToModel(t *testing.T) {
	c := storagetest.Fixtures(t, "fsdp/fsdp2-bf16-3")[0]
	out := filepath.Join(t.TempDir(), "model")
	var ignored any
	cairnJSON(t, &ignored, "convert", c.Dir, out, "--to", "hf")
	var got struct {
		Items map[string]struct {
			SHA256 string `json:"sha256"`
			DType  string `json:"dtype"`
		} `json:"items"`
	}
	cairnJSON(t, &got, "digest", out)

	n := 0
	for name, it := range c.Items {
		name, ok := strings.CutPrefix(name, "model.")
		if !ok {
			continue
		}
		n++
		if g := got.Items[name]; g.SHA256 != it.SHA256 || g.DType != it.DType {
			t.Errorf("%q is %+v; want %s of %s", name, g, it.DType, it.SHA256)
		}
	}
	if n == 0 || len(got.Items) != n {
		t.Errorf("the model has %d tensors; want %d", len(got.Items), n)
	}
	want := must.Get(os.ReadFile(filepath.Join(c.Dir, "huggingface", "config.json")))(t)
	if config := must.Get(os.ReadFile(filepath.Join(out, "config.json")))(t); !bytes.Equal(config, want) {
		t.Errorf("config.json is %s; want %s", config, want)
	}
}
