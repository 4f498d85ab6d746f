package convert

import "time"

// SetStep makes Publish call fn before each of its steps.
func (p *Place) SetStep(fn func(name string) error) { p.step = fn }

// SetVisibleTime changes how long a process waits until it sees the files of another one.
func SetVisibleTime(d time.Duration) (undo func()) {
	old := visibleTime
	visibleTime = d
	return func() { visibleTime = old }
}
