package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// settingsFlags are the flags that replace settings of a run: for one command, or for good in
// 'cairn settings'.
type settingsFlags struct{ remote, keep, keepRemote, id string }

func (f *settingsFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.keep, "keep", "", "`policy` of RUN, such as \"last 3, every 5000 steps\"")
	completeFlag(cmd, choices(), "keep")
	f.addRemote(cmd)
}

// addRemote adds the flags about the remote run.
func (f *settingsFlags) addRemote(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.keepRemote, "keep-remote", "", "`policy` of the remote run")
	cmd.Flags().StringVar(&f.remote, "remote", "", "`address` of the remote run, to which checkpoints are uploaded")
	completeFlag(cmd, choices(), "keep-remote")
}

// apply replaces the settings that have a flag.
func (f *settingsFlags) apply(cmd *cobra.Command, s *run.Settings) error {
	for _, p := range []struct {
		flag, text string
		to         *run.Policy
	}{{"keep", f.keep, &s.Keep}, {"keep-remote", f.keepRemote, &s.KeepRemote}} {
		if !cmd.Flags().Changed(p.flag) {
			continue
		}
		policy, err := run.ParsePolicy(p.text)
		if err != nil {
			return withHint(fmt.Errorf("--%s: %w", p.flag, err), policyHint)
		}
		*p.to = policy
	}
	if cmd.Flags().Changed("remote") {
		s.Remote = f.remote
	}
	return nil
}

// given returns the flags that the user has set, as they are written after a command. They do
// not contain secrets.
func (f *settingsFlags) given(cmd *cobra.Command, flags ...string) string {
	out := ""
	for _, name := range flags {
		if flag := cmd.Flags().Lookup(name); flag.Changed {
			out += " --" + name + " " + quoteArg(blob.Redact(flag.Value.String()))
		}
	}
	return out
}

const policyHint = "'cairn help policies' lists the rules"

// openRun opens the run at an address with its settings, as far as flags do not replace them,
// and returns the settings in effect. A path must exist, unless --remote names another place.
func (f *settingsFlags) openRun(cmd *cobra.Command, address string) (*run.Run, run.Settings, error) {
	ctx := cache.Without(cmd.Context())
	if err := checkFolder(address); err != nil && (f.remote == "" || !errors.Is(err, fs.ErrNotExist)) {
		return nil, run.Settings{}, err
	}
	s, err := readSettings(ctx, address)
	if err == nil {
		err = f.apply(cmd, &s)
	}
	if err != nil {
		return nil, s, err
	}
	if s.Remote != "" {
		if err := apart(address, s.Remote); err != nil {
			return nil, s, withHint(err, "the remote run has another address")
		}
	}
	r, err := run.Open(ctx, address, s.Remote)
	if err != nil {
		return nil, s, err
	}
	r.Stored = !cmd.Flags().Changed("remote")
	return r, s, nil
}

// readSettings returns the settings of the run at an address.
func readSettings(ctx context.Context, address string) (run.Settings, error) {
	r, err := run.Open(ctx, address, "")
	if err != nil {
		return run.Settings{}, err
	}
	return storedSettings(ctx, r)
}

// storedSettings returns the settings of an open run.
func storedSettings(ctx context.Context, r *run.Run) (run.Settings, error) {
	s, err := run.ReadSettings(ctx, r.Local.Store)
	if errors.Is(err, cairn.ErrCorrupt) {
		err = withHint(err, fmt.Sprintf("'cairn settings %s --keep POLICY' writes the file again; add --remote if there was a remote run", quoteArg(blob.Redact(r.Local.Address()))))
	}
	return s, err
}

// checkFolder returns an error unless an address is a URL or the path of a folder.
func checkFolder(address string) error {
	path, local, err := file.LocalPath(address)
	if err != nil || !local {
		return err
	}
	fi, err := os.Stat(path)
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err
		}
		return withHint(fmt.Errorf("%s: %w", address, err), "check the path; the first save of a run makes its folder")
	}
	if !fi.IsDir() {
		return withHint(fmt.Errorf("%s: %w: it is a file", address, cairn.ErrNotFound), "a run is a folder, with a folder for each checkpoint")
	}
	return nil
}

