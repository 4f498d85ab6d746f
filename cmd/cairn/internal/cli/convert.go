package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn/storage/formats"
)

func newConvertCmd() *cobra.Command {
	f := &conversionFlags{memory: 512 << 20}
	cmd := &cobra.Command{
		Use:   "convert SRC DST",
		Short: "Convert a checkpoint to another format or sharding",
		Long: `Convert streams a checkpoint of any format into a new one of any format, in
parallel and in bounded memory, whatever its size. On the way it can leave names
out, rename, cast and reshard. No pickle is ever run.

DST appears in one step, when it is complete. Until then convert writes to a
hidden directory beside it, .DST.cairn-convert. If convert is interrupted and
started again with the same arguments, it keeps the files that are finished; a DST
of one file starts over. If the source or the flags have changed, it starts
afresh. To discard the files of an interrupted run, remove that directory.

DST may be an existing folder without a checkpoint, perhaps with a config.json.
Convert moves its files into the folder when all are complete, the file that makes
it a checkpoint last, and changes nothing else there. With --overwrite, the new
checkpoint replaces a checkpoint at DST in one step; other files in the folder
stay. Convert replaces nothing but checkpoints that cairn reads, and never SRC.

FORMAT is native, torchdcp, hf, torch or hyper; see 'cairn help formats'. Without
--to the suffix of DST decides: .pt, .pth, .bin and .ckpt mean one file of torch,
.safetensors means one file of hf.

GLOB is a pattern of names in SRC; see 'cairn help patterns'. If several rules
apply, the last one counts.

  --rename FROM=TO     names of the form FROM become TO; each star in TO is what
                       the star in FROM stood for: 'model.*=*' takes a prefix
                       away, '*=model.*' puts one in front
  --rename s/RE/TO/    the first match of a regular expression becomes TO, with a
                       g behind it every match; $1 or ${1} is the first group
  --dtype DTYPE        casts all floating-point tensors
  --dtype GLOB=DTYPE   casts the tensors that match, of any type; see 'cairn help
                       dtypes' for the names

Each pattern and each rule has to match something.

Tensors keep their sharding, unless the format holds only whole tensors (hf,
torch): then convert merges them. --world-size N cuts dimension 0 of every tensor
over N ranks, as PyTorch's FSDP does; --mesh 2x4 cuts dimension 0 over 2 and
dimension 1 over 4. --placement 'GLOB=S(0),R' says for each dimension of the mesh
which dimension of the tensor it cuts, or that it replicates. Tensors that cannot
be cut in this way stay whole. With any of these flags, hf is written in PyTorch's
distributed form.

--dequantize reads quantised weights of hf as the numbers they stand for: 8-bit
floats with a scale for each block (X.weight with X.weight_scale_inv; the size of
a block is in SRC's config.json, or 128 by 128) and 4-bit floats with a scale for
each group (X_blocks with X_scales). They become float32, so --dtype bf16 is often
useful too. The scales are left out. A source without quantised weights is
refused. Convert never copies config.json: the one for DST must not say that
weights are quantised.

DST records the step, the tags and the time of SRC if it is native or hf; the
other formats have no place for them. If SRC keeps no step, its state may hold
one: an integer called step, global_step or iteration at the top. --step and --tag
set the step and add tags; they are refused if DST cannot record them.

With --json:

  source, target, from, to     what was converted, and the formats
  save_id, step                of the new checkpoint; step is null if unknown
  tensors, objects, nbytes     what was written
  skipped                      objects that the format cannot hold, left out by
                               --skip-objects
  ranks                        how many ranks it is written for
  files, file_bytes            data files, with headers
  kept_files                   those that an earlier run had finished
  seconds                      how long it took

With --dry-run and --json:

  source, target, from, to, dry_run
  tensors, objects, nbytes, source_nbytes
                               what would be written, and its size in the source
  left_out, renamed, cast, sharded, chunks
                               how many names are left out, get another name,
                               another type, are cut, and into how many pieces
  skipped                      objects that the format cannot hold, which
                               --skip-objects leaves out; absent if there are
                               no such objects
  ranks, rank_nbytes           how many ranks, and the bytes of each
  continues, kept_files        true if an interrupted run would be continued, and
                               how many files it has finished; absent if not
  items                        a list of name, from (the name in the source, if
                               another), kind, dtype, from_dtype, shape, nbytes
                               and chunks`,
		Example: `  cairn convert runs/step-1000 out --to torchdcp
  cairn convert runs/step-1000 hf-model --to hf --select 'model.*' --rename 'model.*=*' --dtype bfloat16
  cairn convert dcp-checkpoint model.pt
  cairn convert model.safetensors runs/step-0 --to native --world-size 8
  cairn convert a b --to native --mesh 2x4 --placement '*.bias=R,R' --dry-run
  cairn convert a b --to hf --rename 's/layers\.(\d+)/h.$1/' --max-shard-size 2GB`,
		Args:              wantArgs(2, 2),
		ValidArgsFunction: completeConversion,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args[0], args[1])
		},
	}
	f.add(cmd)
	fl := cmd.Flags()
	fl.IntVar(&f.worldSize, "world-size", 0, "write for `N` ranks")
	fl.StringVar(&f.mesh, "mesh", "", "arrange the ranks as a mesh, such as `2x4`")
	fl.StringArrayVar(&f.placement, "placement", nil, "`rule` such as 'GLOB=S(0),R' for how the mesh cuts tensors (repeatable)")
	return cmd
}

