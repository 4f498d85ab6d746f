package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/internal/launch"
)

// runFlags are the flags of 'cairn run'.
type runFlags struct {
	launch.Config
	secretFile string
	stdin      bool
	noPrefix   bool
	timeout    time.Duration
}

func newRunCmd() *cobra.Command {
	f := runFlags{}
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARG…]",
		Short: "Start a program as the ranks of a job on this host",
		Long: `Run starts PROGRAM several times, as the ranks of one job, shows what they print
with the rank before each line, and ends when all have ended. Each process finds
in its environment what groups of package group/tcp, PyTorch and others meet by:

  MASTER_ADDR, MASTER_PORT      where rank 0 is to listen
  RANK, WORLD_SIZE              this process, and how many there are
  LOCAL_RANK, LOCAL_WORLD_SIZE  the same on this host
  CAIRN_SECRET                  the job's secret: that of the environment or of
                                --secret-file, or else a random one

When a rank fails, the others get SIGTERM, and SIGKILL after the grace period,
unless --keep-going says that they are to find out and decide by themselves. An
interrupt, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on; after the
first two the grace period begins too, and a second one kills. Each rank leads a
process group, so that what it has started ends with it; on linux ranks end even
where cairn itself is killed. Other systems than Unix know only how to kill.

The exit code is that of the rank that failed first, 128 and its number for a
signal; 124 when --timeout is over, 126 or 127 where PROGRAM cannot be run or is
not found. Ranks read nothing, but for rank 0 with --stdin. Lines are printed
whole, and those above 64 KiB in pieces; stdout and stderr stay apart. Whoever
stops to read them holds up the ranks, but not the end of the job.

For a job on several hosts, call it on each with the same -n, --nnodes,
--master-addr, --master-port and secret, and --node-rank counted from 0. A rank
that fails on another host is noticed by the ranks themselves.

With --json, what ranks print all goes to stderr, and at the end to stdout:

  ok           whether all ranks ended with 0
  world_size, master_addr, master_port
               as in the environment
  seconds      from the first start to the last end
  failed       the rank that failed first, or null
  ranks        of this host, a list of rank, pid, code, signal (its name, or
               empty), stopped (whether it was told to end before), seconds`,
		Example: `  cairn run -n 4 -- ./train --steps 1000
  cairn run -n 8 --log-dir logs --timeout 2h -- python train.py
  cairn run -n 2 -- sh -c 'echo rank $RANK of $WORLD_SIZE'
  cairn run -n 8 --nnodes 2 --node-rank 1 --master-addr host0 --master-port 29500 \
    --secret-file job.secret -- ./train`,
		Args: wantProgram,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // programs and files
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Command = args
			return runRun(cmd, f)
		},
	}
	f.add(cmd)
	return cmd
}

func wantProgram(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || args[0] == "" {
		return usagef(cmd, "no program: it is '%s'", cmd.UseLine())
	}
	return nil
}

func (f *runFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.SetInterspersed(false) // what follows the program is the program's
	fl.IntVarP(&f.N, "procs", "n", 1, "processes on this host")
	fl.IntVar(&f.Nodes, "nnodes", 1, "hosts, each with as many processes")
	fl.IntVar(&f.Node, "node-rank", 0, "the number of this host, from 0")
	fl.StringVar(&f.Addr, "master-addr", "", "the host on which rank 0 listens (default 127.0.0.1)")
	fl.IntVar(&f.Port, "master-port", 0, "the port on which rank 0 listens; 0 for one that is free")
	fl.BoolVar(&f.Unix, "unix", false, "meet at a unix socket instead, in a folder of the job's own")
	fl.StringVar(&f.secretFile, "secret-file", "", "take the job's secret from this `FILE`")
	fl.BoolVar(&f.stdin, "stdin", false, "let rank 0 read stdin")
	fl.BoolVar(&f.noPrefix, "no-prefix", false, "hand on what ranks print as it is")
	fl.StringVar(&f.LogDir, "log-dir", "", "also write what ranks print to files RANK.out and RANK.err in `DIR`")
	fl.BoolVar(&f.KeepGoing, "keep-going", false, "let the other ranks go on where one fails")
	fl.DurationVar(&f.Grace, "grace", 10*time.Second, "how long ranks have to end before they are killed")
	fl.DurationVar(&f.timeout, "timeout", 0, "end the job after this time; 0 for never")
	_ = cmd.MarkFlagDirname("log-dir") // these fail for unknown flags only
	_ = cmd.MarkFlagFilename("secret-file")
}

