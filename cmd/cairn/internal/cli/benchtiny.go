package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/bench"
)

func newBenchTinyCmd() *cobra.Command {
	o := bench.TinyOptions{Tensors: 200_000}
	cmd := &cobra.Command{
		Use:   "tiny",
		Short: "Measure a checkpoint of very many small tensors",
		Long: `Tiny saves a checkpoint of tensors of four elements and runs commands of cairn
on it, each as a process of its own: here the work for each name counts, not the
bytes. On a busy machine the time of the processors says more than the time that
passed.

With --json:

  tensors    their number
  steps      with step, seconds (the time that passed), cpu_seconds (of all
             processors) and peak_rss_bytes (the largest memory)`,
		Example: `  cairn bench tiny
  cairn bench tiny --tensors 20000 --json`,
		Args:              wantArgs(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(atLeastOne(cmd, "tensors"), wantFolder(cmd, o.Dir)); err != nil {
				return err
			}
			var err, errProgram error
			o.Self, err = benchChild()
			o.Program, errProgram = ownCommand()
			if err := errors.Join(err, errProgram); err != nil {
				return err
			}
			out := outputOf(cmd)
			o.Log = out.log()
			r, err := bench.Tiny(cmd.Context(), o)
			if err != nil {
				return err
			}
			return out.result(r, func() { out.benchedTiny(r) })
		},
	}
	addFolderFlag(cmd, &o.Dir)
	cmd.Flags().IntVar(&o.Tensors, "tensors", o.Tensors, "number of tensors")
	return cmd
}

func (o *output) benchedTiny(r *bench.TinyResult) {
	o.printf("%s tensors of 16 bytes\n\n", formatCount(int64(r.Tensors)))
	t := newRows("STEP", ">TIME", ">CPU", ">PEAK MEMORY")
	for _, s := range r.Steps {
		t.add(s.Step, formatSeconds(s.Seconds), formatSeconds(s.CPUSeconds), formatBytes(s.PeakRSS))
	}
	o.table(t)
}
