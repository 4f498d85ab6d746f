//go:build interop

package interop

import (
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// intoFiles has checkpoints that cairn writes as files of safetensors, torch.save and
// hyper_parallel.
var intoFiles = []testCase{
	{name: "native files: safe_open", run: func(r *rig) {
		r.saveWhole("native", r.stockDTypes())
		equal(r, "safe_open", r.items("loads.safe_open", args{"path": r.there("native")}), r.digest("native"))
	}},
	{name: "native → hf: safe_open", run: func(r *rig) {
		r.save("native", r.stockDTypes(), false)
		r.convert("native", "hf", "hf")
		equal(r, "safe_open", r.items("loads.safe_open", args{"path": r.there("hf")}), r.digest("native"))
	}},
	{name: "native → hf, several files: load_file", run: func(r *rig) {
		r.save("native", r.stockDTypes(), false)
		r.convert("native", "hf", "hf", "--max-shard-size", "500KB")
		equal(r, "load_file", r.items("loads.load_file", args{"path": r.there("hf")}), r.digest("native"))
	}},
	{name: "dcp → hf: load_model", run: func(r *rig) {
		r.python("saves.checkpoint", args{"path": r.there("first"), "kind": "training", "dtypes": r.dtypes()}, nil)
		r.convert("first", "hf", "hf", "--select", "model.*", "--rename", "model.*=*")
		r.nothing("loads.into_model", args{"path": r.there("hf")})
	}},
	{name: "safetensors → hf: metadata under its own names", run: func(r *rig) {
		want := r.items("saves.safe_file", args{"path": r.there("first"), "dtypes": r.stockDTypes()})
		r.convert("first", "second", "hf")
		equal(r, "safe_open", r.items("loads.safe_open", args{"path": r.there("second")}), want)
		r.nothing("loads.metadata_lacks", args{"path": r.there("second"), "want": map[string]string{"format": "pt", "note": "ü"}})
	}},
	{name: "native → hf → HuggingFaceStorageReader", needs: "huggingface", run: func(r *rig) {
		r.save("native", r.stockDTypes(), false)
		r.convert("native", "hf", "hf")
		got := r.items("loads.preallocated", args{"path": r.there("hf"), "huggingface": true})
		equal(r, "HuggingFaceStorageReader", got, r.digest("native"))
	}},
	{name: "native → torch: torch.load, weights only", run: loadsFile(false)},
	{name: "native → torch: torch.load, weights only, mmap", run: loadsFile(true)},
	{name: "dcp → torch: torch.load, weights only", run: func(r *rig) {
		want := r.items("saves.checkpoint", args{"path": r.there("first"), "kind": "safe", "dtypes": r.dtypes()})
		r.convert("first", "out.pt", "torch")
		equal(r, "torch.load", r.items("loads.file", args{"path": r.there("out.pt")}), want)
	}},
	{name: "torch.save → native → torch: every state as it was", run: func(r *rig) {
		r.python("saves.file", args{"path": r.there("first.pt"), "kind": "all", "dtypes": r.dtypes()}, nil)
		r.convert("first.pt", "native", "native")
		r.convert("native", "second.pt", "torch")
		r.nothing("loads.same_as_state", args{"path": r.there("second.pt"), "kind": "all", "dtypes": r.dtypes()})
	}},
	{name: "torch.save → native → torch: an optimizer takes it", run: func(r *rig) {
		r.python("saves.file", args{"path": r.there("first.pt"), "kind": "training", "dtypes": r.dtypes()}, nil)
		r.convert("first.pt", "native", "native")
		r.convert("native", "second.pt", "torch")
		r.nothing("loads.into_raw_optimizer", args{"path": r.there("second.pt")})
	}},
	{name: "torch.save → torch: tied weights stay tied", run: func(r *rig) {
		r.python("saves.tied", args{"path": r.there("first.pt")}, nil)
		r.convert("first.pt", "second.pt", "torch")
		r.nothing("loads.not_tied", args{"path": r.there("second.pt"), "original": r.there("first.pt")})
	}},
	{name: "hyper_parallel's own checkpoint, read by its metadata", run: func(r *rig) {
		c := storagetest.Fixtures(r, "hyper_parallel/collective-4")[0]
		storagetest.CopyFolder(r, c.Dir, r.path("real"))
		equal(r, "py/hyper.py", r.items("hyper.read", args{"path": r.there("real")}), r.digest("real"))
	}},
	{name: "native → hyper, read by its metadata", run: func(r *rig) {
		r.save("native", r.stockDTypes(), true)
		r.convert("native", "hyper", "hyper")
		equal(r, "py/hyper.py", r.items("hyper.read", args{"path": r.there("hyper")}), r.digest("native"))
	}},
}

func loadsFile(mmap bool) func(r *rig) {
	return func(r *rig) {
		r.save("native", r.dtypes(), true)
		r.convert("native", "out.pt", "torch")
		equal(r, "torch.load", r.items("loads.file", args{"path": r.there("out.pt"), "mmap": mmap}), r.digest("native"))
	}
}
