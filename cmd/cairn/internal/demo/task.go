package demo

import (
	"time"
)

// jobName is the name under which the demo's ranks meet, again and again.
const jobName = "cairn-demo"

// task is what a process does, as one rank. It travels as JSON.
type task struct {
	// Load says to load and compare, where not to save.
	Load bool `json:"load"`
	// Bytes, Ranks and LoadRanks are those of the configuration.
	Bytes     int64 `json:"bytes"`
	Ranks     int   `json:"ranks"`
	LoadRanks int   `json:"load_ranks"`
	// Step is the training step to save, or that is there to be loaded.
	Step int64 `json:"step"`
	// Timeout is after how long a silent rank counts as gone.
	Timeout time.Duration `json:"timeout"`
	// Victim kills itself at a point, a killPoint. Without one nobody does.
	Victim int    `json:"victim"`
	Point  string `json:"point"`
}

func (t *task) model() model { return newModel(t.Bytes, t.Ranks, t.LoadRanks) }

// message is what a rank tells the process that has started it: one line of JSON.
type message struct {
	// Moved are bytes since the last message.
	Moved int64 `json:"moved,omitempty"`
	// Dying is the operation that the rank does not survive.
	Dying string `json:"dying,omitempty"`
	// Done is how the task ended, if it did.
	Done *outcome `json:"done,omitempty"`
	// Time is when it was sent.
	Time time.Time `json:"time"`
}

// outcome is how a rank's task ended.
type outcome struct {
	Save *Save `json:"save,omitempty"`
	Load *Load `json:"load,omitempty"`
	// Error is the error's text, Gone the ranks that it says are gone.
	Error string `json:"error,omitempty"`
	Gone  []int  `json:"gone,omitempty"`
}
