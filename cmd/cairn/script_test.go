package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	runs "github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

var update = flag.Bool("update", false, "rewrite the expected outputs")

// programs are the programs that a copy of the test binary runs if it is called by their names.
var programs = map[string]func(){"cairn": main}

func TestMain(m *testing.M) { testscript.Main(m, programs) }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("internal", "cli", "testdata", "script"),
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			// The race detector would let every command sleep for a second.
			e.Setenv("GORACE", "atexit_sleep_ms=0")
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, ".config"))
			files, err := filepath.Abs(filepath.Join("..", "..", "storage", "torchfile", "testdata"))
			e.Setenv("TORCHFILES", files)
			docs, docsErr := filepath.Abs(filepath.Join("..", "..", "docs"))
			e.Setenv("DOCS", docs)
			models, modelsErr := filepath.Abs(filepath.Join("..", "..", "storage", "view", "testdata"))
			e.Setenv("MODELS", models)
			versions, versionsErr := filepath.Abs(filepath.Join("..", "..", "testdata", "slime", "xor-xxh3-rebase"))
			e.Setenv("SLIME", versions)
			adapters, adaptersErr := filepath.Abs(filepath.Join("..", "..", "storage", "adapter", "testdata"))
			e.Setenv("ADAPTERS", adapters)
			quantised, quantisedErr := filepath.Abs(filepath.Join("..", "..", "storage", "hf", "testdata", "quant"))
			e.Setenv("QUANTISED", quantised)
			return errors.Join(err, docsErr, modelsErr, versionsErr, adaptersErr, quantisedErr)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits":      checkExit,
			"checkpoint": makeCheckpoint,
			"tensors":    makeTensors,
			"flip":       flipBit,
			"cut":        cutShort,
			"newer":      makeNewer,
			"fields":     checkFields,
			"mask":       maskLayout,
			"timeline":   makeTimeline,
			"interrupt":  interruptRemoval,
			"lose":       loseFile,
			"chain":      makeChain,
			"asks":       askExport,
		},
	})
}

// checkExit runs a command and checks its exit code: exits CODE COMMAND….
func checkExit(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		e, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = e.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d; want %d", got, want)
	}
}

// makeCheckpoint saves a checkpoint that is the same every time: checkpoint DIR
// [ID [changed]]. The changed one has another state.
func makeCheckpoint(ts *testscript.TestScript, _ bool, args []string) {
	id := "20261115t101500-00c0ffee"
	if len(args) > 1 {
		id = args[1]
	}
	s, err := file.Open(ts.MkAbs(args[0]), &file.Options{NoSync: true})
	ts.Check(err)
	state := fixedState
	if len(args) > 2 {
		state = changedState
	}
	ts.Check(saveFixed(s, id, state))
}

// askExport notes an export beside a checkpoint, as a save does: asks DIR FORM to ADDRESS….
func askExport(ts *testscript.TestScript, _ bool, args []string) {
	s, err := file.Open(ts.MkAbs(args[0]), &file.Options{NoSync: true})
	ts.Check(err)
	e, err := runs.ParseExport(strings.Join(args[1:], " "))
	ts.Check(err)
	c, err := formats.Open(context.Background(), s, nil)
	ts.Check(err)
	defer c.Close()
	ts.Check(runs.ChangeNotes(context.Background(), s, c.Storage().SaveID, func(n *runs.Notes) error {
		n.AskExport(e)
		return nil
	}))
}

// makeTensors saves tensors of these numbers of bytes: tensors DIR BYTES….
func makeTensors(ts *testscript.TestScript, _ bool, args []string) {
	s, err := file.Open(ts.MkAbs(args[0]), &file.Options{NoSync: true})
	ts.Check(err)
	state := cairn.State{}
	for i, arg := range args[1:] {
		n, err := strconv.ParseInt(arg, 10, 64)
		ts.Check(err)
		x, err := tensor.New(tensor.Uint8, []int64{n})
		ts.Check(err)
		b, _ := x.Bytes()
		for k := range b {
			b[k] = byte(k*7 + i)
		}
		state[fmt.Sprintf("t%d", i)] = x
	}
	_, err = cairn.Save(context.Background(), s, state, nil)
	ts.Check(err)
}

// makeChain saves a run with checkpoints step-0, step-1, … that refer to each other: chain DIR N.
func makeChain(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	x, err := tensor.New(tensor.Uint8, []int64{1 << 20})
	ts.Check(err)
	b, _ := x.Bytes()
	for i := range n {
		s, err := file.Open(filepath.Join(ts.MkAbs(args[0]), fmt.Sprintf("step-%d", i)), &file.Options{NoSync: true})
		ts.Check(err)
		base := &storage.Base{}
		if i > 0 {
			base.Folder = fmt.Sprintf("step-%d", i-1)
		}
		b[i]++
		_, err = cairn.Save(context.Background(), s, cairn.State{"w": x}, &cairn.SaveOptions{Base: base, Step: new(int64(i))})
		ts.Check(err)
	}
}

