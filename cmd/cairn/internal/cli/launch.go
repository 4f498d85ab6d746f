package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
)

// oldLaunch is the name of 'cairn launch' until 0.1.0, which no help shows.
const oldLaunch = "run"

func newLaunchCmd() *cobra.Command {
	f := launchFlags{}
	programs := cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault) // and files
	cmd := newCommand("launch", wantProgram, programs, func(cmd *cobra.Command, args []string) error {
		f.Command = args
		return runLaunch(cmd, f)
	})
	f.add(cmd)
	cmd.Aliases = []string{oldLaunch}
	return cmd
}

func wantProgram(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || args[0] == "" {
		return usagef(cmd, "no program: usage is '%s'", cmd.UseLine())
	}
	return nil
}

func (f *launchFlags) config(cmd *cobra.Command, o *output) (launch.Config, error) {
	c := f.Config
	if err := f.check(cmd); err != nil {
		return c, err
	}
	if f.secretFile != "" {
		var err error
		if c.Secret, err = readSecret(cmd, f.secretFile); err != nil {
			return c, err
		}
	}
	if f.stdin {
		c.Stdin = cmd.InOrStdin()
	}
	c.Stdout, c.Stderr, c.Color, c.ErrColor = o.out, o.err, o.color, o.errColor
	if o.json {
		c.Stdout, c.Color = o.err, o.errColor
	}
	c.Prefix = !f.noPrefix
	if s, ok := c.Stdout.(*sink); ok && f.noPrefix {
		c.Stdout = s.w // a process can get the file
	}
	if !o.quiet && !o.json {
		c.Notify = func(text string) { fmt.Fprintf(o.err, "%s: %s\n", cmd.CommandPath(), text) }
	}
	return c, nil
}

func runLaunch(cmd *cobra.Command, f launchFlags) error {
	o := outputOf(cmd)
	if cmd.CalledAs() == oldLaunch {
		o.warn("'cairn %s' is now '%s'; the next release knows only the new name", oldLaunch, cmd.CommandPath())
	}
	c, err := f.config(cmd, o)
	if err != nil {
		return err
	}

	signals := make(chan os.Signal, 8)
	// Signals that were ignored when this program started, as by nohup, stay ignored.
	if s := slices.DeleteFunc(launch.Passed(), signal.Ignored); len(s) > 0 {
		signal.Notify(signals, s...)
		defer signal.Stop(signals)
	}
	c.Signals = signals
	// This turns SIGPIPE into an error of the write, so that this process does
	// not end before its ranks. It stays on for the final messages.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx := cmd.Context()
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, launch.ErrTimeout)
		defer cancel()
	}
	rep, err := launch.Run(ctx, c)
	if errors.Is(err, launch.ErrOutput) {
		o.out = &deadlineWriter{o.out}
		cmd.Root().SetErr(&deadlineWriter{o.err}) // stderr may have no reader either
	}
	if launch.Notified(err) || errors.Is(err, launch.ErrReader) { // it was printed, or cannot be
		cmd.Root().SetErr(io.Discard)
	}
	if rep != nil && o.json {
		err = errors.Join(err, o.encode(o.out, rep))
	}
	return launchFailure(cmd, f.Command[0], err)
}

type launchFlags struct {
	launch.Config
	secretFile string
	stdin      bool
	noPrefix   bool
	timeout    time.Duration
}

func (f *launchFlags) add(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(flagFailure)
	fl := cmd.Flags()
	fl.SetInterspersed(false) // flags after the program belong to the program
	fl.IntVarP(&f.N, "procs", "n", 1, "processes on this host")
	fl.IntVar(&f.Nodes, "nnodes", 1, "hosts, each with the same number of processes")
	fl.IntVar(&f.Node, "node-rank", 0, "the number of this host, from 0")
	fl.StringVar(&f.Addr, "master-addr", "", "the host on which rank 0 listens (default 127.0.0.1)")
	fl.IntVar(&f.Port, "master-port", 0, "the port on which rank 0 listens; 0 chooses a free port")
	fl.BoolVar(&f.Unix, "unix", false, "meet at a unix socket instead, in a new folder for this job")
	fl.StringVar(&f.secretFile, "secret-file", "", "take the job's secret from this `FILE`")
	fl.BoolVar(&f.stdin, "stdin", false, "let rank 0 read stdin")
	fl.BoolVar(&f.noPrefix, "no-prefix", false, "print the output of ranks without their numbers")
	fl.StringVar(&f.LogDir, "log-dir", "", "also write the output of ranks to files RANK.out and RANK.err in `DIR`")
	fl.BoolVar(&f.Overwrite, "overwrite", false, "remove the logs of an earlier job from --log-dir")
	fl.BoolVar(&f.KeepGoing, "keep-going", false, "let the other ranks go on if one fails")
	fl.DurationVar(&f.Grace, "grace", 10*time.Second, "how long ranks have to end before they are killed")
	fl.DurationVar(&f.timeout, "timeout", 0, "end the job after this time; 0 for never")
	_ = cmd.MarkFlagDirname("log-dir") // these calls fail for unknown flags only
	_ = cmd.MarkFlagFilename("secret-file")
}

