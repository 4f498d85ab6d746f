//go:build interop

package interop

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/tensor"
)

// args are the arguments of a function of Python, by name.
type args map[string]any

// with returns the arguments with others added.
func (a args) with(more args) args {
	out := maps.Clone(a)
	maps.Copy(out, more)
	return out
}

// rig is the environment of a case: a PyTorch, the program, and a folder that both see. A
// failure ends the case.
type rig struct {
	*testing.T
	py      *python
	program string
	// folder is the folder of the case, relative to the folder of the worker.
	folder string
}

func newRig(t *testing.T, py *python, program string) *rig {
	t.Helper()
	folder := must.Get(os.MkdirTemp(py.dir, "case-"))(t)
	t.Cleanup(func() { os.RemoveAll(folder) })
	return &rig{T: t, py: py, program: program, folder: filepath.Base(folder)}
}

// path returns where this process sees a file of the case.
func (r *rig) path(name string) string { return filepath.Join(r.py.dir, r.folder, name) }

// there returns where the worker sees a file of the case.
func (r *rig) there(name string) string { return r.folder + "/" + name }

// frameworks is the rig with a worker that has Lightning and transformers.
func (r *rig) frameworks() *rig {
	r.Helper()
	with := *r
	with.py = r.py.frameworks(r.T)
	return &with
}

// vllm is the rig with a worker that has vLLM.
func (r *rig) vllm() *rig {
	r.Helper()
	with := *r
	with.py = r.py.vllm(r.T)
	return &with
}

// sglang is the rig with a worker that has SGLang.
func (r *rig) sglang() *rig {
	r.Helper()
	with := *r
	with.py = r.py.sglang(r.T)
	return &with
}

// beside is the rig with a worker that has a framework of interop/beside.d, and imports modules once.
func (r *rig) beside(name string, modules ...string) *rig {
	r.Helper()
	with := *r
	with.py = r.py.beside(r.T, name, modules...)
	return &with
}

// python has one process call a function.
func (r *rig) python(function string, a args, result any) {
	r.Helper()
	r.ranks(1, function, a, result)
}

// ranks has so many processes call a function.
func (r *rig) ranks(n int, function string, a args, result any) {
	r.Helper()
	if err := r.py.call(function, a, n, result); err != nil {
		r.Fatal(shorten(err.Error(), 4000))
	}
}

// items has Python call a function that returns digests.
func (r *rig) items(function string, a args) items {
	r.Helper()
	return r.itemsOf(1, function, a)
}

func (r *rig) itemsOf(ranks int, function string, a args) items {
	r.Helper()
	var out items
	r.ranks(ranks, function, a, &out)
	return out
}

// nothing has Python call a function that returns the problems that it finds.
func (r *rig) nothing(function string, a args) {
	r.Helper()
	var found []string
	r.python(function, a, &found)
	for _, f := range found {
		r.Errorf("%s: %s", function, f)
	}
}

// cairn runs the program in the case's folder and returns its output.
func (r *rig) cairn(words ...string) []byte {
	r.Helper()
	out, said, err := r.try(words...)
	if err != nil {
		r.Fatalf("cairn %s: %v\n%s", strings.Join(words, " "), err, said)
	}
	return out
}

// try runs the program and returns its stderr, too.
func (r *rig) try(words ...string) (out []byte, said string, err error) {
	cmd := exec.CommandContext(r.Context(), r.program, words...)
	cmd.Dir = r.path("")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err = cmd.Output()
	return out, shorten(stderr.String(), 2000), err
}

// convert has the program write one checkpoint of the case as another.
func (r *rig) convert(from, to, format string, more ...string) {
	r.Helper()
	r.cairn(append([]string{"convert", from, to, "--to", format}, more...)...)
}

// digest returns cairn's digest of a checkpoint of the case.
func (r *rig) digest(name string) items {
	r.Helper()
	var out struct {
		Items items `json:"items"`
	}
	if err := json.Unmarshal(r.cairn("digest", name, "--json"), &out); err != nil {
		r.Fatal(err)
	}
	return out.Items
}

// dtypes returns the element types that this PyTorch and cairn both have.
func (r *rig) dtypes() []string {
	return slices.DeleteFunc(slices.Clone(r.py.about.DTypes), unknown)
}

// safeDTypes returns the dtypes that this safetensors has as well, which cairn reads.
func (r *rig) safeDTypes() []string {
	return slices.DeleteFunc(slices.Clone(r.py.about.SafeDTypes), unknown)
}

// stockDTypes returns the dtypes that all versions of safetensors have. The data files of native
// checkpoints hold tensors of other dtypes as bytes, under a key that begins as reserved does.
func (r *rig) stockDTypes() []string {
	return slices.DeleteFunc(r.safeDTypes(), func(dtype string) bool {
		d, err := tensor.ParseDType(dtype)
		_, ok := safetensors.StockName(d)
		return err != nil || !ok
	})
}

const reserved = "__cairn__/"

func unknown(dtype string) bool {
	_, err := tensor.ParseDType(dtype)
	return err != nil
}
