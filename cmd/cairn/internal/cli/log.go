package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// logResult is the output of 'cairn log --json'.
type logResult struct {
	*run.Log
	// Memory are the runs that jobs have beside this one in the memory of this host.
	Memory []logInMemory `json:"memory,omitempty"`

	// The flags that replace settings, for the commands of hints.
	syncFlags, pruneFlags string
}

// logInMemory is a run in the memory of this host, beside a durable run.
type logInMemory struct {
	Path        string       `json:"path"`
	Checkpoints []run.Logged `json:"checkpoints"`
	Problem     string       `json:"problem,omitempty"`
}

// inMemory returns the runs that jobs have beside a run in the memory of this host. An error is a problem
// of one of them.
func inMemory(ctx context.Context, address string) (out []logInMemory) {
	names, err := ram.RunsBeside(address)
	if err != nil {
		return nil // the address was used before
	}
	for _, name := range names {
		x := logInMemory{Path: "memory://" + name, Checkpoints: []run.Logged{}}
		r, err := run.Open(ctx, x.Path, "")
		var all []run.Checkpoint
		if err == nil {
			all, err = r.Checkpoints(ctx)
		}
		var l *run.Log
		if err == nil && len(all) > 0 {
			l, err = r.Log(all, run.Settings{}, false)
		}
		if l != nil {
			x.Checkpoints = l.Checkpoints
		}
		if err != nil {
			x.Problem = err.Error()
		}
		out = append(out, x)
	}
	return out
}

// printInMemory prints the runs in memory beside a run.
func printInMemory(o *output, all []logInMemory) {
	for _, m := range all {
		if len(m.Checkpoints) > 0 {
			o.remark("\nin memory, on the hosts of the job: %s\n", m.Path)
			t := newRows("CHECKPOINT", ">STEP", ">AGE", ">SIZE", "STATE")
			for i := range m.Checkpoints {
				c := &m.Checkpoints[i]
				t.add(clean(c.Name), formatStep(c.Step), formatAge(c.Time), formatBytes(c.Bytes), formatState(c, false))
			}
			o.table(t)
		}
		if m.Problem != "" {
			o.warn("%s: %s", m.Path, clean(oneLine(m.Problem)))
		}
	}
}

func newLogCmd() *cobra.Command {
	var f settingsFlags
	var best string
	cmd := newCommand("log", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return runLog(cmd, &f, args[0], best)
	})
	f.add(cmd)
	cmd.Flags().StringVar(&best, "best", "", "list only the checkpoint that is the best by this `metric`")
	completeFlag(cmd, choices(), "best")
	return cmd
}

func runLog(cmd *cobra.Command, f *settingsFlags, address, best string) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	var by *run.Best
	if cmd.Flags().Changed("best") {
		rule, err := run.BestBy(best)
		if err != nil {
			return withHint(fmt.Errorf("--best: %w", err), `name a metric, such as loss, or "highest accuracy"`)
		}
		by = &rule
	}

	r, s, err := f.openRun(cmd, address)
	var unreadable error // the settings are damaged: the checkpoints are listed all the same
	if errors.Is(err, cairn.ErrCorrupt) {
		unreadable = err
	}
	beside := inMemory(ctx, address)
	saved := slices.ContainsFunc(beside, func(m logInMemory) bool { return len(m.Checkpoints) > 0 })
	if unreadable != nil || saved && errors.Is(err, fs.ErrNotExist) { // there may be saves to memory only
		r, err = run.Open(ctx, address, f.remote)
		err = errors.Join(err, f.apply(cmd, &s))
	}
	if err != nil {
		return err
	}

	all, err := r.Checkpoints(ctx)
	if err != nil {
		return err
	}
	if len(all) == 0 && !saved {
		return cmp.Or(unreadable, noCheckpoints(ctx, address))
	}

	l, err := r.Log(all, s, cmd.Flags().Changed("keep") || cmd.Flags().Changed("keep-remote"))
	if err != nil {
		return err
	}
	res := &logResult{l, beside, f.given(cmd, "remote", "keep-remote"), f.given(cmd, "keep", "remote", "keep-remote")}
	if by == nil {
		return cmp.Or(o.result(res, func() {
			if len(all) > 0 {
				printLog(o, res)
				res.printTotals(o)
			}
			printInMemory(o, beside)
		}), unreadable)
	}

	c, err := run.BestOf(all, *by)
	if err != nil {
		return fmt.Errorf("%s: %w", r, err)
	}
	l.Checkpoints = slices.DeleteFunc(l.Checkpoints, func(x run.Logged) bool { return x.Name != c.Name })
	return cmp.Or(o.result(res, func() { printLog(o, res) }), unreadable)
}

// formatState returns the state of a checkpoint for people.
func formatState(c *run.Logged, hasRemote bool) string {
	for _, copied := range []*run.Copy{c.Local, c.Remote} {
		if copied != nil && copied.State == run.UnderWay {
			return string(run.UnderWay)
		}
	}
	switch {
	case c.Copies == "":
		return string(run.Incomplete)
	case c.Copies == "differ":
		return "copies differ"
	case c.NotUploaded:
		return "not uploaded"
	case hasRemote:
		return c.Copies
	}
	return string(run.Complete)
}

// formatVerdict returns the reasons to keep a copy, or the outcome that prune would have.
func formatVerdict(v *run.LoggedVerdict) string {
	switch {
	case v == nil:
		return ""
	case v.Outcome == run.Kept:
		return strings.Join(v.Reasons, ", ")
	case v.Outcome == run.WouldRemove:
		return "would be removed"
	}
	return string(v.Outcome)
}

