// Package enginetest wraps planners, writers and readers so that a test can step
// in at each of their methods. It knows the order of none: that is the engine's.
// The points are named after the methods, as at Hook.
package enginetest

// Hook is called with the point that a rank has come to: "planner.LocalPlan"
// before that method, and "writer.HasWritten", "writer.HasFinished" and
// "reader.HasRead" after WriteData, Finish and ReadData. An error is what the
// method returns then. Nil does nothing.
type Hook func(point string) error

func (h Hook) at(point string) error {
	if h == nil {
		return nil
	}
	return h(point)
}
