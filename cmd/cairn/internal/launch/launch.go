// Package launch starts the ranks of a job as processes of this host, shows
// what they print, and ends all of them when one fails. It knows nothing of
// groups beyond the environment by which their ranks meet, nor of command lines.
// The contract is that of [Run].
package launch

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
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

// secretVariable is the environment variable of the job's secret.
const secretVariable = "CAIRN_SECRET"

// place is where the ranks of a job meet.
type place struct {
	addr   string
	port   int
	folder string // of the socket, or empty
}

// newPlace chooses where the ranks meet, as far as that is open.
func newPlace(c *Config) (place, error) {
	if c.Unix {
		dir, err := os.MkdirTemp("", "cairn-run-") // for this user only
		if err != nil {
			return place{}, err
		}
		return place{addr: "unix:" + filepath.Join(dir, "0.sock"), folder: dir}, nil
	}
	p := place{addr: c.Addr, port: c.Port}
	if p.port != 0 {
		return p, nil
	}
	var err error
	p.port, err = freePort(c.Addr)
	return p, err
}

// The ports among which one is chosen. They lie below those that systems give to
// whoever does not ask for a certain one, so that nobody gets it by accident
// before rank 0 listens there.
const (
	firstPort = 10_000
	lastPort  = 29_999
)

// freePort returns a port at which nobody listens.
func freePort(host string) (int, error) {
	var last error
	for range 64 {
		n, err := rand.Int(rand.Reader, big.NewInt(lastPort-firstPort+1))
		if err != nil {
			return 0, err
		}
		port := firstPort + int(n.Int64())
		ln, err := net.Listen("tcp", net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(port)))
		if err == nil {
			return port, ln.Close()
		}
		last = err
	}
	return 0, fmt.Errorf("find a free port: %w", last)
}

// environ returns what all processes have in their environment.
func (c *Config) environ(at place) ([]string, error) {
	env := append(os.Environ(), c.Env...)
	secret := c.secret(env)
	if secret == "" && c.Nodes > 1 {
		return nil, wrong("several hosts need one secret, and none is set")
	}
	if secret == "" {
		secret = rand.Text()
	}
	return append(env, "MASTER_ADDR="+at.addr, "MASTER_PORT="+strconv.Itoa(at.port), secretVariable+"="+secret,
		"WORLD_SIZE="+strconv.Itoa(c.Nodes*c.N), "LOCAL_WORLD_SIZE="+strconv.Itoa(c.N)), nil
}

// secret returns the job's secret, or "" where none is set.
func (c *Config) secret(env []string) string {
	secret := ""
	for _, v := range env {
		if s, ok := strings.CutPrefix(v, secretVariable+"="); ok {
			secret = s // the last one counts
		}
	}
	return cmp.Or(c.Secret, secret)
}

// Report says how a job went.
type Report struct {
	OK         bool    `json:"ok"`
	WorldSize  int     `json:"world_size"`
	MasterAddr string  `json:"master_addr"`
	MasterPort int     `json:"master_port"` // zero with a unix socket
	Seconds    float64 `json:"seconds"`
	// Failed is the rank that failed first, or nil where none did before the job
	// was ended from outside. Of several that end at the same time it is one that a
	// signal has ended, if the system tells (linux).
	Failed *int `json:"failed"`
	// Ranks are those of this host, in their order.
	Ranks []Exit `json:"ranks"`
}

// Exit says how a process ended.
type Exit struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// Code is the exit code; of a process that a signal ended 128 and the
	// signal's number, as shells count.
	Code int `json:"code"`
	// Signal is the name of the signal that ended it, as SIGSEGV, or empty.
	Signal string `json:"signal"`
	// Stopped says that it ended after it was told to.
	Stopped bool    `json:"stopped"`
	Seconds float64 `json:"seconds"`

	at time.Time // when the launcher noticed it
}

// isCause reports whether the process certainly did not end because of another
// rank: a signal has ended it, other than the one with which programs end
// themselves.
func (e *Exit) isCause() bool { return e.Signal != "" && e.Signal != "SIGABRT" }

func (e *Exit) failed() bool { return e.Code != 0 }

// String says it in words: "exited with code 3 after 1.2s".
func (e *Exit) String() string {
	after := after(time.Duration(e.Seconds * float64(time.Second)))
	if e.Signal != "" {
		return fmt.Sprintf("was ended by %s %s", e.Signal, after)
	}
	return fmt.Sprintf("exited with code %d %s", e.Code, after)
}

// after says when something was, as exactly as anybody wants to know.
func after(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "at once"
	case d < time.Second:
		return "after " + d.Round(time.Millisecond).String()
	case d < time.Minute:
		return "after " + d.Round(100*time.Millisecond).String()
	}
	return "after " + d.Round(time.Second).String()
}

// ExitError reports the rank that failed first.
type ExitError struct{ Exit }

func (e *ExitError) Error() string { return fmt.Sprintf("rank %d %s", e.Rank, &e.Exit) }

// Told reports whether an error of [Run] need not be said again: Tell was told the
// same, and nothing was written since.
func Told(err error) bool {
	_, ok := errors.AsType[*toldError](err)
	return ok
}

// toldError is an error that was told.
type toldError struct{ error }

func (e *toldError) Unwrap() error { return e.error }

// SignalError reports a job that a signal from outside has ended.
type SignalError struct {
	// Signal is its name.
	Signal string
	// First is how the rank ended that was the first to end other than with 0.
	First Exit
	// Code is what a launcher ends with: that of First, unless ranks had to be
	// killed, and that of the signal then.
	Code int
}

func (e *SignalError) Error() string {
	text := "the job was ended by " + e.Signal
	if e.First.Signal == "" {
		text += fmt.Sprintf(": rank %d %s", e.First.Rank, &e.First) // which is why the code is what it is
	}
	return text
}
