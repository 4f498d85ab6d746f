package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
)

func newRunCmd() *cobra.Command {
	f := runFlags{}
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARG…]",
		Short: "Start a program as the ranks of a job on this host",
		Long: `Run starts PROGRAM several times, as the ranks of one job, shows what they print
with the rank before each line, and ends when all have ended. The environment of
each process has the variables that package group/tcp and PyTorch read:

  MASTER_ADDR, MASTER_PORT      the address at which rank 0 listens
  RANK, WORLD_SIZE              the rank of this process, and the number of ranks
  LOCAL_RANK, LOCAL_WORLD_SIZE  the same on this host
  CAIRN_SECRET                  the job's secret: that of --secret-file or of the
                                environment, or else a random one

If a rank fails, run sends SIGTERM to the other ranks, and SIGKILL after the grace
period. With --keep-going it lets them run. Run passes on an interrupt, SIGTERM,
SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2. After an interrupt or SIGTERM the grace
period begins too; a second one kills all ranks at once. If the reader of the
output exits, as 'head' does, the job ends as after SIGTERM. Each rank leads a
process group, and the processes that a rank has started end with it. On Linux the
ranks end even if cairn itself is killed, but then the folder of --unix,
cairn-run-* in $TMPDIR or /tmp, stays. On systems other than Unix, run kills ranks
without a signal before.

The exit code is that of the rank that failed first, or 128 plus the number of the
signal that ended it. After an interrupt or SIGTERM it is 0 if all ranks end with
0, and 130 or 143 if some had to be killed. It is 124 if --timeout is over, 141 if
the reader of the output has exited, 126 if PROGRAM cannot be run, 127 if PROGRAM
is not found, and 2 if a flag is wrong, or a file that it names.

Ranks have an empty stdin, except for rank 0 with --stdin. Run prints whole lines,
in pieces if they exceed 64 KiB, and keeps stdout and stderr apart. If the reader
of the output pauses, ranks wait when they print, but the job can still end.
--log-dir refuses a folder with logs of an earlier job, unless --overwrite removes
them. If hosts share the folder, each removes only the logs of its own ranks.

For a job on several hosts, call run on each host with the same -n, --nnodes,
--master-addr, --master-port and secret, and a --node-rank counted from 0. The
ranks themselves notice a rank that fails on another host.

With --json, all that ranks print goes to stderr. At the end, stdout has:

  ok           whether all ranks ended with 0
  world_size, master_addr, master_port
               as in the environment
  seconds      from the first start to the last end
  failed       the rank that failed first; null if no rank failed, or if a signal,
               --timeout or the loss of the reader ended the job before
  ranks        of this host, a list of rank, pid, code, signal (as SIGSEGV, or
               empty), stopped (whether run had signalled it), seconds`,
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
		return usagef(cmd, "no program: usage is '%s'", cmd.UseLine())
	}
	return nil
}

// config completes the configuration of the job.
func (f *runFlags) config(cmd *cobra.Command, o *output) (launch.Config, error) {
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
	// A reader that has gone is an error of the write then, and not the end of this
	// process before its ranks. It stays so, for the last words.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx := cmd.Context()
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, launch.ErrTimeout)
		defer cancel()
	}
	rep, err := launch.Run(ctx, c)
	if errors.Is(err, launch.ErrOutput) {
		o.out = &hasty{o.out}
		cmd.Root().SetErr(&hasty{o.err}) // stderr may have no reader either
	}
	if isSaid(err) {
		cmd.Root().SetErr(io.Discard)
	}
	if rep != nil && o.json {
		err = errors.Join(err, o.encode(o.out, rep))
	}
	return runFailure(cmd, f.Command[0], err)
}

// heeded leaves out the signals that are ignored since before this program
// started, as nohup does.
func heeded(all []os.Signal) []os.Signal {
	var out []os.Signal
	for _, s := range all {
		if !signal.Ignored(s) {
			out = append(out, s)
		}
	}
	return out
}
