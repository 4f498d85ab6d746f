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

	"github.com/cairn-ckpt/cairn/internal/launch"
)

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
first two the grace period begins too, and a second one kills. Where the reader of
the output goes, as 'head' does, the job ends as by SIGTERM. Each rank leads a
process group, so that what it has started ends with it; on linux ranks end even
where cairn itself is killed, but the folder of --unix, cairn-run-* in $TMPDIR or
/tmp, stays then. Other systems than Unix know only how to kill.

The exit code is that of the rank that failed first, 128 and its number for a
signal. After an interrupt or SIGTERM it is 0 where all ranks end with 0 all the
same, and 130 or 143 where some had to be killed. It is 124 when --timeout is
over, 141 when the reader of the output has gone, 126 or 127 where PROGRAM cannot
be run or is not found, and 2 where a flag is wrong, or a file that it names.

Ranks read nothing, but for rank 0 with --stdin. Lines are printed whole, those
above 64 KiB in pieces; stdout and stderr stay apart. Whoever stops to read them
holds up the ranks, but not the end of the job. With --log-dir, a folder with logs
of an earlier job is refused, or cleared of them with --overwrite: of the ranks of
this host, where there are several hosts, which may share it.

For a job on several hosts, call it on each with the same -n, --nnodes,
--master-addr, --master-port and secret, and --node-rank counted from 0. A rank
that fails on another host is noticed by the ranks themselves.

With --json, what ranks print all goes to stderr, and at the end to stdout:

  ok           whether all ranks ended with 0
  world_size, master_addr, master_port
               as in the environment
  seconds      from the first start to the last end
  failed       the rank that failed first, or null where none did before the job
               was ended by a signal, by --timeout or for want of a reader
  ranks        of this host, a list of rank, pid, code, signal (as SIGSEGV, or
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
		cmd.Root().SetErr(&hasty{o.err}) // it may be what nobody reads
	}
	if isSaid(err) {
		cmd.Root().SetErr(io.Discard)
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
