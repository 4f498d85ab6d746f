package meta

import (
	"errors"
	"fmt"
	"time"
)

// The phases of saves and loads.
const (
	PhaseStage      = "stage"       // a background save copies the state aside
	PhasePlan       = "plan"        // the rank plans its part
	PhaseGlobalPlan = "global-plan" // rank 0 makes the plans of all ranks from their parts
	PhaseWrite      = "write"       // the rank writes its data files
	PhaseCommit     = "commit"      // rank 0 publishes the checkpoint
	PhaseRead       = "read"        // the rank reads its chunks
)

// Phase is a part of the work of one rank in a save or load. The time that the rank waits for
// other ranks is between its phases.
type Phase struct {
	Name string `json:"name"`
	// Start and End count from the beginning of the save or load.
	Start time.Duration `json:"start_ns"`
	End   time.Duration `json:"end_ns"`
	// Bytes are the bytes that were copied, written or read.
	Bytes int64 `json:"bytes"`
}

// Timeline has the phases of each rank of a save, by rank. The times of all ranks
// count from the same moment.
type Timeline [][]Phase

// Bounds of a Timeline.
const (
	MaxPhases    = 16                         // of one rank
	MaxPhaseName = 32                         // bytes
	MaxPhaseTime = 1 << 50 * time.Microsecond // 35 years
)

// ErrTimeline reports a Timeline that makes no sense.
var ErrTimeline = errors.New("invalid timeline")

// Check returns an error that wraps ErrTimeline if t has names, times or bytes that no
// save has.
func (t Timeline) Check() error {
	for rank, phases := range t {
		if len(phases) > MaxPhases {
			return fmt.Errorf("%w: rank %d has %d phases; at most %d are possible", ErrTimeline, rank, len(phases), MaxPhases)
		}
		for i := range phases {
			if err := phases[i].check(); err != nil {
				return fmt.Errorf("%w: rank %d: %w", ErrTimeline, rank, err)
			}
		}
	}
	return nil
}

func (p *Phase) check() error {
	if err := CheckPhaseName(p.Name); err != nil {
		return err
	}
	if p.Start < 0 || p.End < p.Start || p.End > MaxPhaseTime || p.Bytes < 0 {
		return fmt.Errorf("%s from %v to %v with %d bytes", p.Name, p.Start, p.End, p.Bytes)
	}
	return nil
}

// CheckPhaseName returns an error unless s can be the name of a phase: lower-case
// letters and inner dashes.
func CheckPhaseName(s string) error {
	if s == "" || len(s) > MaxPhaseName || s[0] == '-' || s[len(s)-1] == '-' {
		return fmt.Errorf("%.40q is not the name of a phase", s)
	}
	for _, c := range []byte(s) {
		if c != '-' && (c < 'a' || c > 'z') {
			return fmt.Errorf("%.40q is not the name of a phase", s)
		}
	}
	return nil
}