// noCheckpoints returns the error of a run without checkpoints.
func noCheckpoints(ctx context.Context, address string) error {
	shown := blob.Redact(address)
	err := fmt.Errorf("%s: %w in its folders", shown, cairn.ErrNotFound)
	if formatOf(ctx, address) != "" {
		if dir, _ := splitRun(address); dir != "" {
			return withHint(err, fmt.Sprintf("it is a checkpoint itself: 'cairn log %s' lists the checkpoints of its run", quoteArg(blob.Redact(dir))))
		}
	}
	return withHint(err, "RUN is the folder of a run, with a folder for each checkpoint; 'cairn runs' finds runs")
}

// splitRun returns the address of the run in which the checkpoint at an address is, and the
// name of its folder. The name is empty if the address has no parent.
func splitRun(address string) (dir, name string) {
	path, local, err := file.LocalPath(address)
	if err != nil {
		return "", ""
	}
	if !local {
		dir, name := blob.SplitAddress(address)
		if name == "" {
			return "", ""
		}
		return dir, name
	}
	path = filepath.Clean(path)
	if name := filepath.Base(path); name == "." || name == ".." {
		if path, err = filepath.Abs(path); err != nil {
			return "", ""
		}
	}
	dir, name = filepath.Dir(path), filepath.Base(path)
	if strings.ContainsRune(name, filepath.Separator) { // the root
		return "", ""
	}
	return dir, name
}

// splitCheckpoint is splitRun for the folder of a checkpoint. It follows links and refuses a
// single file.
func splitCheckpoint(ctx context.Context, address string) (dir, name string, err error) {
	address = checkpointAddress(ctx, address)
	store, err := openStore(ctx, address)
	if err != nil {
		return "", "", err
	}
	shown := blob.Redact(address)
	if _, single := store.(*blob.Single); single {
		format, err := formats.Detect(ctx, store)
		if format == "" || err != nil {
			return "", "", withHint(fmt.Errorf("%s: %w", shown, errors.Join(cairn.ErrNotFound, err)), openHint(ctx, address, cairn.ErrNotFound))
		}
		return "", "", withHint(fmt.Errorf("%s is a single file: %w", shown, errors.ErrUnsupported), "a checkpoint of a run is a folder")
	}
	if path, local, err := file.LocalPath(address); err == nil && local {
		if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Base(filepath.Clean(path)) != filepath.Base(real) {
			address = real
		}
	}
	if dir, name = splitRun(address); name == "" {
		return "", "", withHint(fmt.Errorf("%s: %w: it is not a folder of a run", shown, errors.ErrUnsupported), "a checkpoint of a run is in a folder below the run")
	}
	return dir, name, nil
}

// settingsResult is the output of 'cairn settings --json'.
type settingsResult struct {
	Path       string `json:"path"`
	ID         string `json:"id"`
	Remote     string `json:"remote"`
	Keep       string `json:"keep"`
	KeepRemote string `json:"keep_remote"`
}

func newSettingsCmd() *cobra.Command {
	var f settingsFlags
	cmd := newCommand("settings", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return f.run(cmd, args[0])
	})
	f.add(cmd)
	cmd.Flags().StringVar(&f.id, "id", "", "`id` of RUN, which its remote run has too")
	completeFlag(cmd, choices(), "id")
	return cmd
}

func (f *settingsFlags) run(cmd *cobra.Command, address string) error {
	ctx, o := cache.Without(cmd.Context()), outputOf(cmd)
	changed := cmd.Flags().Changed("remote") || cmd.Flags().Changed("keep") || cmd.Flags().Changed("keep-remote") || f.id != ""
	missing := checkFolder(address)
	if missing != nil && (!changed || !errors.Is(missing, fs.ErrNotExist)) {
		return missing
	}

	r, err := run.Open(ctx, address, "")
	if err != nil {
		return err
	}
	s, err := storedSettings(ctx, r)
	if err != nil && !changed {
		return err
	}

	if changed {
		if err != nil { // they are damaged
			o.warn("the settings that are there cannot be read, and are replaced: %s", clean(oneLine(err.Error())))
		}
		if s, err = f.change(cmd, r, s); err != nil {
			return err
		}
	}

	res := settingsResult{r.String(), s.ID, s.Remote, s.Keep.String(), s.KeepRemote.String()}
	return o.result(res, func() {
		t := newPlainRows(2)
		t.add("keep", clean(res.Keep))
		t.add("remote", clean(res.Remote))
		if res.Remote != "" {
			t.add("keep-remote", clean(res.KeepRemote))
		}
		o.table(t)
		if missing != nil {
			o.remark("%s is a new folder, without checkpoints\n", clean(blob.Redact(address)))
		}
	})
}

