//go:build interop

package interop

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// refusals are states that cairn cannot represent: its errors name them.
var refusals = []testCase{
	{name: "an object of one's own class is a record, and refused", run: func(r *rig) {
		want := r.items("saves.own_class", args{"path": r.there("first")})
		got := r.digest("first")
		equal(r, "the tensor beside it", got.tensors(), want.tensors())
		if got["own"].Kind != "object" || !strings.Contains(got["own"].Type+got["own"].Repr, "Own") {
			r.Errorf("the object is %v; want its class named", got["own"])
		}
		r.refuses("states.Own", "second", "convert", "first", "second", "--to", "torchdcp")
		r.cairn("convert", "first", "third", "--to", "torchdcp", "--skip-objects")
		equal(r, "dcp.load", r.items("loads.all_of", args{"path": r.there("third")}), want.tensors())
	}},
	{name: "a dtype that cairn lacks is refused by name", run: func(r *rig) {
		foreign := slices.DeleteFunc(slices.Clone(r.py.about.DTypes), func(d string) bool { return !unknown(d) })
		if len(foreign) == 0 {
			r.Fatal("this PyTorch lacks it")
		}
		for _, d := range foreign {
			r.python("saves.one_dtype", args{"path": r.there(d), "dtype": d}, nil)
			r.refuses(d, "out-"+d, "convert", d, "out-"+d, "--to", "native")
		}
	}},
	{name: "objects do not fit into safetensors, and are refused", run: func(r *rig) {
		r.save("native", []string{"float32"}, true)
		r.refuses("values.", "hf", "convert", "native", "hf", "--to", "hf")
		r.cairn("convert", "native", "hf", "--to", "hf", "--skip-objects")
		equal(r, "safe_open", r.items("loads.safe_open", args{"path": r.there("hf")}), r.digest("native").tensors())
	}},
	{name: "planner data does not fit into torch.save, and is refused", run: func(r *rig) {
		r.saveWith("native", []string{"float32"}, true, notes)
		r.refuses("planner data", "out.pt", "convert", "native", "out.pt", "--to", "torch")
		r.cairn("convert", "native", "out.pt", "--to", "torch", "--skip-objects")
		equal(r, "torch.load", r.items("loads.file", args{"path": r.there("out.pt")}), r.digest("native"))
	}},
}

// refuses runs the program, which must fail, name the refused parts, and leave no target.
func (r *rig) refuses(name, target string, words ...string) {
	r.Helper()
	_, said, err := r.try(words...)
	if err == nil {
		r.Errorf("cairn %s: no error; want a refusal of %s", strings.Join(words, " "), name)
		return
	}
	if !strings.Contains(said, name) {
		r.Errorf("cairn %s: %s; want it to name %s", strings.Join(words, " "), said, name)
	}
	left := 0
	_ = filepath.WalkDir(r.path(target), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left++
		}
		return nil
	})
	if left > 0 {
		r.Errorf("%d files are left at %s", left, target)
	}
}
