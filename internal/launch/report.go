package launch

import (
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
	// Failed is the rank that failed first, or nil.
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
	// Signal is the name of the signal that ended it, or empty.
	Signal string `json:"signal"`
	// Stopped says that it ended after it was told to.
	Stopped bool    `json:"stopped"`
	Seconds float64 `json:"seconds"`
}

func (e *Exit) failed() bool { return e.Code != 0 }

// String says it in words: "exited with code 3 after 1.2s".
func (e *Exit) String() string {
	after := time.Duration(e.Seconds * float64(time.Second)).Round(time.Millisecond)
	if e.Signal != "" {
		return fmt.Sprintf("was ended by a signal (%s) after %v", e.Signal, after)
	}
	return fmt.Sprintf("exited with code %d after %v", e.Code, after)
}

// ExitError reports the rank that failed first.
type ExitError struct {
	Exit
	// Code is what a launcher ends with: that of the rank, unless it had to be
	// killed because of a signal that was passed on, whose code it is then.
	Code int
}

func (e *ExitError) Error() string { return fmt.Sprintf("rank %d %s", e.Rank, &e.Exit) }