// saveFixed saves a state with all kinds of values from two ranks.
func saveFixed(s blob.Store, id string, of func(rank int) (cairn.State, error)) error {
	return inproc.Run(context.Background(), 2, func(ctx context.Context, g group.Group) error {
		state, err := of(g.Rank())
		if err != nil {
			return err
		}
		_, err = protocol.Save(ctx, protocol.RankSave{
			Group: g, Planner: new(plan.DefaultSave), State: state,
			Writer: storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{SweepAfter: -1}),
			Storage: meta.Storage{
				SaveID: id, Step: new(int64(7)), Time: time.Date(2026, 11, 15, 10, 15, 0, 0, time.UTC), WorldSize: 2,
				Writer: "a test", Tags: map[string]string{"run": "fixed"},
			},
		})
		return err
	})
}

func fixedState(rank int) (cairn.State, error) {
	layout := func(dim int) shard.Layout {
		return shard.Placed{Mesh: shard.Mesh{Shape: []int{2}}, Placements: []shard.Placement{shard.Shard(dim)}}
	}
	var errs []error
	cut := func(d tensor.DType, dim int, shape ...int64) *shard.Tensor {
		t, err := shard.Empty(layout(dim), d, shape, rank)
		errs = append(errs, err)
		if err == nil {
			b, _ := t.Local().Bytes()
			for i := range b {
				b[i] = byte(16*rank + i)
			}
		}
		return t
	}
	whole := func(shape ...int64) *tensor.Tensor {
		t, err := tensor.New(tensor.Float32, shape)
		errs = append(errs, err)
		return t
	}
	layer := func() map[string]any {
		return map[string]any{"w": cut(tensor.BFloat16, 0, 5, 4), "m": cut(tensor.Float32, 1, 5, 4)}
	}
	return cairn.State{
		"model": map[string]any{"layers": []any{layer(), layer()}, "bias": whole(3), "empty": whole(0, 2), "scale": whole()},
		"step":  7, "lr": 0.0003, "name": "run-ü", "on": true, "none": nil, "betas": []float64{0.9, 0.95},
		"rng": []byte{0, 1, 255}, "blob": make([]byte, 70_000), "evil\x1b[31m": "x",
	}, errors.Join(errs...)
}

// changedState is a state that differs from fixedState in every possible way.
func changedState(rank int) (cairn.State, error) {
	state, err := fixedState(rank)
	if err != nil {
		return nil, err
	}
	model := state["model"].(map[string]any)
	layer := model["layers"].([]any)[1].(map[string]any)
	m, _ := layer["m"].(*shard.Tensor).Local().Bytes()
	binary.LittleEndian.PutUint32(m[4:], math.Float32bits(float32(math.NaN())))
	binary.LittleEndian.PutUint32(m[8:], math.Float32bits(1))
	w, _ := layer["w"].(*shard.Tensor).Local().Bytes()
	w[0]++ // the last bit of an element of each rank
	bias, err := tensor.Of([]int64{4}, []float32{1, 0, -1, float32(math.Inf(1))})
	if err != nil {
		return nil, err
	}
	scale, err := tensor.Of([]int64{}, []float64{0})
	if err != nil {
		return nil, err
	}
	model["bias"], model["scale"], model["empty"] = bias, scale, "none"
	delete(state, "on")
	state["off"], state["step"], state["betas"] = false, 8, []any{0.9, 0.99}
	return state, nil
}

// cutShort cuts a file to a number of bytes.
func cutShort(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
}

// interruptRemoval begins to remove a native checkpoint, and stops after its record is gone:
// interrupt DIR.
func interruptRemoval(ts *testscript.TestScript, _ bool, args []string) {
	s, err := file.Open(ts.MkAbs(args[0]), nil)
	ts.Check(err)
	broken := errors.New("interrupted")
	data := func(name string) bool { return strings.HasSuffix(name, ".safetensors") }
	_, err = formats.Remove(context.Background(), fault.New(s, fault.Rule{On: fault.Remove, Match: data, Do: fault.Fail(broken)}), nil)
	if !errors.Is(err, broken) {
		ts.Fatalf("remove: %v; want %v", err, broken)
	}
	if _, err := s.Stat(context.Background(), "cairn.json"); !errors.Is(err, fs.ErrNotExist) {
		ts.Fatalf("the record: %v; want it to be gone", err)
	}
}

// loseFile removes the one file that a pattern matches: lose PATTERN.
func loseFile(ts *testscript.TestScript, _ bool, args []string) {
	names, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(names) != 1 {
		ts.Fatalf("%s matches %d files; want 1", args[0], len(names))
	}
	ts.Check(os.Remove(names[0]))
}

