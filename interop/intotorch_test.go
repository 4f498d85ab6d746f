//go:build interop

package interop

import (
	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

// intoTorch has checkpoints that cairn writes in the format of DCP, and PyTorch loads with
// its own FileSystemReader.
var intoTorch = []testCase{
	{name: "native → dcp.load into tensors that are there", run: func(r *rig) {
		r.save("native", r.dtypes(), true)
		r.convert("native", "dcp", "torchdcp")
		equal(r, "dcp.load", r.items("loads.preallocated", args{"path": r.there("dcp")}), r.digest("native"))
	}},
	{name: "native → dcp.load without a state", run: func(r *rig) {
		r.save("native", r.dtypes(), true)
		r.convert("native", "dcp", "torchdcp")
		equal(r, "dcp.load", r.items("loads.all_of", args{"path": r.there("dcp")}), r.digest("native"))
	}},
	{name: "native → dcp.load of some keys", run: func(r *rig) {
		r.save("native", r.dtypes(), true)
		r.convert("native", "dcp", "torchdcp")
		got := r.items("loads.by_keys", args{"path": r.there("dcp"), "keys": []string{"values"}})
		equal(r, "_load_state_dict_from_keys", got, r.digest("native").below("values."))
	}},
	{name: "native → dcp: values of Go are Python's", run: func(r *rig) {
		r.save("native", []string{"float32"}, true)
		r.convert("native", "dcp", "torchdcp")
		r.nothing("values.of_go", args{"path": r.there("dcp")})
	}},
	{name: "native with planner data → dcp: nested as it was", run: func(r *rig) {
		r.saveWith("native", []string{"float32"}, true, notes)
		r.convert("native", "dcp", "torchdcp")
		equal(r, "dcp.load", r.items("loads.all_of", args{"path": r.there("dcp")}), r.digest("native"))
		r.nothing("values.of_go", args{"path": r.there("dcp")})
	}},
	{name: "copies of all ranks as dcp → dcp.load", run: func(r *rig) {
		r.saveWith("dcp", r.dtypes(), true, func(o *cairn.SaveOptions) {
			o.Format, o.Planner = torchdcp.Format{}, &plan.DefaultSave{Owner: plan.EveryHolder}
		})
		r.cairn("verify", "dcp")
		equal(r, "dcp.load", r.items("loads.preallocated", args{"path": r.there("dcp")}), r.digest("dcp"))
	}},
	{name: "native → dcp: requires_grad and memory formats", run: func(r *rig) {
		r.saveProperties("native", map[string]meta.Properties{
			"plain": {}, "learned": {RequiresGrad: true}, "image": {MemoryFormat: "channels_last"}, "kept": {MemoryFormat: "preserve_format"},
		})
		r.convert("native", "dcp", "torchdcp")
		r.nothing("loads.properties_differ", args{"path": r.there("dcp"), "want": map[string][]any{
			"plain": {false, "contiguous_format"}, "learned": {true, "contiguous_format"}, "image": {false, "channels_last"}, "kept": {false, "preserve_format"},
		}})
		equal(r, "dcp.load", r.items("loads.preallocated", args{"path": r.there("dcp")}), r.digest("native"))
	}},
	{name: "native → dcp, several files", run: func(r *rig) {
		r.save("native", r.dtypes(), true)
		r.convert("native", "dcp", "torchdcp", "--world-size", "3")
		equal(r, "dcp.load", r.items("loads.preallocated", args{"path": r.there("dcp")}), r.digest("native"))
	}},
	{name: "dcp → native → dcp: every state as PyTorch loads it", run: func(r *rig) {
		r.python("saves.checkpoint", args{"path": r.there("first"), "kind": "all", "dtypes": r.dtypes()}, nil)
		r.convert("first", "native", "native")
		equal(r, "the native one", r.digest("native"), r.digest("first"))
		r.convert("native", "second", "torchdcp")
		r.nothing("loads.same_as", args{"path": r.there("second"), "original": r.there("first")})
	}},
	{name: "dcp → dcp: every state as PyTorch loads it", run: func(r *rig) {
		r.python("saves.checkpoint", args{"path": r.there("first"), "kind": "all", "dtypes": r.dtypes()}, nil)
		r.convert("first", "second", "torchdcp")
		r.nothing("loads.same_as", args{"path": r.there("second"), "original": r.there("first")})
	}},
	{name: "dcp → native → dcp: objects with tensors inside", run: func(r *rig) {
		r.python("saves.inside_tuples", args{"path": r.there("first")}, nil)
		r.convert("first", "native", "native")
		r.convert("native", "second", "torchdcp")
		r.nothing("loads.same_as", args{"path": r.there("second"), "original": r.there("first")})
	}},
	{name: "dcp → native → dcp: a training goes on", run: func(r *rig) {
		r.python("saves.checkpoint", args{"path": r.there("first"), "kind": "training", "dtypes": r.dtypes()}, nil)
		r.convert("first", "native", "native")
		r.convert("native", "second", "torchdcp")
		r.nothing("loads.into_optimizer", args{"path": r.there("second")})
	}},
	{name: "native → dcp → dcp_to_torch_save", run: func(r *rig) {
		r.save("native", r.dtypes(), true)
		r.convert("native", "dcp", "torchdcp")
		got := r.items("loads.to_file", args{"path": r.there("dcp"), "file": r.there("out.pt")})
		equal(r, "dcp_to_torch_save", got, r.digest("native"))
	}},
}

// intoRanks has checkpoints that several processes of PyTorch load, cut in other ways.
var intoRanks = []testCase{
	{name: "native → dcp.load by 2 ranks, resharded", run: loadsResharded(2)},
	{name: "native → dcp.load by 3 ranks, resharded", run: loadsResharded(3)},
	{name: "2 ranks without a group as dcp → dcp.load by 2 ranks", needs: "rank-local", run: func(r *rig) {
		r.saveAlone("dcp")
		equal(r, "dcp.load", r.itemsOf(2, "loads.rank_local", args{"path": r.there("dcp")}), r.digest("dcp"))
	}},
	{name: "dcp of 4 ranks → native → dcp.load by 3 ranks", run: func(r *rig) {
		want := r.itemsOf(4, "saves.sharded", args{"path": r.there("first"), "dtypes": r.dtypes()})
		r.convert("first", "native", "native")
		r.convert("native", "second", "torchdcp")
		equal(r, "dcp.load", r.itemsOf(3, "loads.resharded", args{"path": r.there("second")}), want)
	}},
	{name: "FSDP2 of 2 ranks → native → dcp → FSDP2 of 3 ranks", run: func(r *rig) {
		want := r.itemsOf(2, "fsdp.save", args{"path": r.there("first")})
		r.convert("first", "native", "native")
		r.convert("native", "second", "torchdcp")
		equal(r, "the resumed training", r.itemsOf(3, "fsdp.load", args{"path": r.there("second")}), want)
	}},
	{name: "HuggingFaceStorageReader on a native folder", needs: "huggingface", run: func(r *rig) {
		r.save("native", r.stockDTypes(), true)
		got := r.items("loads.preallocated", args{"path": r.there("native"), "huggingface": true})
		equal(r, "HuggingFaceStorageReader", got.named(), r.digest("native").tensors())
	}},
	{name: "HuggingFaceStorageReader on a native folder, 3 ranks", needs: "huggingface", run: func(r *rig) {
		r.save("native", r.stockDTypes(), true)
		got := r.itemsOf(3, "loads.resharded", args{"path": r.there("native"), "huggingface": true})
		equal(r, "HuggingFaceStorageReader", got.named(), r.digest("native").tensors())
	}},
	{name: "native → hf for 3 ranks → HuggingFaceStorageReader", needs: "huggingface", run: func(r *rig) {
		r.saveWith("native", r.stockDTypes(), false, func(o *cairn.SaveOptions) { o.Tags = map[string]string{"run": "ü-7"} })
		r.convert("native", "hf", "hf", "--world-size", "3")
		got := r.items("loads.preallocated", args{"path": r.there("hf"), "huggingface": true})
		equal(r, "HuggingFaceStorageReader", got, r.digest("native"))
		got = r.itemsOf(2, "loads.resharded", args{"path": r.there("hf"), "huggingface": true})
		equal(r, "HuggingFaceStorageReader, 2 ranks", got, r.digest("native"))
	}},
}

func loadsResharded(n int) func(r *rig) {
	return func(r *rig) {
		r.save("native", r.dtypes(), true)
		r.convert("native", "dcp", "torchdcp")
		equal(r, "dcp.load", r.itemsOf(n, "loads.resharded", args{"path": r.there("dcp")}), r.digest("native"))
	}
}