func flagFailure(cmd *cobra.Command, err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return usagef(cmd, "%v", err)
	}
	want, ok := map[string]string{
		"int": "a whole number", "duration": "a time, as 10s, 5m or 2h", "bool": "true or false",
	}[bad.GetFlag().Value.Type()]
	if !ok {
		return usagef(cmd, "%v", err)
	}
	return usagef(cmd, "--%s %s: want %s", bad.GetFlag().Name, quoteArg(bad.GetValue()), want)
}

func (f *launchFlags) check(cmd *cobra.Command) error {
	switch {
	case f.N < 1 || f.N > launch.MaxProcesses:
		return usagef(cmd, "-n %d: want 1 to %d processes", f.N, launch.MaxProcesses)
	case f.Port < 0 || f.Port > 65535:
		return usagef(cmd, "--master-port %d: want 1 to 65535, or 0 for one that is free", f.Port)
	case f.Unix && (f.Addr != "" || f.Port != 0):
		return usagef(cmd, "--unix is instead of --master-addr and --master-port: give one or the other")
	case f.Grace <= 0:
		return usagef(cmd, "--grace must be above zero")
	case f.timeout < 0:
		return usagef(cmd, "--timeout must not be below zero")
	case f.Overwrite && f.LogDir == "":
		return usagef(cmd, "--overwrite is for --log-dir")
	}
	return f.checkHosts(cmd)
}

func (f *launchFlags) checkHosts(cmd *cobra.Command) error {
	switch {
	case f.Nodes < 1:
		return usagef(cmd, "--nnodes %d: want at least 1 host", f.Nodes)
	case f.Node < 0 || f.Node >= f.Nodes:
		return usagef(cmd, "--node-rank %d: with --nnodes %d it is 0 to %d", f.Node, f.Nodes, f.Nodes-1)
	case f.Nodes == 1:
		return nil
	case f.Unix:
		return usagef(cmd, "--unix is for one host: not with --nnodes %d", f.Nodes)
	case f.Addr == "" || f.Port == 0:
		return usagef(cmd, "--nnodes %d needs --master-addr and --master-port, the same on all hosts", f.Nodes)
	case f.secretFile == "" && os.Getenv("CAIRN_SECRET") == "":
		return usagef(cmd, "--nnodes %d needs a secret, the same on all hosts: --secret-file, or CAIRN_SECRET in the environment", f.Nodes)
	}
	return nil
}

// maxSecret bounds the file of a secret, which may be endless.
const maxSecret = 64 << 10

// isExposed reports whether users other than its owner can read a file. Windows does not
// say it by the mode.
func isExposed(fi fs.FileInfo) bool {
	return runtime.GOOS != "windows" && fi.Mode().IsRegular() && fi.Mode().Perm()&0o044 != 0
}

// readSecret reads the job's secret from a file, which may be a pipe.
func readSecret(cmd *cobra.Command, path string) (string, error) {
	name := quoteArg(path)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		err := usagef(cmd, "--secret-file %s: there is no such file", name)
		return "", withHint(err, fmt.Sprintf("make one that only you can read, and copy it to all hosts: (umask 077; openssl rand -hex 32 > %s)", name))
	}
	var b []byte
	if err == nil {
		defer f.Close()
		b, err = io.ReadAll(io.LimitReader(f, maxSecret+1))
		if fi, statErr := f.Stat(); statErr == nil && isExposed(fi) {
			outputOf(cmd).warn("warning: --secret-file %s: other users can read it: chmod 600 %s, and use a new secret", name, name)
		}
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	secret := bytes.TrimSpace(b)
	switch {
	case err != nil:
		return "", usagef(cmd, "--secret-file %s: %v", name, err)
	case len(b) > maxSecret:
		return "", usagef(cmd, "--secret-file %s is too long for a secret: at most %s", name, formatBytes(maxSecret))
	case len(secret) == 0:
		return "", usagef(cmd, "--secret-file %s is empty", name)
	case bytes.IndexByte(secret, 0) >= 0:
		return "", usagef(cmd, "--secret-file %s holds a zero byte, which no environment can", name)
	}
	return string(secret), nil
}

