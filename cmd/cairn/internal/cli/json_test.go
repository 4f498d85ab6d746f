package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/bench"
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// jsonLines are command lines of all commands that answer with JSON, in an order in which
// they succeed. CK is a checkpoint, RUN a run, and OUT a new path.
var jsonLines = []string{
	"demo --size 64KiB --ranks 2 --dir OUT", "inspect CK", "inspect CK model.norm.weight", "inspect CK model", "inspect CK --timeline",
	"ls CK", "digest CK step", "cat CK step", "cat CK model.norm.weight --npy OUT --dtype float32", "stats CK model.norm.weight", "diff CK CK",
	"convert CK OUT --to dcp", "convert CK OUT --to dcp --dry-run", "merge CK OUT.pt", "cp CK OUT", "sync RUN OUT", "export RUN", "runs RUN", "log RUN",
	"tag CK", "settings RUN", "prune RUN --keep all", "flatten CK", "verify CK", "verify RUN", "doctor RUN --quick", "latest RUN",
	"rewind RUN step-1", "rm RUN/step-1 --force", "recipes", "recipes show hf-to-titan/llama", "repair CK --dry-run", "clean CK",
	"table CK -o OUT", "plot CK sizes -o OUT.svg", "version", "man MAN",
	"bench async --size 1MiB --repeat 1 --dir RUN", "bench delta --size 4MiB --dir RUN",
	"bench io --size 1MiB --repeat 1 --dir RUN", "bench memory --size 1MiB --repeat 1",
	"cp CK memory:llama/step-1", "memory", "memory rm llama", "memory name RUN",
}

// jsonTypes are the answers of commands that start other programs, or need a service.
var jsonTypes = map[string]any{
	"cairn bench blob": bench.BlobResult{}, "cairn bench versions": bench.VersionsResult{}, "cairn bench convert": bench.ConvertResult{}, "cairn launch": launch.Report{}, "cairn web": webResult{},
}

// notJSON are the commands that print a text for another program.
var notJSON = []string{"cairn completion", "cairn help", "cairn saver"}

// Each command answers with one object. Its field path names the checkpoint or the
// run, and all sizes are called bytes.
func TestJSONOfAllCommands(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(ram.Variable, filepath.Join(dir, "memory"))
	t.Setenv("CAIRN_RUN", "job-7")
	ck, in := filepath.Join(dir, "ck"), filepath.Join(dir, "run")
	for _, at := range []string{ck, filepath.Join(in, "step-1"), filepath.Join(in, "step-2")} {
		wantCommand(t, 0, "", strings.Fields("demo --size 64KiB --ranks 2 --load-ranks 1 --dir "+at)...)
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "man"), 0o777))
	seen := map[string]bool{}
	for i, line := range jsonLines {
		out := filepath.Join(dir, "out", string(rune('a'+i/26))+string(rune('a'+i%26)))
		must.Do(t, os.MkdirAll(filepath.Dir(out), 0o777))
		args := strings.Fields(strings.NewReplacer("CK", ck, "RUN", in, "OUT", out, "MAN", filepath.Join(dir, "man")).Replace(line))
		cmd, _, err := newRootCmd().Find(args)
		must.Do(t, err)
		seen[cmd.CommandPath()] = true

		code, text, errText := command(t, append(args, "--json")...)
		var answer map[string]any
		if err := json.Unmarshal([]byte(text), &answer); code != 0 || err != nil {
			t.Errorf("cairn %s: exit code %d, %v: %.300s%s; want an object", line, code, err, text, errText)
			continue
		}
		checkAnswer(t, cmd, answer)
	}

	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		v, typed := jsonTypes[c.CommandPath()]
		switch {
		case typed:
			fields := map[string]any{}
			for _, name := range jsonFields(reflect.TypeOf(v), nil) {
				fields[name] = nil
			}
			checkAnswer(t, c, fields)
		case c.Runnable() && c.HasParent() && c.Name() != "bench" && !seen[c.CommandPath()] && !slices.Contains(notJSON, c.CommandPath()):
			t.Errorf("%s has no line in jsonLines", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCmd())
}

// sizeWord matches the names of sizes that are not called bytes.
var sizeWord = regexp.MustCompile(`^(|.*_)(nbytes|sizes?)$`)

// checkAnswer checks an answer of a command, by the first argument that the command takes.
func checkAnswer(t *testing.T, cmd *cobra.Command, answer map[string]any) {
	t.Helper()
	use, argument := cmd.UseLine(), ""
	if words := strings.Fields(strings.TrimPrefix(use, cmd.CommandPath())); len(words) > 0 {
		argument = words[0]
	}
	var want []string
	list := ""
	switch argument {
	case "PATH", "RUN", "URL", "DIR", "CHECKPOINT":
		want = []string{"path"}
	case "SRC":
		want = []string{"source", "target"}
	case "A":
		want = []string{"path_a", "path_b"}
	case "[DIR…]":
		list = "runs"
	case "CHECKPOINT…":
		list = "checkpoints"
	case "NAME":
		want = []string{"name"}
	case "", "[flags]", "--":
	default:
		t.Errorf("%s: what does its answer name?", use)
	}
	if cmd.Name() == "sync" {
		want = []string{"source", "target"}
	}
	for _, name := range want {
		if _, ok := answer[name]; !ok {
			t.Errorf("%s: its answer has no %s: %.200v", use, name, answer)
		}
	}
	if list != "" {
		elements, _ := answer[list].([]any)
		if len(elements) == 0 || slices.ContainsFunc(elements, func(e any) bool { return e.(map[string]any)["path"] == nil }) {
			t.Errorf("%s: its answer has no %s with a path each: %.200v", use, list, answer)
		}
	}
	checkSizes(t, use, answer)
}

// checkSizes checks the names of all sizes in v. The sizes of a chunk are elements.
func checkSizes(t *testing.T, use string, v any) {
	t.Helper()
	switch v := v.(type) {
	case map[string]any:
		for name, e := range v {
			_, elements := e.([]any)
			if sizeWord.MatchString(name) && name != "world_size" && !elements {
				t.Errorf("%s: the field %s: want bytes", use, name)
			}
			checkSizes(t, use, e)
		}
	case []any:
		for _, e := range v {
			checkSizes(t, use, e)
		}
	}
}