// conversionFlags are the flags of convert and merge.
type conversionFlags struct {
	to                              string
	include, exclude, rename, dtype []string
	shards                          int
	maxShard                        sizeFlag
	worldSize                       int
	mesh                            string
	placement                       []string
	memory                          sizeFlag
	parallel                        int
	dryRun, skipObjects, overwrite  bool
	dequantize                      bool
	step                            int64
	tags                            []string
	// merge makes whole tensors, and the source's own format the default.
	merge bool
}

// add adds the flags that both commands have.
func (f *conversionFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.to, "to", "", "`format` of DST")
	fl.StringArrayVar(&f.include, "select", nil, "convert only names that match this `glob` (repeatable)")
	fl.StringArrayVar(&f.exclude, "exclude", nil, "leave out names that match this `glob` (repeatable)")
	fl.StringArrayVar(&f.rename, "rename", nil, "`rule` for names, FROM=TO or s/RE/TO/ (repeatable, one after the other)")
	fl.StringArrayVar(&f.dtype, "dtype", nil, "`rule` for element types, DTYPE or GLOB=DTYPE (repeatable)")
	fl.IntVar(&f.shards, "shards", 0, "number of data files, `N`, of each rank")
	fl.Var(&f.maxShard, "max-shard-size", "begin a new data file beyond this `size` (default 5GB)")
	fl.Var(&f.memory, "memory", "bound of the buffers")
	fl.IntVar(&f.parallel, "parallel", 0, "number of reads and of ranks that are written at the same time, `N` (default 4, or one for each processor)")
	fl.BoolVarP(&f.dryRun, "dry-run", "n", false, "print what would be done, and write nothing")
	fl.BoolVar(&f.skipObjects, "skip-objects", false, "leave out objects that the format cannot hold")
	fl.BoolVar(&f.overwrite, "overwrite", false, "replace a checkpoint at DST, once the new one is complete")
	fl.Int64Var(&f.step, "step", 0, "training step to record, `N` (default that of SRC)")
	fl.StringArrayVar(&f.tags, "tag", nil, "tag to record, `KEY=VALUE` (repeatable)")
	fl.BoolVar(&f.dequantize, "dequantize", false, "read quantised weights of hf as the numbers they stand for")
	hideDefault(fl, "max-shard-size")
	hideDefault(fl, "step")
	// These fail for unknown flags only.
	_ = cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions(formats.Names(), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("dtype", completeDTypes)
	for _, name := range []string{"select", "exclude"} {
		_ = cmd.RegisterFlagCompletionFunc(name, completeFlagNames)
	}
}

// hideDefault takes the default of a flag, which is nothing, out of its help.
func hideDefault(fl *pflag.FlagSet, name string) { fl.Lookup(name).DefValue = "" }
