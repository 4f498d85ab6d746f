package run

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/storage"
)

// BestBy returns the rule that keeps the best checkpoint by a metric, as a policy names it after "best
// 1 by": "loss" for the lowest value, "highest accuracy" for the highest one. The error wraps
// ErrPolicy.
func BestBy(text string) (Best, error) {
	r := Best{N: 1}
	err := r.parseBy(strings.Fields(text))
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return r, fmt.Errorf("%w: best by %q: %w", ErrPolicy, text, err)
	}
	return r, nil
}

// BestOf returns the complete checkpoint of all that the rule by, which BestBy returns, keeps. all are the
// checkpoints of a run, the oldest first. The result is on a line that was left only if no checkpoint of
// the current line has the metric. The error wraps storage.ErrNotFound if no checkpoint has it. If the notes
// of a complete checkpoint cannot be read, it may be the best one: then BestOf returns the error of
// its notes.
func BestOf(all []Checkpoint, by Best) (*Checkpoint, error) {
	by.N = 1
	if err := by.check(); err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrPolicy, by, err)
	}
	complete := slices.DeleteFunc(slices.Clone(all), func(c Checkpoint) bool { return !c.Complete() })
	for i := range complete {
		if err := complete[i].hides(by.By); err != nil {
			return nil, fmt.Errorf("the best checkpoint by %s is not known, because %s may be it: %w", by.by(), complete[i].Name, err)
		}
	}

	found := by.keeps(complete, time.Time{})
	if len(found) > 0 {
		return &complete[found[0]], nil
	}
	known := metricsOf(complete)
	if known[by.By] {
		return nil, fmt.Errorf("%w with a number as its %s: it is NaN in all of them", storage.ErrNotFound, by.By)
	}
	return nil, fmt.Errorf("%w with the metric %s: %s", storage.ErrNotFound, by.By, noMetric(by.By, known))
}

func (r Best) keeps(all []Checkpoint, _ time.Time) []int {
	var out []int
	for i := range all {
		if v, ok := all[i].Metrics[r.By]; ok && !math.IsNaN(v) {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(i, j int) int {
		byValue := cmp.Compare(all[i].Metrics[r.By], all[j].Metrics[r.By])
		if r.Highest {
			byValue = -byValue
		}
		return cmp.Or(-leftFirst(&all[i], &all[j]), byValue, j-i)
	})
	return out[:min(r.N, len(out))]
}

// metricsOf returns the names of the metrics of some checkpoints.
func metricsOf(all []Checkpoint) map[string]bool {
	known := map[string]bool{}
	for i := range all {
		for name := range all[i].Metrics {
			known[name] = true
		}
	}
	return known
}

// noMetric says that no checkpoint has a metric, and which ones there are.
func noMetric(metric string, known map[string]bool) string {
	if len(known) == 0 {
		return fmt.Sprintf("no checkpoint has the metric %s, or any other", metric)
	}
	return fmt.Sprintf("no checkpoint has the metric %s; the metrics are %s", metric, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
}
