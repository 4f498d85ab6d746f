package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/slime"
	"github.com/cairn-ckpt/cairn/transfer"
)

// copyFlags are the flags of cp and sync.
type copyFlags struct {
	overwrite bool
	verify    string
	memory    sizeFlag
	parallel  int
	jobFlags  // of cp
}

func (f *copyFlags) addTo(cmd *cobra.Command) {
	f.memory = 256 << 20
	fl := cmd.Flags()
	fl.StringVar(&f.verify, "verify", "sums", "`how` to check the copy: sums, or full, which reads it back")
	fl.Var(&f.memory, "memory", "bound of the buffers")
	fl.IntVar(&f.parallel, "parallel", 16, "number of files, and of pieces of a file, that are copied at the same time, `N`")
	completeFlag(cmd, choices("sums", "full"), "verify")
}

func (f *copyFlags) options(cmd *cobra.Command) (*transfer.Options, error) {
	if f.verify != "sums" && f.verify != "full" {
		return nil, usagef(cmd, "--verify %s: want sums or full", clean(f.verify))
	}
	if f.parallel < 1 {
		return nil, usagef(cmd, "--parallel %d: want 1 or more", f.parallel)
	}
	return &transfer.Options{Overwrite: f.overwrite, Full: f.verify == "full", Memory: int64(f.memory), Parallel: f.parallel}, nil
}

// copyResult is the output of 'cairn cp --json'.
type copyResult struct {
	Source string `json:"source"`
	Target string `json:"target"`
	*transfer.Report
	Seconds float64 `json:"seconds"`
	copyTraffic
}

// copyTraffic counts the requests to the stores of both sides, if these stores count them.
type copyTraffic struct {
	Read    *blob.Traffic `json:"source_traffic,omitempty"`
	Written *blob.Traffic `json:"target_traffic,omitempty"`
}

func (t *copyTraffic) print(o *output, source, target string) {
	printTraffic(o, source, t.Read)
	printTraffic(o, target, t.Written)
}

func newCpCmd() *cobra.Command {
	var f copyFlags
	cmd := newCommand("cp", wantArgs(2, 2), completeConversion, func(cmd *cobra.Command, args []string) error {
		return f.jobFlags.run(cmd, args, func(g group.Group) error { return f.copy(cmd, args[0], args[1], g) })
	})
	f.addTo(cmd)
	f.jobFlags.add(cmd)
	cmd.Flags().BoolVar(&f.overwrite, "overwrite", false, "replace a checkpoint at DST")
	return cmd
}

func (f *copyFlags) copy(cmd *cobra.Command, src, dst string, g group.Group) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	opts, err := f.options(cmd)
	if err != nil {
		return err
	}

	at := checkpointAddress(ctx, src)
	if err := apart(at, dst); err != nil {
		return withHint(err, "give DST another path")
	}

	from, err := openStore(ctx, at)
	if err != nil {
		return err
	}
	to, as, err := copyTarget(ctx, from, dst)
	if err != nil {
		return err
	}
	if err := checkDelta(ctx, from, to); err != nil {
		return withHint(err, "'cairn sync' copies all versions, 'cairn convert' with --to hf writes this one as a whole checkpoint")
	}

	opts.As, opts.Group = as, g
	start, read, written := time.Now(), blob.Since(from), blob.Since(to)
	var rep *transfer.Report
	err = o.withPlanned(barLabel("cp", g), func(planned, moved func(int64)) (err error) {
		opts.Planned, opts.Progress = planned, moved
		rep, err = transfer.Copy(ctx, from, to, opts)
		return err
	})
	if err != nil {
		return withHint(err, copyHint(ctx, src, err))
	}

	r := &copyResult{blob.Redact(src), blob.Redact(dst), rep, time.Since(start).Seconds(), copyTraffic{read(), written()}}
	return o.result(r, func() { printCopied(o, r) })
}

// copyTarget opens the target of a copy. If the source is a single file, the target is
// one too, as is its name, unless dst is a folder.
func copyTarget(ctx context.Context, from blob.Store, dst string) (to blob.Store, as string, err error) {
	single, ok := blob.As[*blob.Single](from)
	if !ok {
		if path, local, err := file.LocalPath(dst); err == nil && local {
			to, err := file.Open(behindLink(path), nil)
			return to, "", err
		}
		to, err := blob.OpenAddress(cache.Without(ctx), dst)
		return to, "", err
	}
	dir, as := dst, single.Name()
	if !isFolder(dst, single.Name()) {
		if dir, as = blob.SplitAddress(filepath.ToSlash(dst)); dir == "" {
			dir = "."
		}
	}
	to, err = blob.OpenAddress(cache.Without(ctx), dir)
	return to, path.Base(as), err
}

