//go:build interop

package interop

import "strings"

// fromTorch has checkpoints that one process of PyTorch or safetensors writes and cairn
// reads.
var fromTorch = []testCase{
	{name: "dcp.save: tensors of every dtype, views, empty ones", run: reads("saves.checkpoint", args{"kind": "tensors"})},
	{name: "dcp.save: nested containers", run: reads("saves.checkpoint", args{"kind": "nested"})},
	{name: "dcp.save: Python objects", run: reads("saves.checkpoint", args{"kind": "objects"})},
	{name: "dcp.save: model, optimizer, schedule", run: reads("saves.checkpoint", args{"kind": "training"})},
	{name: "dcp.save: two threads", run: reads("saves.checkpoint", args{"kind": "all", "thread_count": 2})},
	{name: "dcp.save: a file per tensor", run: reads("saves.checkpoint", args{"kind": "all", "single_file_per_rank": false})},
	{name: "dcp.save: zstd extension", needs: "zstd", run: reads("saves.checkpoint", args{"kind": "all", "zstd": true})},
	{name: "dcp.save: conjugated and negated views", run: reads("saves.lazy_views", nil)},
	{name: "torch.save: zip", run: readsFile(args{"kind": "all"})},
	{name: "torch.save: zip, pickle protocol 5", run: readsFile(args{"kind": "all", "protocol": 5})},
	{name: "torch.save: legacy stream", run: readsFile(args{"kind": "all", "new": false})},
	{name: "torch.save: a whole module → native", run: readsModule(true)},
	{name: "torch.save: a whole module, legacy stream → native", run: readsModule(false)},
	{name: "safetensors: save_file", run: readsSafe("saves.safe_file", nil)},
	{name: "HuggingFaceStorageWriter: one file", needs: "huggingface", run: readsSafe("saves.huggingface", nil)},
	{name: "HuggingFaceStorageWriter: three files, index", needs: "huggingface", run: readsSafe("saves.huggingface", args{"files": 3})},
	{name: "QuantizedHuggingFaceStorageReader: blocks of 8-bit floats", needs: "quantized", run: func(r *rig) {
		r.python("saves.quantized", args{"path": r.there("out")}, nil)
		want := r.items("loads.dequantized", args{"path": r.there("out")})
		r.convert("out", "native", "native", "--dequantize")
		equal(r, "cairn convert --dequantize", r.digest("native"), want)
	}},
}

// fromRanks has checkpoints that several processes write.
var fromRanks = []testCase{
	{name: "dcp.save: 2 ranks, DTensors", run: readsRanks(2, "saves.sharded", args{})},
	{name: "dcp.save: 4 ranks, DTensors, 2-D mesh", run: readsRanks(4, "saves.sharded", args{})},
	{name: "dcp.save: 4 ranks, a file per tensor", run: readsRanks(4, "saves.sharded", args{"single_file_per_rank": false})},
	{name: "dcp.save: 2 ranks, each its own metadata", needs: "rank-local", run: readsRanks(2, "saves.sharded", args{"collectives": false})},
	{name: "dcp.save: 2 ranks, FSDP2 and its optimizer", run: func(r *rig) {
		readsAs(r, 2, "out", "fsdp.save", args{"path": r.there("out")})
	}},
	{name: "HuggingFaceStorageWriter: 4 ranks, sharded", needs: "huggingface", run: readsHuggingFace(4, false)},
	{name: "HuggingFaceStorageWriter: 2 ranks, consolidated", needs: "huggingface", run: readsHuggingFace(2, true)},
}

// reads has Python save a checkpoint and compares it with cairn's view of it.
func reads(function string, more args) func(r *rig) {
	return func(r *rig) {
		a := args{"path": r.there("out")}
		if strings.HasSuffix(function, ".checkpoint") {
			a["dtypes"] = r.dtypes()
		}
		readsAs(r, 1, "out", function, a.with(more))
	}
}

func readsFile(more args) func(r *rig) {
	return func(r *rig) {
		readsAs(r, 1, "out.pt", "saves.file", args{"path": r.there("out.pt"), "dtypes": r.dtypes()}.with(more))
	}
}

// readsModule compares the tensors of a module that was saved whole.
func readsModule(zip bool) func(r *rig) {
	return func(r *rig) {
		want := r.items("saves.module", args{"path": r.there("out.pt"), "new": zip})
		equal(r, "cairn digest", r.digest("out.pt").tensors(), want)
		r.convert("out.pt", "native", "native")
		equal(r, "the native one", r.digest("native").tensors(), want)
	}
}

func readsSafe(function string, more args) func(r *rig) {
	return func(r *rig) {
		readsAs(r, 1, "out", function, args{"path": r.there("out"), "dtypes": r.safeDTypes()}.with(more))
	}
}

func readsRanks(n int, function string, more args) func(r *rig) {
	return func(r *rig) {
		readsAs(r, n, "out", function, args{"path": r.there("out"), "dtypes": r.dtypes()}.with(more))
	}
}

func readsHuggingFace(n int, consolidate bool) func(r *rig) {
	return func(r *rig) {
		readsAs(r, n, "out", "saves.huggingface_sharded", args{"path": r.there("out"), "consolidate": consolidate})
	}
}

func readsAs(r *rig, ranks int, name, function string, a args) {
	r.Helper()
	want := r.itemsOf(ranks, function, a)
	equal(r, "cairn digest", r.digest(name), want)
	r.cairn("verify", name)
}
