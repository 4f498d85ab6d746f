package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// ParseRendezvous returns the rendezvous for the address of --rendezvous. The program
// replaces it by one that knows etcd too.
var ParseRendezvous = tcp.ParseRendezvous

// jobFlags are the flags of the commands that several processes can run as one job.
type jobFlags struct {
	job        bool
	rendezvous string
	timeout    time.Duration
}

func (f *jobFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&f.job, "job", false, "share the work with the other ranks that a launcher has started (see 'cairn help jobs')")
	fl.StringVar(&f.rendezvous, "rendezvous", "", "`address` at which the ranks of --job meet: env://, or etcd://HOST/NAME (default env://)")
	fl.DurationVar(&f.timeout, "join-timeout", 10*time.Minute, "`time` that --job waits until all ranks are there")
}

// run runs fn alone, or as a rank of a job: then g is the group of all ranks. Ranks other
// than 0 print no results.
func (f *jobFlags) run(cmd *cobra.Command, args []string, fn func(g group.Group) error) error {
	if !f.job && f.rendezvous == "" {
		return fn(nil)
	}
	g, err := f.join(cmd)
	if err != nil {
		return err
	}
	if g == nil {
		return fn(nil)
	}
	if g.Rank() > 0 {
		cmd.SetOut(io.Discard)
		err = cmd.Flags().Set("quiet", "true")
	}
	if err == nil {
		err = sameArguments(cmd, args, g)
	}
	if err == nil {
		err = fn(g)
	}
	if err != nil {
		err = report(cmd, g, err)
		g.Leave(err) // the other ranks receive it
	}
	_ = g.Close() // the work is done, or err says why not
	return err
}

// join lets this process meet the other ranks. It returns nil if there is only one.
func (f *jobFlags) join(cmd *cobra.Command) (*tcp.Group, error) {
	if f.timeout <= 0 {
		return nil, usagef(cmd, "--join-timeout %v: want more than 0", f.timeout)
	}
	meet, err := ParseRendezvous(f.rendezvous)
	if err != nil {
		return nil, usagef(cmd, "--rendezvous: %v", err)
	}

	cfg := tcp.Config{Meet: meet, Job: "cairn"}
	_, byFile := meet.(*tcp.File)
	if env, ok := meet.(*tcp.Env); ok || byFile {
		if env == nil {
			env = new(tcp.Env)
		}
		if cfg.Rank, cfg.Size, err = env.Slot(cmd.Context()); err != nil {
			return nil, withHint(usagef(cmd, "--job: %v", err), "see 'cairn help jobs'")
		}
		if cfg.Size == 1 {
			return nil, nil
		}
	}

	if o := outputOf(cmd); !o.quiet && !o.json {
		cfg.Logger = slog.New(slog.NewTextHandler(o.err, nil))
	} else {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}

	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	g, err := tcp.Join(ctx, cfg)
	if err != nil {
		return nil, withHint(err, "see 'cairn help jobs'")
	}
	return g, nil
}

// ownFlags are the flags that may differ between the ranks of a job.
var ownFlags = []string{"json", "quiet", "verbose", "wide", "no-color", "memory", "parallel", "job", "rendezvous", "join-timeout"}

// sameArguments returns an error, on all ranks, that names the ranks that were started with
// other arguments than rank 0.
func sameArguments(cmd *cobra.Command, args []string, g group.Group) error {
	line := []string{cmd.CommandPath()}
	for _, a := range args {
		line = append(line, quoteArg(blob.Redact(a)))
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains(ownFlags, f.Name) {
			line = append(line, fmt.Sprintf("--%s=%s", f.Name, quoteArg(f.Value.String())))
		}
	})
	mine := strings.Join(line, " ")
	return group.Agree(cmd.Context(), g, "compare", []byte(mine), func(zero []byte) error {
		return fmt.Errorf("%w: it was started as '%s', and rank 0 as '%s'", group.ErrDiffers, mine, zero)
	})
}

// silentError is an error that is printed already, by this rank or by another one.
type silentError struct{ error }

func (e *silentError) Unwrap() error { return e.error }

// report prints the error of a rank, unless rank 0 prints the same error. It prints before
// the rank leaves the group: a launcher ends the other ranks as soon as one has failed.
func report(cmd *cobra.Command, g group.Group, err error) error {
	o := outputOf(cmd)
	switch {
	case g.Rank() == 0:
		o.fail(cmd.Context(), cmd, err)
	case !isPrinted(cmd.Context(), g, err):
		o.fail(cmd.Context(), cmd, fmt.Errorf("rank %d: %w", g.Rank(), err))
	}
	return &silentError{err}
}

// printTime bounds how long a rank waits until rank 0 has printed an error.
const printTime = 5 * time.Second

// isPrinted reports whether rank 0 has the same error, and has printed it and left.
func isPrinted(ctx context.Context, g group.Group, err error) bool {
	step, ok := errors.AsType[*group.StepError](err)
	if !ok {
		return false
	}
	if zero := step.Failures[0]; errors.Is(zero, group.ErrGone) {
		return errors.Is(zero, group.ErrLeft) // it was not lost
	}
	ctx, cancel := context.WithTimeout(ctx, printTime)
	defer cancel()
	left, ok := errors.AsType[*group.Error](g.Barrier(ctx)) // fails when rank 0 leaves
	return ok && slices.Equal(left.Ranks, []int{0}) && errors.Is(left, group.ErrLeft)
}

// isFirst reports whether this process is rank 0, or alone.
func isFirst(g group.Group) bool { return g == nil || g.Rank() == 0 }

// onFirst runs fn on rank 0 and returns its error on all ranks.
func onFirst(ctx context.Context, g group.Group, step string, fn func() error) error {
	if g == nil {
		return fn()
	}
	return group.Each(ctx, g, step, func(context.Context) error {
		if g.Rank() > 0 {
			return nil
		}
		return fn()
	})
}

// barLabel returns the label of a progress bar, which shows the bytes of rank 0.
func barLabel(name string, g group.Group) string {
	if g == nil || g.Size() == 1 {
		return name
	}
	return fmt.Sprintf("%s, rank 0 of %d", name, g.Size())
}

// ranksHere returns the number of ranks of a job that run on this host.
func ranksHere(ctx context.Context, g group.Group) (int, error) {
	if g == nil {
		return 1, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return 1, nil // without a name of the host, the rank counts itself alone
	}
	hosts, err := group.Decide(ctx, g, "hosts", group.JSON[string](), group.JSON[[]string](),
		func(context.Context) (string, error) { return host, nil },
		func(_ context.Context, all []string) ([]string, error) { return all, nil })
	n := 0
	for _, h := range hosts {
		if h == host {
			n++
		}
	}
	return max(1, n), err
}

// leastShare is the least memory of a rank that shares a host with others.
const leastShare = 64 << 20

// share divides the default memory and parallelism of a conversion by the ranks of this
// host: together they would read and write more at a time than the host does well.
func (f *conversionFlags) share(cmd *cobra.Command, o *convert.Options, g group.Group) error {
	n, err := ranksHere(cmd.Context(), g)
	if err != nil || n == 1 {
		return err
	}
	if !cmd.Flags().Changed("memory") {
		o.Memory = max(leastShare, o.Memory/int64(n))
	}
	if !cmd.Flags().Changed("parallel") {
		o.Parallel = max(2, runtime.GOMAXPROCS(0)/n)
	}
	return nil
}
