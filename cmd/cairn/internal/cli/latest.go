package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

func newLatestCmd() *cobra.Command {
	var wait bool
	var timeout time.Duration
	var remote string
	cmd := newCommand("latest", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		if timeout < 0 || cmd.Flags().Changed("timeout") && !wait {
			return usagef(cmd, "--timeout needs --wait, and must not be negative")
		}
		return runLatest(cmd, args[0], &cairn.LatestOptions{Wait: wait, Remote: remote}, timeout)
	})
	cmd.Flags().StringVar(&remote, "remote", "", "look also in the run at this `address`, to which the saves of RUN are uploaded")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until no save is under way")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "with --wait: give up after this `duration`, such as 30m")
	hideDefault(cmd.Flags(), "timeout")
	return cmd
}

func runLatest(cmd *cobra.Command, address string, opts *cairn.LatestOptions, timeout time.Duration) error {
	run := address
	if path, local, err := file.LocalPath(address); err != nil {
		return err
	} else if local {
		run = path
	}

	ctx, o := cmd.Context(), outputOf(cmd)
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}

	if opts.Wait {
		for _, address := range []string{run, opts.Remote} {
			if problem := cannotWait(ctx, address); problem != "" {
				o.warn("warning: %s", clean(problem))
			}
		}
		opts.Waiting = func(err error) { o.warn("waiting: %s", clean(oneLine(err.Error()))) }
	}

	f, err := cairn.Latest(ctx, run, opts)
	if err != nil {
		return withHint(err, latestHint(ctx, run, opts.Remote, err))
	}

	return o.result(f, func() {
		path := f.Path
		if isLocal(path) {
			path = filepath.Clean(path)
		}
		fmt.Fprintln(o.out, clean(path))
		if !isLocal(path) && isUncertain(ctx, path) {
			o.warn("%s: %s", clean(blob.Redact(path)), uncertainText)
		}
		for _, s := range f.Skipped {
			o.warn("skipped %s: %s", clean(blob.Redact(s.Path)), clean(oneLine(s.Problem)))
		}
		if len(f.Skipped) > 0 {
			o.warn("'cairn log %s' lists all of its checkpoints", quoteArg(blob.Redact(address)))
		}
	})
}

// cannotWait says which saves to an address --wait does not wait for. It ignores errors,
// because only a warning depends on it.
func cannotWait(ctx context.Context, address string) string {
	if address == "" || isLocal(address) || blob.Scheme(address) == "memory" {
		return "" // saves to memory have locks on the host of rank 0
	}
	s, err := blob.OpenAddress(ctx, address)
	if err != nil {
		return ""
	}
	shown := blob.Redact(address)
	base, _ := blob.Locate(s, "") // a folder of a store has the methods, but not the locks
	if _, ok := base.(blob.Locker); !ok {
		return fmt.Sprintf("waiting has no effect: %s has no locks", shown)
	}
	return fmt.Sprintf("there is no waiting for a save to %s that began less than %v ago, because such saves have no lock in object storage yet", shown, commit.LockAfter)
}

// isUncertain reports whether the commit of a save at an address is uncertain. It ignores
// errors, because only a warning depends on it.
func isUncertain(ctx context.Context, address string) bool {
	s, err := blob.OpenAddress(ctx, address)
	return err == nil && errors.Is(commit.CheckUncertain(ctx, s), cairn.ErrUncertain)
}

func latestHint(ctx context.Context, run, remote string, err error) string {
	shown := quoteArg(blob.Redact(run))
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "a saver whose trainer has ended gives up after 30 minutes"
	case errors.Is(err, cairn.ErrUnderWay):
		return "--wait waits until it is over"
	case errors.Is(err, cairn.ErrCorrupt):
		return verifyHint(ctx, run)
	case errors.Is(err, cairn.ErrNotFound):
		if s, err := readSettings(ctx, run); err == nil && s.Remote != "" && remote == "" {
			return fmt.Sprintf("the run is uploaded: '--remote %s' looks there too", quoteArg(s.Remote))
		}
		if _, err := os.Stat(run); isLocal(run) && errors.Is(err, fs.ErrNotExist) {
			return "check the path; the first save of a run makes its folder"
		}
		hint := fmt.Sprintf("%s is taken as the folder of a run, with a folder for each checkpoint", shown)
		if l := leftoversOfRun(ctx, run); l != nil {
			hint += "; " + strings.Join(l.lines(blob.Redact(run)), "; ")
		}
		return hint
	}
	return ""
}

// verifyHint names the damaged checkpoint of a run.
func verifyHint(ctx context.Context, run string) string {
	dirs, _ := foldersOf(ctx, run)
	for _, dir := range dirs[:min(len(dirs), maxBelowURL)] {
		c, err := cairn.Open(ctx, dir.store)
		if err == nil {
			missing, _ := c.MissingFiles(ctx)
			c.Close()
			if len(missing) == 0 {
				continue
			}
			err = cairn.ErrCorrupt
		}
		if errors.Is(err, cairn.ErrCorrupt) {
			return fmt.Sprintf("'cairn verify %s' lists what is damaged", quoteArg(blob.Redact(dir.address)))
		}
	}
	return ""
}
