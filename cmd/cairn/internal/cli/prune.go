package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/run"
)

// pruneResult is the output of 'cairn prune --json'.
type pruneResult struct {
	Path       string `json:"path"`
	RemotePath string `json:"remote_path,omitempty"`
	Keep       string `json:"keep"`
	KeepRemote string `json:"keep_remote"`
	DryRun     bool   `json:"dry_run"`
	*run.Report
}

type pruneFlags struct {
	settingsFlags
	dryRun, force, yes, taggedToo bool
}

func newPruneCmd() *cobra.Command {
	var f pruneFlags
	cmd := newCommand("prune", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return f.run(cmd, args[0])
	})
	f.add(cmd)
	cmd.Flags().BoolVarP(&f.dryRun, "dry-run", "n", false, "only show the copies that would be removed")
	cmd.Flags().BoolVar(&f.force, "force", false, "also remove checkpoints that are not uploaded yet")
	cmd.Flags().BoolVar(&f.taggedToo, "tagged-too", false, "with --keep or --keep-remote: also remove checkpoints with tags")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	return cmd
}

func (f *pruneFlags) run(cmd *cobra.Command, address string) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	r, s, err := f.openRun(cmd, address)
	if err != nil {
		return err
	}

	given := cmd.Flags().Changed("keep") || cmd.Flags().Changed("keep-remote")
	if !given && s.Keep.KeepsAll() && s.KeepRemote.KeepsAll() {
		return withHint(usagef(cmd, "%s has no policy, so that nothing would be removed", r),
			fmt.Sprintf("try one with 'cairn prune %s --keep \"last 3\" --dry-run', and store it with 'cairn settings'", quoteArg(r.String())))
	}

	opts := &run.PruneOptions{Keep: s.Keep, KeepRemote: s.KeepRemote, Force: f.force, DryRun: f.dryRun, KeepTagged: given && !f.taggedToo}
	total := int64(0)
	if ask := f.asker(cmd, o); ask != nil {
		opts.Confirmed = true
		if total, err = f.confirm(ctx, o, r, *opts, ask); err != nil || total < 0 {
			return err
		}
	}

	var rep *run.Report
	err = o.withProgress("prune", total, func(moved func(int64)) (err error) {
		opts.Removed = func(p *run.Pruned) { moved(p.Bytes) }
		rep, err = r.Prune(ctx, opts)
		return err
	})
	if rep == nil {
		return err
	}

	if err == nil && len(rep.Local)+len(rep.Remote) == 0 {
		return noCheckpoints(ctx, address)
	}

	res := &pruneResult{r.String(), blob.Redact(s.Remote), s.Keep.String(), s.KeepRemote.String(), f.dryRun, rep}
	for _, list := range [][]run.Pruned{rep.Local, rep.Remote} {
		for i := range list {
			list[i].Path = blob.Redact(list[i].Path)
		}
	}

	if outErr := o.result(res, func() { printPruned(o, res, total == 0) }); outErr != nil {
		return outErr
	}
	return withHint(err, "the same command goes on from there")
}

// asker returns the terminal at which the user confirms the removal, or nil if no
// confirmation is needed.
func (f *pruneFlags) asker(cmd *cobra.Command, o *output) io.Reader {
	in, ok := cmd.InOrStdin().(*os.File)
	if f.yes || f.dryRun || o.json || !ok || !isTerminal(in) || !isTerminal(o.err) {
		return nil
	}
	return in
}

// confirm shows the checkpoints that would be removed and asks. It returns the number of
// bytes, or -1 if the answer is not yes. It does not ask if no checkpoint would be removed.
func (f *pruneFlags) confirm(ctx context.Context, o *output, r *run.Run, opts run.PruneOptions, in io.Reader) (int64, error) {
	opts.DryRun = true
	rep, err := r.Prune(ctx, &opts)
	if err != nil || rep.Count == 0 {
		return 0, err // interrupted removals may be left
	}
	printVerdicts(o, rep)
	for _, w := range rep.Warnings {
		o.warn("warning: %s", clean(w))
	}
	remote := ""
	if n := len(slices.DeleteFunc(slices.Clone(rep.Remote), func(p run.Pruned) bool { return p.Outcome != run.WouldRemove })); n > 0 {
		remote = fmt.Sprintf(", %d of them from %s", n, clean(r.Remote.String()))
	}
	fmt.Fprintf(o.err, "Remove %s, %s%s? [y/N] ", plural(rep.Count, "checkpoint"), formatBytes(rep.Bytes), remote)
	yes, err := answer(ctx, in)
	if err == nil && !yes {
		o.remark("nothing was removed\n")
		return -1, nil
	}
	return rep.Bytes, err
}

// answer reads a line and reports whether it means yes. If ctx ends, it returns its cause at
// once; the goroutine that reads ends with the program.
func answer(ctx context.Context, in io.Reader) (bool, error) {
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n') // without a line, the answer is no
		lines <- line
	}()
	select {
	case line := <-lines:
		return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(line))), nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// printPruned prints the outcome. The table was printed before if a terminal was asked.
func printPruned(o *output, res *pruneResult, table bool) {
	stays := func(p run.Pruned) bool {
		return !slices.Contains([]run.Outcome{run.Kept, run.Removed, run.WouldRemove}, p.Outcome)
	}
	if table {
		printVerdicts(o, res.Report)
	}
	for _, p := range slices.Concat(res.Local, res.Remote) {
		if p.Problem != "" && (stays(p) || p.Outcome == run.Kept) {
			o.warn("%s: %s: %s", clean(shownPath(p.Path)), p.Outcome, clean(oneLine(p.Problem)))
		}
	}
	for _, w := range res.Warnings {
		o.warn("warning: %s", clean(w))
	}
	word := "removed"
	if res.DryRun {
		word = "would be removed"
	}
	o.remark("%s: %s %s, %s\n", clean(res.Path), plural(res.Count, "checkpoint"), word, formatBytes(res.Bytes))
	if n := len(res.Flattened); n > 0 {
		o.remark("%s, so that others need not stay: %s\n", standAlone(n, res.DryRun), clean(strings.Join(res.Flattened, ", ")))
	}
	printStaying(o, slices.Concat(res.Local, res.Remote))
	if slices.ContainsFunc(res.Local, func(p run.Pruned) bool { return p.Outcome == run.NotUploaded }) {
		o.remark("'cairn sync %s' uploads these checkpoints; --force removes them without an upload\n", quoteArg(res.Path))
	}
}

// standAlone says that n checkpoints stand alone now, or would.
func standAlone(n int, dryRun bool) string {
	if dryRun {
		return plural(n, "checkpoint") + " would be made to stand alone"
	}
	return plural(n, "checkpoint") + " made to stand alone"
}

// printVerdicts prints the outcome for each copy, and the reasons.
func printVerdicts(o *output, rep *run.Report) {
	headings := []string{"CHECKPOINT", ">STEP", ">SIZE", "OUTCOME", "WHY"}
	if len(rep.Remote) > 0 {
		headings = append(headings, "PLACE")
	}
	t := newRows(headings...)
	for i, list := range [][]run.Pruned{rep.Local, rep.Remote} {
		for _, p := range list {
			cells := []string{clean(p.Name), formatStep(p.Step), formatBytes(p.Bytes), string(p.Outcome), clean(strings.Join(p.Reasons, ", "))}
			if len(rep.Remote) > 0 {
				cells = append(cells, []string{"local", "remote"}[i])
			}
			t.add(cells...)
		}
	}
	o.table(t)
}
