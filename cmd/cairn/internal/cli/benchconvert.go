package cli

import (
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/bench"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

func newBenchConvertCmd() *cobra.Command {
	f := benchFlags{size: 4 << 30}
	o := bench.ConvertOptions{From: formats.TorchDCP, To: formats.HF, Ranks: 4, Repeat: 3}
	memory := sizeFlag(512 << 20)
	cmd := &cobra.Command{
		Use:   "convert",
		Short: "Measure a conversion beside a plain copy",
		Long: `Convert saves a transformer-shaped state in one format, converts it to another,
and in the same run copies the source's files by plain reads and writes. Both are
synced, and both begin with a drop of the source's page cache. Of several rounds
the best of each counts. It needs three times the size in the folder.

With --json:

  from, to, bytes, source_files, repeat
  copy_gbs, convert_gbs, ratio    10^9 bytes a second, and ours over the copy's
  peak_rss_bytes                  the largest memory while it converts`,
		Example: `  cairn bench convert --size 4GiB --from torchdcp --to hf
  cairn bench convert --size 4GiB --from native --to torchdcp --json`,
		Args:              wantArgs(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(atLeastOne(cmd, "ranks", "repeat"), f.check(cmd, 1<<20)); err != nil {
				return err
			}
			out := outputOf(cmd)
			o.Dir, o.Bytes, o.Memory, o.Log = f.dir, int64(f.size), int64(memory), out.log()
			r, err := bench.Convert(cmd.Context(), o)
			if err != nil {
				return err
			}
			return out.result(r, func() { out.benchedConvert(r) })
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&o.From, "from", o.From, "`format` of the source")
	cmd.Flags().StringVar(&o.To, "to", o.To, "`format` of the target")
	for _, name := range []string{"from", "to"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(formats.Names(), cobra.ShellCompDirectiveNoFileComp)) // fails for unknown flags only
	}
	cmd.Flags().IntVar(&o.Ranks, "ranks", o.Ranks, "number of ranks that save the source")
	cmd.Flags().IntVar(&o.Repeat, "repeat", o.Repeat, "number of rounds")
	cmd.Flags().Var(&memory, "memory", "bound of the conversion's buffers")
	return cmd
}

func (o *output) benchedConvert(r *bench.ConvertResult) {
	o.printf("%s from %s to %s, best of %d\n\n", formatBytes(r.Bytes), r.From, r.To, r.Repeat)
	t := newRows(">COPY GB/s", ">CONVERT GB/s", ">RATIO", ">PEAK MEMORY")
	two := func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
	t.add(two(r.Copy), two(r.Convert), two(r.Ratio), formatBytes(r.PeakRSS))
	o.table(t)
}
