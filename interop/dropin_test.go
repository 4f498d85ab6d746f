//go:build interop

package interop

import (
	"path/filepath"
	"slices"

	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// dropIn is cairn as the storage of PyTorch's dcp: the Python package's Writer and
// Reader, with PyTorch's own planners.
var dropIn = []testCase{
	{name: "Writer → Reader: tensors of every dtype, views, empty ones", run: writesAndReads("tensors")},
	{name: "Writer → Reader: nested containers", run: writesAndReads("nested")},
	{name: "Writer → Reader: Python objects", run: writesAndReads("objects")},
	{name: "Writer: conjugated and negated views", run: func(r *rig) {
		want := r.items("drop_in.save_lazy_views", args{"path": r.there("out")})
		equal(r, "cairn digest", r.digest("out"), want)
	}},
	{name: "Writer → Reader: a training that goes on", run: func(r *rig) {
		r.nothing("drop_in.training", args{"path": r.there("out")})
	}},
	{name: "cairn.torch: a new optimizer goes on", run: func(r *rig) { r.nothing("drop_in.new_optimizer", args{"path": r.there("out")}) }},
	{name: "Writer → Reader: into another dtype", run: func(r *rig) { r.nothing("drop_in.cast", args{"path": r.there("out")}) }},
	{name: "Writer: a planner of one's own", run: func(r *rig) { r.nothing("drop_in.planner", args{"path": r.there("out")}) }},
	{name: "Writer: 2 ranks, DTensors → Reader: 4 ranks", run: writesByRanks(2, 4)},
	{name: "Writer: 4 ranks, DTensors, 2-D mesh → Reader: 2 ranks", run: writesByRanks(4, 2)},
	{name: "Writer: 2 ranks, FSDP2 and its optimizer → Reader: 4 ranks", run: func(r *rig) {
		want := r.itemsOf(2, "drop_in.save_fsdp", args{"path": r.there("out")})
		equal(r, "cairn digest", r.digest("out").tensors(), want.tensors())
		equal(r, "Reader", r.itemsOf(4, "drop_in.load_fsdp", args{"path": r.there("out")}), want)
	}},
	{name: "Writer: 2 ranks, one fails", run: finds(2, "drop_in.fails")},
	{name: "Writer and cairn.torch: 2 ranks, a checkpoint of another format", run: finds(2, "drop_in.other_format")},
	{name: "cairn.torch: 2 ranks load, save, and lose a saver", run: finds(2, "drop_in.resumes")},
	{name: "cairn.torch: 2 ranks that seem to be on two hosts", run: finds(2, "drop_in.across_hosts")},
	{name: "Stager: 2 ranks, dcp.async_save", run: finds(2, "drop_in.save_async")},
	{name: "Stager: 2 ranks, dcp.async_save by another process", needs: "async-process", run: finds(2, "drop_in.save_by_process")},
	{name: "Stager: 2 ranks, a ShardedTensor, little memory", run: finds(2, "drop_in.save_sharded_tensor")},
	{name: "Reader: every checkpoint of the fixtures", run: readsFixtures("drop_in.all_of")},
}

// writesAndReads has one process save by Writer; cairn and Reader find the same.
func writesAndReads(kind string) func(r *rig) {
	return func(r *rig) {
		a := args{"path": r.there("out"), "kind": kind, "dtypes": r.dtypes()}
		want := r.items("drop_in.save", a)
		if got := want.tensors(); len(got) > 0 {
			equal(r, "cairn digest", r.digest("out").tensors(), got)
		}
		r.cairn("verify", "out")
		equal(r, "Reader", r.items("drop_in.all_of", args{"path": r.there("out")}), want)
		r.nothing("drop_in.differs", a)
	}
}

// writesByRanks has ranks save by Writer and by cairn.torch.save, and as many
// others load by Reader and by cairn.torch.load.
func writesByRanks(writers, readers int) func(r *rig) {
	return func(r *rig) {
		dtypes := r.dtypes()
		want := r.itemsOf(writers, "drop_in.save_sharded", args{"path": r.there("out"), "dtypes": dtypes, "twice": true})
		equal(r, "cairn digest", r.digest("out"), want)
		equal(r, "Reader", r.itemsOf(readers, "drop_in.resharded", args{"path": r.there("out")}), want)
		a := args{"path": r.there("out"), "dtypes": dtypes}
		equal(r, "Reader, the same ranks", r.itemsOf(writers, "drop_in.load_sharded", a), want)
		equal(r, "cairn.torch.load", r.itemsOf(writers, "drop_in.load_sharded_ours", a), want)
		a["path"] = r.there("ours")
		equal(r, "cairn.torch.save", r.itemsOf(writers, "drop_in.save_sharded_ours", a), want)
		equal(r, "Reader of cairn.torch.save", r.itemsOf(writers, "drop_in.load_sharded", a), want)
		equal(r, "Reader of cairn.torch.save, other ranks", r.itemsOf(readers, "drop_in.resharded", args{"path": r.there("ours")}), want)
	}
}

// finds has some ranks call a function that returns the problems that they find.
func finds(ranks int, function string) func(r *rig) {
	return func(r *rig) {
		var found []string
		r.ranks(ranks, function, args{"path": r.there("out")}, &found)
		for _, f := range found {
			r.Error(f)
		}
	}
}

// readsFixtures has a function load the checkpoints that PyTorch, safetensors and
// hyper_parallel once wrote.
func readsFixtures(function string) func(r *rig) {
	return func(r *rig) {
		for _, c := range storagetest.Fixtures(r, "*/*") {
			name := filepath.Base(filepath.Dir(filepath.Dir(c.Dir))) + "-" + filepath.Base(filepath.Dir(c.Dir))
			storagetest.CopyFolder(r, c.Dir, r.path(name))
			want := items{}
			for n, i := range c.Items {
				if i.Kind == "tensor" && !slices.Contains(r.dtypes(), i.DType) {
					continue // this PyTorch does not have the dtype
				}
				want[n] = item{Kind: i.Kind, DType: i.DType, Shape: i.Shape, SHA256: i.SHA256, Type: i.Type, Repr: i.Repr}
			}
			equal(r, c.Name, r.items(function, args{"path": r.there(name)}), want)
		}
	}
}