// formatMetrics prints metrics in the order of their names: "accuracy=0.9 loss=2.31".
func formatMetrics(m run.Metrics) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, name+"="+formatMetric(m[name]))
	}
	return clean(strings.Join(out, " "))
}

func formatMetric(v float64) string {
	if v != v {
		return "NaN"
	}
	return formatNumber(inspect.Number(v))
}

func printLog(o *output, res *logResult) {
	hasRemote := res.Remote != ""
	headings := []string{"CHECKPOINT", ">STEP", ">AGE", ">SIZE", "STATE", "METRICS", "TAGS"}

	local := slices.ContainsFunc(res.Checkpoints, func(c run.Logged) bool { return c.Verdict != nil })
	remote := slices.ContainsFunc(res.Checkpoints, func(c run.Logged) bool { return c.RemoteVerdict != nil })
	if local {
		headings = append(headings, "KEPT BY")
	}
	if remote {
		headings = append(headings, "KEPT THERE BY")
	}
	exported := slices.ContainsFunc(res.Checkpoints, func(c run.Logged) bool { return len(c.Exports) > 0 })
	if exported {
		headings = append(headings, "EXPORTS")
	}
	drawn := drawLines(res.Checkpoints)
	if drawn != nil {
		headings = append([]string{"LINE"}, headings...)
	}

	t := newRows(headings...)
	for i := range res.Checkpoints {
		c := &res.Checkpoints[i]
		cells := []string{clean(c.Name), formatStep(c.Step), formatAge(c.Time), formatBytes(c.Bytes), formatState(c, hasRemote), formatMetrics(c.Metrics), clean(strings.Join(c.Tags, " "))}

		if drawn != nil {
			cells = append([]string{drawn[i]}, cells...)
		}
		if local {
			cells = append(cells, clean(formatVerdict(c.Verdict)))
		}
		if remote {
			cells = append(cells, clean(formatVerdict(c.RemoteVerdict)))
		}
		if exported {
			cells = append(cells, string(run.ExportsState(c.Exports)))
		}
		t.add(cells...)
	}

	o.table(t)
	res.printProblems(o)
}

// printProblems prints why checkpoints are not complete, and the warnings.
func (res *logResult) printProblems(o *output) {
	for i := range res.Checkpoints {
		c := &res.Checkpoints[i]
		if c.Problem != "" {
			o.warn("%s: %s", clean(c.Name), clean(oneLine(c.Problem)))
		}
		for _, copied := range []*run.Copy{c.Local, c.Remote} {
			if copied != nil && copied.Problem != "" {
				o.warn("%s: %s", clean(shownPath(copied.Path)), clean(oneLine(strings.TrimPrefix(copied.Problem, "open "+copied.Path+": "))))
			}
		}
	}
	for i := range res.Checkpoints {
		for _, x := range res.Checkpoints[i].Exports {
			if x.State == run.ExportFailed {
				o.warn("%s: the export to %s has failed: %s", clean(res.Checkpoints[i].Name), clean(x.Export.To), clean(oneLine(x.Problem)))
			}
		}
	}
	for _, w := range res.Warnings {
		o.warn("warning: %s", clean(w))
	}
}

func (res *logResult) printTotals(o *output) {
	o.remark("\n%s, %s", plural(len(res.Checkpoints), "checkpoint"), formatBytes(res.Bytes))
	if res.Remote != "" {
		o.remark(" here and %s in %s", formatBytes(res.RemoteBytes), clean(res.Remote))
	}
	o.remark("\n")

	path := quoteArg(res.Path)
	lacking, referring, left, waiting := 0, 0, 0, 0
	var broken []string // the paths of checkpoints without a complete copy
	for i := range res.Checkpoints {
		if c := &res.Checkpoints[i]; formatState(c, false) == string(run.Incomplete) {
			broken = append(broken, cmp.Or(c.Local, c.Remote).Path)
		}
		if state := run.ExportsState(res.Checkpoints[i].Exports); state != "" && state != run.ExportDone {
			waiting++
		}
		if res.Checkpoints[i].Left {
			left++
		}
		if res.Checkpoints[i].NotUploaded {
			lacking++
		}
		if len(res.Checkpoints[i].Bases) > 0 && res.Checkpoints[i].Format == formats.Native {
			referring++
		}
	}

	if left > 0 {
		o.remark("%s on a line that was left (○): 'cairn rewind %s CHECKPOINT' goes back to one\n", plural(left, "checkpoint"), path)
	}
	if len(broken) > 0 {
		o.remark("%s not complete: 'cairn verify %s' says what can be done\n", plural(len(broken), "checkpoint"), quoteArg(broken[0]))
	}
	if referring > 0 {
		o.remark("%s with references to others: see 'cairn help flatten'\n", plural(referring, "checkpoint"))
	}
	if lacking > 0 {
		o.remark("%s not uploaded yet: 'cairn sync %s%s'\n", plural(lacking, "checkpoint"), path, res.syncFlags)
	}
	if waiting > 0 {
		o.remark("%s not exported yet: 'cairn export %s'\n", plural(waiting, "checkpoint"), path)
	}
	if res.Removable > 0 {
		o.remark("%s, %s, would be removed: 'cairn prune %s%s'\n", plural(res.Removable, "checkpoint"), formatBytes(res.RemovableBytes), path, res.pruneFlags)
	}
}
