// Package launch starts the ranks of a job as processes on this host, shows their
// output, and ends all of them when one fails. It depends only on the environment
// variables by which ranks meet, not on groups or command lines. The contract is
// at [Run].
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

// ErrTimeout is the cause for a context that bounds the time of a job.
var ErrTimeout = errors.New("time is up")

// ErrOutput reports output that was discarded because its reader made no
// progress.
var ErrOutput = errors.New("the reader of the output makes no progress: the rest is lost")

// ErrReader reports that the reader of the output has closed it, like 'head'
// does.
var ErrReader = errors.New("the output has no reader any more")

// ConfigError reports an invalid [Config].
type ConfigError struct{ text string }

func (e *ConfigError) Error() string { return e.text }

func wrong(format string, args ...any) error { return &ConfigError{fmt.Sprintf(format, args...)} }

// MaxProcesses bounds the number of processes on one host.
const MaxProcesses = 4096

// Config configures a job. N and Command must be set; zero fields have defaults.
type Config struct {
	// N is the number of processes on this host.
	N int
	// Command is the program, looked up as a shell would, and its arguments.
	Command []string
	// Env is added to this process's own environment.
	Env []string

	// Nodes is the number of hosts, each with N processes, and Node the index of
	// this one. Zero Nodes: one.
	Nodes, Node int
	// Addr is MASTER_ADDR, the address of rank 0. Empty: 127.0.0.1.
	Addr string
	// Port is MASTER_PORT. Zero: a free port.
	Port int
	// Unix makes the ranks meet at a socket in a temporary folder instead of at
	// Addr and Port.
	Unix bool
	// Secret is CAIRN_SECRET. Empty: the secret of the environment, or a random one.
	Secret string

	// Stdin is the input of the first rank on this host. All other ranks, and all
	// ranks if it is nil, have no input.
	Stdin io.Reader
	// Stdout and Stderr receive the output of the processes. They need not be
	// safe for concurrent use. Nil: the output is discarded. A file is passed to
	// the processes directly if the output needs no changes.
	Stdout, Stderr io.Writer
	// Prefix puts "[rank] " before each line, in colour on Stdout if Color is set
	// and on Stderr if ErrColor is. Lines are written as a whole; those above 64
	// KiB are cut.
	Prefix, Color, ErrColor bool
	// LogDir is a folder for the unchanged output in files RANK.out and RANK.err.
	// It is created if necessary. The job is refused if such files of an earlier
	// job exist: of any rank or, with several hosts, of a rank of this host.
	// Empty: no logs.
	LogDir string
	// Overwrite removes those files instead.
	Overwrite bool

	// KeepGoing lets the other processes continue when one fails.
	KeepGoing bool
	// Grace is the time that processes have to end before they are killed. Zero:
	// 10 s.
	Grace time.Duration
	// Signals are passed on to all processes. An interrupt or SIGTERM also ends
	// the job within the grace period, and a second one kills it.
	Signals <-chan os.Signal
	// Notify, if not nil, receives messages that a user should see at once: which
	// rank failed, which ranks were killed. It is not called concurrently with
	// itself or with writes of output.
	Notify func(text string)
}

func (c Config) withDefaults() Config {
	c.Nodes, c.Grace = cmp.Or(c.Nodes, 1), cmp.Or(c.Grace, 10*time.Second)
	if c.Addr == "" && c.Nodes == 1 && !c.Unix {
		c.Addr = "127.0.0.1"
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
// when all of them and their descendants have ended.
//
// The processes get SIGTERM, and SIGKILL after the grace period, if one of them
// fails (unless KeepGoing is set), if ctx ends, or if a write of output fails
// with EPIPE. Each process leads a process group, and signals are sent to groups.
// On linux, processes do not outlive this one, even if it is killed.
//
// A writer of output that blocks delays the processes that print, but neither
// signals nor the end of a job. When all processes have ended, the rest of their
// output is still written. If they were killed, or once ctx has ended or a signal
// has ended the job, a writer that makes no progress for two seconds is
// abandoned, and at a second such signal immediately: the error wraps
// [ErrOutput], and a pending call of Write or Notify may continue.
//
// The error is an [*ExitError] with the rank that failed first; a [*SignalError]
// if one of Signals ended the job and not all ranks ended with 0; or it wraps the
// cause of ctx, or [ErrReader]. It also wraps [ErrOutput] if output is lost. If
// no process was started, the report is nil and the error is a [*ConfigError], a
// [*LogError], an error of [exec.LookPath], or an error of the system.
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
	// The kernel kills the processes when the thread that started them ends, so
	// that thread must not end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := j.start(); err != nil {
		return nil, err
	}
	return j.wait(ctx)
}

