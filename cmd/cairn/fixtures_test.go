package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/cli"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// cairnJSON runs a command with --json and decodes what it prints.
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
			var got struct {
				Items map[string]storagetest.Item `json:"items"`
			}
			cairnJSON(t, &got, "digest", c.Dir)
			for name, it := range got.Items {
				if it.Kind == "object" { // how an object is encoded is the format's own
					it.NumBytes, it.SHA256 = 0, ""
					got.Items[name] = it
				}
			}
			if d := cmp.Diff(c.Items, got.Items); d != "" {
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
