package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// runsResult is the output of 'cairn runs --json'.
type runsResult struct {
	Runs []runSummary `json:"runs"`
}

// runSummary describes a run.
type runSummary struct {
	Path   string `json:"path"`
	Remote string `json:"remote,omitempty"`
	// Step and Time are of the newest complete checkpoint of the current line.
	Step        *int64    `json:"step"`
	Time        time.Time `json:"time,omitzero"`
	Checkpoints int       `json:"checkpoints"`
	Incomplete  int       `json:"incomplete"`
	Bytes       int64     `json:"bytes"`
	RemoteBytes int64     `json:"remote_bytes"`
	NotUploaded int       `json:"not_uploaded"`
	Tags        []string  `json:"tags"`
	Keep        string    `json:"keep"`
	Problem     string    `json:"problem,omitempty"`
}

func newRunsCmd() *cobra.Command {
	var depth int
	cmd := newCommand("runs", wantArgs(0, -1), completePaths(maxPaths), func(cmd *cobra.Command, args []string) error {
		if depth < 0 {
			return usagef(cmd, "--depth %d: want 0 or more", depth)
		}
		return runRuns(cmd, args, depth)
	})
	cmd.Flags().IntVar(&depth, "depth", 2, "search this `number` of levels of folders below each DIR")
	return cmd
}

// maxPaths is the number of paths that a command completes if it takes any number of them.
const maxPaths = 1 << 20

func runRuns(cmd *cobra.Command, dirs []string, depth int) error {
	ctx, o := cache.Without(cmd.Context()), outputOf(cmd)
	if len(dirs) == 0 {
		dirs = []string{"."}
	}
	res := runsResult{Runs: []runSummary{}}
	for _, dir := range dirs {
		if err := checkFolder(dir); err != nil {
			return err
		}
		if err := res.search(ctx, dir, depth); err != nil {
			return err
		}
	}
	if err := o.result(res, func() { printRuns(o, &res) }); err != nil {
		return err
	}
	if len(res.Runs) == 0 {
		if len(dirs) == 1 && formatOf(ctx, dirs[0]) != "" {
			return noCheckpoints(ctx, dirs[0])
		}
		for i := range dirs {
			dirs[i] = blob.Redact(dirs[i])
		}
		err := fmt.Errorf("%s: %w in its folders", strings.Join(dirs, ", "), cairn.ErrNotFound)
		return withHint(err, fmt.Sprintf("runs are searched %s below DIR: --depth changes that", plural(depth, "level")))
	}
	return nil
}

// search adds the runs at an address and below it.
func (res *runsResult) search(ctx context.Context, address string, depth int) error {
	local, err := run.Open(ctx, address, "")
	if err != nil {
		return err
	}
	s, problem := run.ReadSettings(ctx, local.Local.Store)
	r, all, err := checkpointsOf(ctx, address, s.Remote)
	if err != nil && s.Remote != "" && ctx.Err() == nil { // the remote run does not answer
		problem = errors.Join(problem, err)
		r, all, err = checkpointsOf(ctx, address, "")
	}
	if err != nil {
		return err
	}
	out := summarize(r, all, &s)
	out.Path, out.Remote = blob.Redact(address), blob.Redact(s.Remote)
	if problem != nil {
		out.Problem = problem.Error()
	}
	// A folder that cannot be read, such as lost+found, counts as an incomplete checkpoint.
	if out.Checkpoints > 0 || out.Bytes > 0 || problem != nil || s.Remote != "" || !s.Keep.KeepsAll() {
		res.Runs = append(res.Runs, out)
	}
	if depth == 0 {
		return nil
	}
	return res.below(ctx, r, all, depth-1)
}

// checkpointsOf opens a run and returns its checkpoints.
func checkpointsOf(ctx context.Context, address, remote string) (*run.Run, []run.Checkpoint, error) {
	r, err := run.Open(ctx, address, remote)
	if err != nil {
		return nil, nil, err
	}
	all, err := r.Checkpoints(ctx)
	return r, all, err
}

// below searches the folders of a run, which has these checkpoints.
func (res *runsResult) below(ctx context.Context, r *run.Run, all []run.Checkpoint, depth int) error {
	names, err := blob.Folders(ctx, r.Local.Store, "")
	if err != nil {
		return err
	}
	for _, name := range names {
		// The folder of a checkpoint is not searched, except that a Hugging Face trainer keeps
		// its checkpoints in folders of the model that it writes at the end.
		i := slices.IndexFunc(all, func(c run.Checkpoint) bool { return c.Name == name && c.Local != nil })
		if strings.HasPrefix(name, ".") || i >= 0 && all[i].Format != formats.HF {
			continue
		}
		levels := depth
		if i >= 0 {
			levels = 0
		}
		if err := res.search(ctx, r.Local.AddressOf(name), levels); err != nil {
			return err
		}
	}
	return nil
}

// summarize describes a run by its checkpoints.
func summarize(r *run.Run, all []run.Checkpoint, s *run.Settings) runSummary {
	out := runSummary{Tags: []string{}, Keep: s.Keep.String(), NotUploaded: len(r.Lacking(all, s.KeepRemote, time.Now()))}
	headed := false
	for i := range all {
		c := &all[i]
		if c.Local != nil {
			out.Bytes += c.Local.Bytes
		}
		if c.Remote != nil {
			out.RemoteBytes += c.Remote.Bytes
		}
		if !c.Complete() {
			out.Incomplete++
			continue
		}
		out.Checkpoints++
		if c.Head || !headed {
			out.Step, out.Time, headed = c.Step, c.Time, c.Head
		}
		out.Tags = append(out.Tags, c.Tags...)
	}
	slices.Sort(out.Tags)
	out.Tags = slices.Compact(out.Tags)
	return out
}

func printRuns(o *output, res *runsResult) {
	if len(res.Runs) == 0 {
		return
	}
	t := newRows("RUN", ">STEP", ">AGE", ">CHECKPOINTS", ">SIZE", ">NOT UPLOADED", "TAGS")
	var bytes int64
	for _, r := range res.Runs {
		missing := ""
		if r.Remote != "" {
			missing = strconv.Itoa(r.NotUploaded)
			if r.Problem != "" {
				missing = "?"
			}
		}
		t.add(clean(shownPath(r.Path)), formatStep(r.Step), formatAge(r.Time), strconv.Itoa(r.Checkpoints), formatBytes(r.Bytes), missing, clean(strings.Join(r.Tags, " ")))
		bytes += r.Bytes
	}
	o.table(t)
	for _, r := range res.Runs {
		if r.Problem != "" {
			o.warn("%s: %s", clean(r.Path), clean(oneLine(r.Problem)))
		}
	}
	o.remark("\n%s, %s; 'cairn log RUN' lists the checkpoints of one\n", plural(len(res.Runs), "run"), formatBytes(bytes))
}

// shownPath returns a path without needless elements, and a URL as it is.
func shownPath(address string) string {
	if isLocal(address) && !strings.Contains(address, "://") {
		return filepath.Clean(address)
	}
	return address
}

// formatAge prints how long ago a time was, or "" if it is unknown.
func formatAge(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	switch d := max(0, time.Since(t)); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	default:
		return fmt.Sprintf("%d d", d/(24*time.Hour))
	}
}
