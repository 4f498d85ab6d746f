// Package launch starts the ranks of a job as processes of this host, shows
// what they print, and ends all of them when one fails. It knows nothing of
// groups beyond the environment by which their ranks meet, nor of command lines.
// The contract is that of [Run].
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"
)

// ErrTimeout is the cause to give to a context that bounds how long a job may
// take.
var ErrTimeout = errors.New("time is up")

// ErrOutput reports output that was given up because nobody took it.
var ErrOutput = errors.New("nobody takes the output: the rest of it is lost")

// ErrReader reports that a reader of the output has gone, as 'head' does.
var ErrReader = errors.New("nobody reads the output any more")

// ConfigError says what is wrong with a [Config].
type ConfigError struct{ text string }

func (e *ConfigError) Error() string { return e.text }

func wrong(format string, args ...any) error { return &ConfigError{fmt.Sprintf(format, args...)} }

// MaxProcesses bounds the processes that are started on one host.
const MaxProcesses = 4096

// Config says what to start. N and Command must be set; zero fields have
// defaults.
type Config struct {
	// N is the number of processes on this host.
	N int
	// Command is the program, looked up as a shell would, and its arguments.
	Command []string
	// Env is added to this process's own environment.
	Env []string

	// Nodes is the number of hosts, each with N processes, and Node the number
	// of this one, from zero. Zero Nodes: one.
	Nodes, Node int
	// Addr is MASTER_ADDR, at which rank 0 is to listen. Empty: 127.0.0.1.
	Addr string
	// Port is MASTER_PORT. Zero: one that is free.
	Port int
	// Unix lets the ranks meet at a socket in a folder of their own, which is
	// removed at the end, instead of at Addr and Port.
	Unix bool
	// Secret is CAIRN_SECRET. Empty: that of the environment, or a random one.
	Secret string

	// Stdin is what the first rank of this host reads. Nil, and for all others:
	// nothing.
	Stdin io.Reader
	// Stdout and Stderr get what the processes print. They need not be safe for
	// concurrent use unless they are the same in something else's hands. Nil: it
	// is thrown away. A file is handed to the processes as it is, where nothing
	// is to be done with what they print.
	Stdout, Stderr io.Writer
	// Streams is used instead of Stdout, Stderr and Prefix where it is not nil:
	// it returns where the output of a rank goes, as its bytes are. It is called
	// once for each rank before anything is started.
	Streams func(rank int) (stdout, stderr io.Writer)
	// Prefix puts "[rank] " before each line, in colours on Stdout with Color and
	// on Stderr with ErrColor. Lines are written whole, but for those above
	// 64 KiB, which are cut.
	Prefix, Color, ErrColor bool
	// LogDir is a folder in which files RANK.out and RANK.err get what the
	// processes print, as its bytes are. It is made if need be. Where it holds such
	// files already, of any rank or, with several hosts, of a rank of this one, the
	// job is refused: they are those of an earlier one. Empty: none.
	LogDir string
	// Overwrite removes those files instead.
	Overwrite bool

	// KeepGoing lets the other processes go on where one fails.
	KeepGoing bool
	// Grace is how long processes have to end by themselves before they are
	// killed. Zero: 10 s.
	Grace time.Duration
	// Signals are passed on to all processes. An interrupt or SIGTERM also says
	// that they are to end, within the grace period, and a second one kills them.
	Signals <-chan os.Signal
	// Tell, if not nil, is told what a user will want to know at once: which rank
	// failed, who had to be killed. It is not called concurrently, with itself or
	// with writes of output.
	Tell func(text string)
}

func (c Config) withDefaults() Config {
	if c.Nodes == 0 {
		c.Nodes = 1
	}
	if c.Addr == "" && c.Nodes == 1 && !c.Unix {
		c.Addr = "127.0.0.1"
	}
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	return c
}

func (c *Config) check() error {
	switch {
	case c.N < 1 || c.N > MaxProcesses:
		return wrong("%d processes: want 1 to %d", c.N, MaxProcesses)
	case len(c.Command) == 0:
		return wrong("no program to start")
	case c.Nodes < 1 || c.Node < 0 || c.Node >= c.Nodes:
		return wrong("host %d of %d: hosts count from 0", c.Node, c.Nodes)
	case c.Port < 0 || c.Port > 65535:
		return wrong("port %d: want 1 to 65535", c.Port)
	case c.Nodes > 1 && c.Unix:
		return wrong("a unix socket is for one host")
	case c.Unix && (c.Addr != "" || c.Port != 0):
		return wrong("a unix socket has no other address and no port")
	case c.Nodes > 1 && (c.Addr == "" || c.Port == 0):
		return wrong("several hosts need the address and the port of rank 0")
	case c.Grace < 0:
		return wrong("a grace period of %v", c.Grace)
	}
	return nil
}

// Run starts N processes, each with MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE and CAIRN_SECRET in its environment, and returns
// when all of them, and all that they have started, have ended.
//
// When one fails, unless KeepGoing is set, when ctx ends, and when a write of output
// fails with EPIPE because its reader has gone, the others get SIGTERM and, after the grace period, SIGKILL. Each process leads a process group,
// and it is groups that get signals. Where the system can do that (linux),
// processes do not outlive this one, even where it is killed.
//
// A writer of output that blocks holds up the processes that print, and neither
// signals nor the end of a job. When all processes have ended, what they have
// printed is still written. Where they were killed, and once ctx has ended or a
// signal has said that the job is to end, a writer that takes nothing for two
// seconds is left behind, at a second such signal at once: the error wraps
// [ErrOutput], and the call of Write or Tell that has not returned may still go on.
//
// The error is an [*ExitError] with the rank that failed first; a [*SignalError]
// where one of Signals has ended the job and not all ranks ended with 0; or it wraps
// the cause of ctx, or [ErrReader]. It also wraps [ErrOutput] where output is lost.
// Where nothing was started the report is nil and the error a [*ConfigError], a
// [*LogError], that of [exec.LookPath], or of the system.
func Run(ctx context.Context, c Config) (*Report, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	j, err := newJob(c)
	if err != nil {
		return nil, err
	}
	defer j.cleanUp()
	// The kernel kills the processes when the thread that has started them ends,
	// so it must be one that stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := j.start(); err != nil {
		return nil, err
	}
	return j.wait(ctx)
}