// secretVariable is the environment variable of the job's secret.
const secretVariable = "CAIRN_SECRET"

// meeting is the address at which the ranks of a job meet.
type meeting struct {
	addr   string
	port   int
	folder string // of the socket, or ""
}

// newMeeting chooses the address at which the ranks meet, as far as the
// configuration leaves it open.
func newMeeting(c *Config) (meeting, error) {
	if c.Unix {
		dir, err := os.MkdirTemp("", "cairn-launch-") // for this user only
		if err != nil {
			return meeting{}, err
		}
		return meeting{addr: "unix:" + filepath.Join(dir, "0.sock"), folder: dir}, nil
	}
	p := meeting{addr: c.Addr, port: c.Port}
	if p.port != 0 {
		return p, nil
	}
	var err error
	p.port, err = freePort(c.Addr)
	return p, err
}

// The range of ports to choose from. It is below the range of ephemeral ports, so
// that no other program gets the port by chance before rank 0 listens there.
const (
	firstPort = 10_000
	lastPort  = 29_999
)

// freePort returns a port that is not in use.
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

func (c *Config) environ(at meeting) ([]string, error) {
	env := append(os.Environ(), c.Env...)
	secret := c.Secret
	for _, v := range env {
		if s, ok := strings.CutPrefix(v, secretVariable+"="); ok && c.Secret == "" {
			secret = s // the last one counts
		}
	}
	if secret == "" && c.Nodes > 1 {
		return nil, wrong("several hosts need one secret: set CAIRN_SECRET on all of them")
	}
	if secret == "" {
		secret = rand.Text()
	}
	return append(env, "MASTER_ADDR="+at.addr, "MASTER_PORT="+strconv.Itoa(at.port), secretVariable+"="+secret,
		"WORLD_SIZE="+strconv.Itoa(c.Nodes*c.N), "LOCAL_WORLD_SIZE="+strconv.Itoa(c.N)), nil
}

// Report is the result of a job.
type Report struct {
	OK         bool    `json:"ok"`
	WorldSize  int     `json:"world_size"`
	MasterAddr string  `json:"master_addr"`
	MasterPort int     `json:"master_port"` // zero with a unix socket
	Seconds    float64 `json:"seconds"`
	// Failed is the rank that failed first, or nil if no rank failed before the
	// job was ended from outside. Of several ranks that end at the same time it
	// is one that was killed by a signal, if the system reports it (linux).
	Failed *int `json:"failed"`
	// Ranks are the ranks of this host, in order.
	Ranks []Exit `json:"ranks"`
}

// Exit describes the end of a process.
type Exit struct {
	Rank int `json:"rank"`
	PID  int `json:"pid"`
	// Code is the exit code: 128 plus the number of the signal, as in shells, if
	// a signal ended the process.
	Code int `json:"code"`
	// Signal is the name of the signal that ended it, such as SIGSEGV, or "".
	Signal string `json:"signal"`
	// Stopped is set if it ended after it was asked to.
	Stopped bool    `json:"stopped"`
	Seconds float64 `json:"seconds"`

	at time.Time // when the launcher noticed it
}

// isCause reports whether no other rank can be the reason for the end of the
// process: a signal ended it, other than the one with which programs abort
// themselves.
func (e *Exit) isCause() bool { return e.Signal != "" && e.Signal != "SIGABRT" }

func (e *Exit) failed() bool { return e.Code != 0 }

// String describes the exit: "exited with code 3 after 1.2s".
func (e *Exit) String() string {
	after := after(time.Duration(e.Seconds * float64(time.Second)))
	if e.Signal != "" {
		return fmt.Sprintf("was ended by %s %s", e.Signal, after)
	}
	return fmt.Sprintf("exited with code %d %s", e.Code, after)
}

// after returns a duration with a suitable precision.
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

// Notified reports whether an error of [Run] was already passed to Notify, with
// no output after it.
func Notified(err error) bool {
	_, ok := errors.AsType[*notifiedError](err)
	return ok
}

// notifiedError is an error that was passed to Notify.
type notifiedError struct{ error }

func (e *notifiedError) Unwrap() error { return e.error }

// SignalError reports a job that a signal from outside has ended.
type SignalError struct {
	// Signal is its name.
	Signal string
	// First is the exit of the first rank that did not end with 0.
	First Exit
	// Code is the exit code for a launcher: the code of First, or of the signal
	// if ranks had to be killed.
	Code int
}

func (e *SignalError) Error() string {
	text := "the job was ended by " + e.Signal
	if e.First.Signal == "" {
		text += fmt.Sprintf(": rank %d %s", e.First.Rank, &e.First) // it explains the code
	}
	return text
}