// endError is an error with an exit code of its own.
type endError struct {
	error
	kind string
	code int
}

func (e *endError) Unwrap() error { return e.error }

// exitReader is the exit code if the reader of the output has closed it: 128 plus
// the number of SIGPIPE, as in shells.
const exitReader = 141

func launchFailure(cmd *cobra.Command, program string, err error) error {
	rank, failed := errors.AsType[*launch.ExitError](err)
	ended, signalled := errors.AsType[*launch.SignalError](err)
	wrong, misused := errors.AsType[*launch.ConfigError](err)
	logs, unlogged := errors.AsType[*launch.LogError](err)
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case failed:
		return &endError{err, "rank", rank.Code}
	case signalled:
		return &endError{err, "signal", ended.Code}
	case misused:
		return usagef(cmd, "%v", wrong)
	case unlogged:
		err := usagef(cmd, "--log-dir %s: %v", quoteArg(logs.Dir), logs.Err)
		if errors.Is(logs, fs.ErrExist) {
			return withHint(err, "choose another folder, or replace the logs with --overwrite")
		}
		return err
	case errors.Is(err, launch.ErrTimeout):
		return &endError{err, "timeout", 124}
	case errors.Is(err, launch.ErrReader), errors.Is(err, syscall.EPIPE):
		return &endError{err, "reader", exitReader}
	}
	return programFailure(program, err)
}

// programFailure describes why a program was not started. The code is 127 if the
// program or its interpreter does not exist, and 126 if it cannot be run.
func programFailure(program string, err error) error {
	_, looked := errors.AsType[*exec.Error](err)
	path, started := errors.AsType[*fs.PathError](err)
	started = started && path.Op == "fork/exec"
	absent := errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	switch {
	case looked && absent:
		return &endError{withHint(err, programHint(program)), "not-found", 127}
	case started && absent:
		hint := fmt.Sprintf("%s is there: what is not is the interpreter that it names, or a library", quoteArg(program))
		return &endError{withHint(err, hint), "not-found", 127}
	case looked, started && isUnfit(err):
		return &endError{err, "not-executable", 126}
	}
	return &endError{err, exits[len(exits)-1].name, exitError}
}

// isUnfit reports whether an error means that a file is not an executable
// program.
func isUnfit(err error) bool {
	unfit := []error{fs.ErrPermission, syscall.ENOEXEC, syscall.EISDIR, syscall.ELOOP, syscall.E2BIG}
	return slices.ContainsFunc(unfit, func(target error) bool { return errors.Is(err, target) })
}

func programHint(program string) string {
	if base := filepath.Base(program); base != program {
		if _, err := exec.LookPath(base); err == nil {
			return fmt.Sprintf("for the one on the PATH, write %s", quoteArg(base))
		}
		if dir, err := os.Getwd(); err == nil && !filepath.IsAbs(program) {
			return fmt.Sprintf("it was looked for in %s", quoteArg(dir))
		}
		return ""
	}
	if _, err := os.Stat(program); err == nil {
		return fmt.Sprintf("for the one in this folder, write ./%s", program)
	}
	return "it was looked for on the PATH; for a program elsewhere, write its path"
}

// writeTimeout is how long a deadlineWriter waits for a reader that has stopped
// reading.
const writeTimeout = time.Second

// deadlineWriter writes to w, but gives up waiting after writeTimeout. The write
// itself goes on in the background.
type deadlineWriter struct{ w io.Writer }

func (d *deadlineWriter) Write(b []byte) (int, error) {
	own, done := bytes.Clone(b), make(chan error, 1)
	go func() {
		_, err := d.w.Write(own)
		done <- err
	}()
	select {
	case err := <-done:
		return len(b), err
	case <-time.After(writeTimeout):
		return 0, fmt.Errorf("print: %w", os.ErrDeadlineExceeded)
	}
}