// config completes the configuration of the job.
func (f *runFlags) config(cmd *cobra.Command, o *output) (launch.Config, error) {
	c := f.Config
	if f.Grace <= 0 {
		return c, usagef(cmd, "--grace must be above zero")
	}
	if f.timeout < 0 {
		return c, usagef(cmd, "--timeout must not be below zero")
	}
	if f.secretFile != "" {
		b, err := os.ReadFile(f.secretFile)
		if err != nil {
			return c, fmt.Errorf("read the secret: %w", err)
		}
		if c.Secret = string(bytes.TrimSpace(b)); c.Secret == "" {
			return c, usagef(cmd, "--secret-file %s is empty", quoteArg(f.secretFile))
		}
	}
	if f.stdin {
		c.Stdin = cmd.InOrStdin()
	}
	c.Stdout, c.Stderr, c.Color, c.ErrColor = o.out, o.err, o.color, o.errColor
	if o.json {
		c.Stdout, c.Color = o.err, o.errColor
	}
	if c.Prefix = !f.noPrefix; !c.Prefix {
		c.Stdout = behindSink(c.Stdout)
	}
	if !o.quiet && !o.json {
		c.Tell = func(text string) { fmt.Fprintf(o.err, "%s: %s\n", cmd.CommandPath(), text) }
	}
	return c, nil
}

// behindSink returns the writer itself, so that a process can have the file.
func behindSink(w io.Writer) io.Writer {
	if s, ok := w.(*sink); ok {
		return s.w
	}
	return w
}

func runRun(cmd *cobra.Command, f runFlags) error {
	o := outputOf(cmd)
	c, err := f.config(cmd, o)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	if s := heeded(launch.Passed()); len(s) > 0 {
		signal.Notify(signals, s...)
		defer signal.Stop(signals)
	}
	c.Signals = signals
	ctx := cmd.Context()
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, launch.ErrTimeout)
		defer cancel()
	}
	rep, err := launch.Run(ctx, c)
	if errors.Is(err, launch.ErrOutput) {
		o.out = &hasty{o.out}
		cmd.Root().SetErr(&hasty{o.err}) // it may be what nobody reads
	}
	if rep != nil && o.json {
		err = errors.Join(err, o.encode(o.out, rep))
	}
	return runFailure(cmd, f.Command[0], err)
}

// heeded leaves out the signals that whoever started this program wants to be
// ignored, as nohup does.
func heeded(all []os.Signal) []os.Signal {
	var out []os.Signal
	for _, s := range all {
		if !signal.Ignored(s) {
			out = append(out, s)
		}
	}
	return out
}

// endError is an error with an exit code of its own, as launchers have them.
type endError struct {
	error
	kind string
	code int
}

func (e *endError) Unwrap() error { return e.error }

// runFailure says how a job that did not go well is to end.
func runFailure(cmd *cobra.Command, program string, err error) error {
	rank, failed := errors.AsType[*launch.ExitError](err)
	wrong, misused := errors.AsType[*launch.ConfigError](err)
	switch {
	case failed:
		return &endError{err, "rank", rank.Code}
	case misused:
		return usagef(cmd, "%v", wrong)
	case errors.Is(err, launch.ErrTimeout):
		return &endError{err, "timeout", 124}
	}
	if _, ok := errors.AsType[*exec.Error](err); !ok {
		return err
	}
	if _, here := os.Stat(program); here == nil && errors.Is(err, exec.ErrNotFound) {
		err = withHint(err, fmt.Sprintf("for the one in this folder, write ./%s", program))
	}
	if errors.Is(err, os.ErrPermission) {
		return &endError{err, "not-executable", 126}
	}
	return &endError{err, "not-found", 127}
}
