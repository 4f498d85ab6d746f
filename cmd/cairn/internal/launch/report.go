package launch

import (
	"errors"
	"fmt"
	"time"
)

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