// errNeedsBefore reports a copy of a delta version that could not be opened.
var errNeedsBefore = errors.New("a delta version opens only beside the version before it, in a folder of its name")

// checkDelta returns an error if from holds a delta version of slime and to is not a folder in
// which it opens.
func checkDelta(ctx context.Context, from, to blob.Store) error {
	if format, err := formats.Detect(ctx, from); err != nil || format != formats.Slime {
		return nil // the copy reports the error
	}
	_, name, err := blob.Parent(from)
	if err != nil {
		return err
	}
	if _, as, err := blob.Parent(to); err != nil || as != name {
		return fmt.Errorf("%w: DST must be called %s", errNeedsBefore, name)
	}
	n, _ := slime.ParseFolder(name)
	if n <= 1 {
		return nil // it is based on version 0
	}
	before, err := blob.Beside(to, slime.Folder(n-1))
	if err != nil {
		return err
	}
	if _, err := formats.Detect(ctx, before); err != nil {
		return fmt.Errorf("%w: %s holds no version: %w", errNeedsBefore, before, err)
	}
	return nil
}

// isFolder reports whether dst is the folder in which a file of that name is to appear.
func isFolder(dst, name string) bool {
	before, _, _ := strings.Cut(dst, "?")
	if strings.HasSuffix(before, "/") {
		return true
	}
	if p, local, err := file.LocalPath(dst); err == nil && local {
		fi, err := os.Stat(p)
		return err == nil && fi.IsDir()
	}
	return path.Ext(before) != path.Ext(name)
}

func copyHint(ctx context.Context, src string, err error) string {
	_, unsupported := errors.AsType[*formats.UnsupportedError](err)
	switch {
	case isOtherFormat(err):
		return "" // the error has its own advice
	case errors.Is(err, storage.ErrExists):
		return "--overwrite replaces it"
	case errors.Is(err, blob.ErrLocked), errors.Is(err, storage.ErrUnderWay):
		return "wait until it is over"
	case errors.Is(err, blob.ErrChanged):
		return "the same command copies the new checkpoint"
	case errors.Is(err, transfer.ErrOccupied):
		return "give DST another path"
	case errors.Is(err, storage.ErrNotFound) || unsupported:
		return openHint(ctx, src, err)
	case errors.Is(err, fs.ErrPermission):
		return "" // the general hint applies
	case errors.Is(err, storage.ErrCorrupt):
		return "'cairn verify " + quoteArg(src) + "' lists what is damaged"
	case errors.Is(err, storage.ErrIncomplete), errors.Is(err, storage.ErrVersion):
		return openHint(ctx, src, err)
	}
	return "the same command copies the files that are missing"
}

// isOtherFormat reports whether err is about a checkpoint of another format in the place of a
// new one.
func isOtherFormat(err error) bool {
	_, ok := errors.AsType[*storage.OtherFormatError](err)
	return ok
}

func printCopied(o *output, r *copyResult) {
	how := formatSeconds(r.Seconds)
	if moved := r.Bytes - r.KeptBytes; moved > 0 {
		how += ", " + formatRate(float64(moved)/max(r.Seconds, 1e-9))
	}
	o.remark("%s: %s: %s, %s (%s)\n", clean(r.Target), o.good("complete"), plural(r.Files, "file"), formatBytes(r.Bytes), how)
	if r.KeptFiles > 0 {
		o.remark("%s, %s, were there already\n", plural(r.KeptFiles, "file"), formatBytes(r.KeptBytes))
	}
	if r.ByService > 0 {
		o.remark("%s copied by the service itself\n", plural(r.ByService, "file"))
	}
	if r.Unsummed > 0 && r.Verified == nil {
		o.remark("the checkpoint has no checksums of %s of it\n", formatBytes(r.Unsummed))
	}
	if v := r.Verified; v != nil {
		o.remark("read back: %s, %s, all as they should be\n", plural(v.Files, "file"), formatBytes(v.Bytes))
	}
	r.copyTraffic.print(o, r.Source, r.Target)
	for _, name := range r.LeftOut {
		o.printf("left out: %s\n", clean(name))
	}
}
