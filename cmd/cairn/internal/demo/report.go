package demo

import "time"

// Report says what the demo did. A step that was not reached is nil.
type Report struct {
	OK    bool    `json:"ok"`
	Path  string  `json:"path"`
	State State   `json:"state"`
	Save  *Save   `json:"save"`
	Check *Check  `json:"verify"`
	Load  *Load   `json:"load"`
	Crash []Crash `json:"crashes"`
	// Procs says that ranks were processes, of which some were killed; where
	// not, Kills is empty, and where they were Crash is.
	Procs bool   `json:"procs"`
	Kills []Kill `json:"kills"`
	// Overwrite is the complete save over the checkpoint, after the crashes.
	Overwrite *Save `json:"overwrite"`
	// Digest is inspect.Combine of the checkpoint that is left.
	Digest string `json:"digest"`
}

// State describes the state that is saved.
type State struct {
	Layers   int   `json:"layers"`
	Width    int64 `json:"width"`
	Tensors  int   `json:"tensors"`
	Objects  int   `json:"objects"`
	NumBytes int64 `json:"nbytes"`
}

// Save describes a save.
type Save struct {
	SaveID string `json:"save_id"`
	Step   int64  `json:"step"`
	Ranks  int    `json:"ranks"`
	Mesh   []int  `json:"mesh"`
	Files  int    `json:"files"` // data files
	Speed
}

// Check describes a full verification.
type Check struct {
	Files  int   `json:"files"` // with the index
	Chunks int64 `json:"chunks"`
	Speed
}

// Load describes a load into other ranks.
type Load struct {
	Ranks int `json:"ranks"`
	// Needed and Read are the bytes that the ranks asked for and that were
	// read from files to satisfy them; Speed counts the former. Compared are
	// those found equal to what was saved.
	Needed   int64 `json:"bytes_needed"`
	Read     int64 `json:"bytes_read"`
	Requests int64 `json:"requests"`
	Compared int64 `json:"bytes_compared"`
	Speed
}

// Crash describes a save that stopped dead, and what was there afterwards.
type Crash struct {
	// At says how far the save was, Operation which one it did not survive.
	At        string `json:"at"`
	Operation string `json:"operation"`
	// Survivor is "old" or "new": the checkpoint that was found whole.
	Survivor string `json:"survivor"`
	SaveID   string `json:"save_id"`
	Digest   string `json:"digest"`
	// LeftFiles and LeftBytes count what the crash left that no record names.
	LeftFiles int   `json:"left_files"`
	LeftBytes int64 `json:"left_bytes"`
}

// Kill describes a save during which a process was killed, and what was there
// afterwards.
type Kill struct {
	Crash
	// Rank was killed.
	Rank int `json:"rank"`
	// Survivors are the other ranks, each of which returned an error that names
	// the one that was killed.
	Survivors int `json:"survivors"`
	// Known is how many seconds after the death the last of them returned.
	Known float64 `json:"seconds_until_known"`
	// Errors are what they returned, each text once.
	Errors []string `json:"errors"`
}

// Speed is how many bytes took how long.
type Speed struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func speed(bytes int64, since time.Time) Speed {
	return Speed{Bytes: bytes, Seconds: time.Since(since).Seconds()}
}

// PerSecond returns the bytes of a second.
func (s Speed) PerSecond() float64 {
	if s.Seconds <= 0 {
		return 0
	}
	return float64(s.Bytes) / s.Seconds
}