// checkNoCheckpoint returns an error if the folder of a run is a checkpoint itself, and has no
// checkpoints in its folders.
func checkNoCheckpoint(ctx context.Context, r *run.Run) error {
	address := r.Local.Address()
	if formatOf(ctx, address) == "" {
		return nil
	}
	all, err := r.Checkpoints(ctx)
	if err != nil || len(all) > 0 {
		return err
	}
	hint := "RUN is the folder of a run, with a folder for each checkpoint"
	if dir, _ := splitRun(address); dir != "" {
		hint = fmt.Sprintf("its run is %s: 'cairn settings %s'", blob.Redact(dir), quoteArg(blob.Redact(dir)))
	}
	return withHint(fmt.Errorf("%s: %w in its folders: it is a checkpoint itself", blob.Redact(address), cairn.ErrNotFound), hint)
}

// checkMetrics returns an error if a policy that is set names a metric that no checkpoint of the
// run has.
func (f *settingsFlags) checkMetrics(cmd *cobra.Command, r *run.Run, s *run.Settings) error {
	opts := &run.PruneOptions{}
	if cmd.Flags().Changed("keep") {
		opts.Keep = s.Keep
	}
	if cmd.Flags().Changed("keep-remote") {
		opts.KeepRemote = s.KeepRemote
	}
	if opts.Keep.KeepsAll() && opts.KeepRemote.KeepsAll() {
		return nil
	}
	all, err := r.Checkpoints(cmd.Context())
	if err == nil {
		_, err = r.Plan(all, opts)
	}
	return err
}

// change replaces settings with the values of flags, writes them, and returns the written settings.
func (f *settingsFlags) change(cmd *cobra.Command, r *run.Run, s run.Settings) (run.Settings, error) {
	ctx, o := cmd.Context(), outputOf(cmd)
	if err := f.apply(cmd, &s); err != nil {
		return s, err
	}
	if err := checkNoCheckpoint(ctx, r); err != nil {
		return s, err
	}

	if f.id != "" {
		if err := run.CheckID(f.id); err != nil {
			return s, usagef(cmd, "--id: %v", err)
		}
		s.ID = f.id
	}
	if s.Remote != "" {
		if err := f.join(cmd, r, &s); err != nil {
			return s, err
		}
	}

	if err := f.checkMetrics(cmd, r, &s); err != nil {
		return s, err
	}
	if err := run.WriteSettings(ctx, r.Local.Store, s); err != nil {
		return s, err
	}

	written, err := run.ReadSettings(ctx, r.Local.Store)
	if err == nil && written.Remote != s.Remote {
		o.warn("the parts of the address that may be secrets are not stored: it is %s", clean(written.Remote))
	}
	if r.Remote != nil && err == nil {
		if err := r.Confirm(ctx); err != nil {
			o.warn("this user's confirmation of the remote run cannot be stored, so that commands ask for its address each time: %s", clean(oneLine(err.Error())))
		}
	}
	return written, err
}

// join opens the remote run that the settings name. If it has an id, the settings get it, unless
// they have one.
func (f *settingsFlags) join(cmd *cobra.Command, r *run.Run, s *run.Settings) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	if err := apart(r.Local.Address(), s.Remote); err != nil {
		return withHint(err, "the remote run has another address")
	}
	named, err := run.Open(ctx, r.Local.Address(), s.Remote)
	if err != nil {
		return err
	}
	if path, local, err := file.LocalPath(s.Remote); err == nil && local {
		if s.Remote, err = filepath.Abs(path); err != nil {
			return err
		}
	}
	if !cmd.Flags().Changed("remote") {
		return nil
	}

	r.Remote = named.Remote
	id, err := named.Adopt(ctx, s.ID)
	if errors.Is(err, run.ErrOtherRun) {
		return err
	}
	if err != nil {
		o.warn("the remote run cannot be read, so that it is unknown whether it belongs to another run: %s", clean(oneLine(err.Error())))
	}
	s.ID = id
	return nil
}
