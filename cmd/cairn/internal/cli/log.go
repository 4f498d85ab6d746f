package cli

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/run"
)

// logResult is what 'cairn log --json' prints.
type logResult struct {
	settingsResult
	Checkpoints []logCheckpoint `json:"checkpoints"`
	Bytes       int64           `json:"bytes"`
	RemoteBytes int64           `json:"remote_bytes"`
	// Removable and RemovableBytes are what 'cairn prune' would remove.
	Removable      int      `json:"removable"`
	RemovableBytes int64    `json:"removable_bytes"`
	Warnings       []string `json:"warnings"`

	// The flags that replace settings, for the commands of hints.
	syncFlags, pruneFlags string
}

// logCheckpoint describes a checkpoint of a run.
type logCheckpoint struct {
	run.Checkpoint
	Copies      string `json:"copies"`
	NotUploaded bool   `json:"not_uploaded"`
	// Verdict and RemoteVerdict are what prune would do with the copies. Nil: there is no
	// such copy, or no policy.
	Verdict       *logVerdict `json:"verdict,omitempty"`
	RemoteVerdict *logVerdict `json:"remote_verdict,omitempty"`
}

// logVerdict is what prune would do with a copy, and why.
type logVerdict struct {
	Outcome run.Outcome `json:"outcome"`
	Reasons []string    `json:"reasons"`
}

func newLogCmd() *cobra.Command {
	var f settingsFlags
	cmd := newCommand("log", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return runLog(cmd, &f, args[0])
	})
	f.add(cmd)
	return cmd
}

func runLog(cmd *cobra.Command, f *settingsFlags, address string) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	r, s, err := f.openRun(cmd, address)
	if err != nil {
		return err
	}
	all, err := r.Checkpoints(ctx)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return noCheckpoints(ctx, address)
	}
	res := &logResult{settingsResult: settingsResult{r.String(), blob.Redact(s.Remote), s.Keep.String(), s.KeepRemote.String()}, Warnings: []string{}, syncFlags: f.given(cmd, "remote", "keep-remote"), pruneFlags: f.given(cmd, "keep", "remote", "keep-remote")}
	res.add(all, r.Lacking(all, s.KeepRemote, time.Now()))
	if !s.Keep.KeepsAll() || !s.KeepRemote.KeepsAll() {
		rep, err := r.Plan(all, &run.PruneOptions{Keep: s.Keep, KeepRemote: s.KeepRemote})
		if err != nil {
			return err
		}
		res.judge(rep, &s)
	}
	return o.result(res, func() { printLog(o, res) })
}

// add adds the checkpoints of a run, of which the remote place lacks some.
func (res *logResult) add(all, lacking []run.Checkpoint) {
	for _, c := range all {
		l := logCheckpoint{Checkpoint: c, Copies: c.Copies()}
		for _, copied := range []**run.Copy{&l.Local, &l.Remote} {
			if *copied != nil {
				shown := **copied
				shown.Path = blob.Redact(shown.Path)
				*copied = &shown
			}
		}
		if l.Local != nil {
			res.Bytes += l.Local.Bytes
		}
		if l.Remote != nil {
			res.RemoteBytes += l.Remote.Bytes
		}
		l.NotUploaded = slices.ContainsFunc(lacking, func(x run.Checkpoint) bool { return x.Name == c.Name })
		res.Checkpoints = append(res.Checkpoints, l)
	}
}

// judge adds what prune would do.
func (res *logResult) judge(rep *run.Report, s *run.Settings) {
	find := func(list []run.Pruned, name string) *logVerdict {
		if i := slices.IndexFunc(list, func(p run.Pruned) bool { return p.Name == name }); i >= 0 {
			return &logVerdict{list[i].Outcome, list[i].Reasons}
		}
		return nil
	}
	for i := range res.Checkpoints {
		c := &res.Checkpoints[i]
		if !s.Keep.KeepsAll() {
			c.Verdict = find(rep.Local, c.Name)
		}
		if !s.KeepRemote.KeepsAll() {
			c.RemoteVerdict = find(rep.Remote, c.Name)
		}
	}
	res.Removable, res.RemovableBytes, res.Warnings = rep.Count, rep.Bytes, rep.Warnings
}

// state returns the state of a checkpoint for people.
func (c *logCheckpoint) state(hasRemote bool) string {
	for _, copied := range []*run.Copy{c.Local, c.Remote} {
		if copied != nil && copied.State == run.UnderWay {
			return string(run.UnderWay)
		}
	}
	switch {
	case c.Copies == "":
		return string(run.Incomplete)
	case c.NotUploaded:
		return "not uploaded"
	case c.Copies == "differ":
		return "copies differ"
	case hasRemote:
		return c.Copies
	}
	return string(run.Complete)
}

// text returns the reasons for which a copy is kept, or what prune would do with it.
func (v *logVerdict) text() string {
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
	local := slices.ContainsFunc(res.Checkpoints, func(c logCheckpoint) bool { return c.Verdict != nil })
	remote := slices.ContainsFunc(res.Checkpoints, func(c logCheckpoint) bool { return c.RemoteVerdict != nil })
	if local {
		headings = append(headings, "KEPT BY")
	}
	if remote {
		headings = append(headings, "KEPT THERE BY")
	}
	t := newRows(headings...)
	for i := range res.Checkpoints {
		c := &res.Checkpoints[i]
		cells := []string{clean(c.Name), formatStep(c.Step), formatAge(c.Time), formatBytes(c.Bytes), c.state(hasRemote), formatMetrics(c.Metrics), clean(strings.Join(c.Tags, " "))}
		if local {
			cells = append(cells, clean(c.Verdict.text()))
		}
		if remote {
			cells = append(cells, clean(c.RemoteVerdict.text()))
		}
		t.add(cells...)
	}
	o.table(t)
	res.printProblems(o)
	res.printTotals(o)
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
				o.warn("%s: %s", clean(shownPath(copied.Path)), clean(oneLine(copied.Problem)))
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
	lacking, referring := 0, 0
	for i := range res.Checkpoints {
		if res.Checkpoints[i].NotUploaded {
			lacking++
		}
		if len(res.Checkpoints[i].Bases) > 0 {
			referring++
		}
	}
	if referring > 0 {
		o.remark("%s with references to others: see 'cairn help flatten'\n", plural(referring, "checkpoint"))
	}
	if lacking > 0 {
		o.remark("%s not uploaded yet: 'cairn sync %s%s'\n", plural(lacking, "checkpoint"), path, res.syncFlags)
	}
	if res.Removable > 0 {
		o.remark("%s, %s, would be removed: 'cairn prune %s%s'\n", plural(res.Removable, "checkpoint"), formatBytes(res.RemovableBytes), path, res.pruneFlags)
	}
}
