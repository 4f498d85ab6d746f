package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/storage"
)

// verdict is what 'cairn verify --json' prints.
type verdict struct {
	Path   string `json:"path"`
	SaveID string `json:"save_id"`
	OK     bool   `json:"ok"`
	*storage.VerifyReport
	Seconds float64 `json:"seconds"`
}

func newVerifyCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "verify PATH",
		Short: "Check every byte of a checkpoint",
		Long: `Verify reads every byte of a checkpoint and checks it: every file and every block
against their checksums, the index against the record, the chunks against the
shapes of their tensors, the headers of the data files against the index. It
lists all that is wrong and ends with exit code 5 if anything is.

With --json:

  path, save_id           which checkpoint it is
  ok                      whether it is whole
  files, chunks, bytes    what was checked
  problems                a list of file, fqn (none where the file as a whole is
                          damaged) and problem
  seconds                 how long it took`,
		Example: `  cairn verify runs/step-1000
  cairn verify runs/step-1000 --quiet || echo damaged
  cairn verify runs/step-1000 --json | jq -r '.problems[].fqn'`,
		Args:              wantArgs(1, 1),
		ValidArgsFunction: completePath,
		RunE:              runVerify,
	}
}

func runVerify(cmd *cobra.Command, args []string) error {
	c, err := openCheckpoint(cmd.Context(), args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	o := outputOf(cmd)
	bar := o.progress("verify", c.TotalBytes())
	defer bar.done()
	start := time.Now()
	rep, err := c.Verify(cmd.Context(), bar.add)
	bar.done()
	if rep == nil {
		return err
	}
	v := verdict{args[0], c.Info().SaveID, err == nil, rep, time.Since(start).Seconds()}
	if outErr := o.result(v, func() { o.verdict(&v) }); outErr != nil {
		return outErr
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %s: %w", args[0], plural(len(rep.Problems), "problem"), cairn.ErrCorrupt)
	return withHint(err, "everything else in it can still be read; damaged files have to come from another copy")
}

func (o *output) verdict(v *verdict) {
	if v.OK {
		o.remark("%s: %s: %s in %s, %s checked in %s (%s)\n", clean(v.Path), o.good("ok"), plural(v.Chunks, "chunk"),
			plural(v.Files, "file"), formatBytes(v.Bytes), formatSeconds(v.Seconds), formatRate(float64(v.Bytes)/max(v.Seconds, 1e-9)))
		return
	}
	t := newRows("FILE", "NAME", "PROBLEM")
	for _, p := range v.Problems {
		t.add(clean(p.File), clean(p.FQN), clean(strings.TrimSpace(p.Text)))
	}
	t.print(o.out, "")
}