// flipBit inverts a bit of the one file that a pattern matches: flip PATTERN
// OFFSET, which counts from the end if it is negative.
func flipBit(ts *testscript.TestScript, _ bool, args []string) {
	names, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(names) != 1 {
		ts.Fatalf("%s matches %d files; want 1", args[0], len(names))
	}
	b, err := os.ReadFile(names[0])
	ts.Check(err)
	i, err := strconv.Atoi(args[1])
	ts.Check(err)
	if i < 0 {
		i += len(b)
	}
	b[i] ^= 1
	ts.Check(os.WriteFile(names[0], b, 0o644))
}

// makeNewer rewrites the record of a checkpoint as a later version would: newer
// DIR.
func makeNewer(ts *testscript.TestScript, _ bool, args []string) {
	name := filepath.Join(ts.MkAbs(args[0]), "cairn.json")
	b, err := os.ReadFile(name)
	ts.Check(err)
	var f struct {
		Record json.RawMessage `json:"record"`
	}
	ts.Check(json.Unmarshal(b, &f))
	record := strings.Replace(string(f.Record), `"version": 1`, `"version": 1000`, 1)
	if record == string(f.Record) {
		ts.Fatalf("no version in %s", record)
	}
	crc := crc32.Checksum([]byte(record), crc32.MakeTable(crc32.Castagnoli))
	ts.Check(os.WriteFile(name, fmt.Appendf(nil, `{"crc32c": "%08x", "record": %s}`, crc, record), 0o644))
}

// makeTimeline makes a checkpoint without contents, saved by a number of ranks, of
// which one was slow: timeline DIR RANKS.
func makeTimeline(ts *testscript.TestScript, _ bool, args []string) {
	ranks, err := strconv.Atoi(args[1])
	ts.Check(err)
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	tl := make(meta.Timeline, ranks)
	for r := range tl {
		begin, write := 10*(r%3), 2000+10*(r%7)
		if r == ranks*2/3 {
			write = 5000
		}
		tl[r] = append(tl[r], meta.Phase{Name: meta.PhaseStage, End: ms(700 + begin), Bytes: 2 << 30})
		tl[r] = append(tl[r], meta.Phase{Name: meta.PhasePlan, Start: ms(begin), End: ms(begin + 300)})
		if r == 0 {
			tl[r] = append(tl[r], meta.Phase{Name: meta.PhaseGlobalPlan, Start: ms(350), End: ms(500)})
		}
		tl[r] = append(tl[r], meta.Phase{Name: meta.PhaseWrite, Start: ms(600), End: ms(600 + write), Bytes: 2 << 30})
	}
	tl[0] = append(tl[0], meta.Phase{Name: meta.PhaseCommit, Start: ms(5650), End: ms(6000)})
	s, err := file.Open(ts.MkAbs(args[0]), &file.Options{NoSync: true})
	ts.Check(err)
	ts.Check(native.Commit(context.Background(), s, &meta.Metadata{Storage: meta.Storage{
		SaveID: "20261115t101500-00c0ffee", Step: new(int64(7)), WorldSize: ranks, Timeline: tl,
	}}, nil))
}

// masks hide the parts of an output that depend on the layout of the format.
var masks = []struct {
	find *regexp.Regexp
	put  string
}{
	{regexp.MustCompile(`(?m)^on disk .*$`), "on disk *"},
	{regexp.MustCompile(`(?m)^(FILE|CHUNK) .*$`), "$1 *"},
	{regexp.MustCompile(`(?m)(-index\.cairn|\.safetensors) .*$`), "$1 *"},
	{regexp.MustCompile(`"bytes": \d+(,\s+"crc32c")`), `"bytes": "*"$1`},
	{regexp.MustCompile(`"(crc32c|offset|file_bytes)": ("[0-9a-f]{8}"|\d+)`), `"$1": "*"`},
}

// maskLayout copies an output and applies the masks: mask FROM TO.
func maskLayout(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	for _, m := range masks {
		text = m.find.ReplaceAllString(text, m.put)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o644))
}

// checkFields checks that the JSON in a file has fields: fields FILE PATH…. A path
// consists of keys and positions, joined by dots.
func checkFields(ts *testscript.TestScript, neg bool, args []string) {
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &v))
	for _, path := range args[1:] {
		if found := hasField(v, strings.Split(path, ".")); found == neg {
			ts.Fatalf("field %s there: %v", path, found)
		}
	}
}

func hasField(v any, path []string) bool {
	if len(path) == 0 {
		return true
	}
	switch v := v.(type) {
	case map[string]any:
		e, ok := v[path[0]]
		return ok && hasField(e, path[1:])
	case []any:
		i, err := strconv.Atoi(path[0])
		return err == nil && i < len(v) && hasField(v[i], path[1:])
	}
	return false
}
