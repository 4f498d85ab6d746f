package group

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// StepError reports a step that failed. Every rank of the step returns one with
// the same text and the same failed ranks.
type StepError struct {
	// Step is the name of the step.
	Step string
	// Failures says what failed on which rank of the step's group. Errors from
	// other ranks are of type [*RemoteError].
	Failures map[int]error
}

// Ranks returns the failed ranks, ascending.
func (e *StepError) Ranks() []int { return slices.Sorted(maps.Keys(e.Failures)) }

// Error names the step and the failed ranks in ascending order, those with the
// same text together. It spells out two dozen texts at most.
func (e *StepError) Error() string {
	var b strings.Builder
	b.WriteString(e.Step)
	sep := ": "
	told := 0
	for i, ranks := range e.byText() {
		if i == maxSpelled {
			fmt.Fprintf(&b, "%sand %d more ranks", sep, len(e.Failures)-told)
			break
		}
		fmt.Fprintf(&b, "%s%s: %v", sep, ranksText(ranks), e.Failures[ranks[0]])
		told += len(ranks)
		sep = "; "
	}
	return b.String()
}

// byText returns the failed ranks in groups of one text, by their first rank.
func (e *StepError) byText() [][]int {
	var groups [][]int
	at := make(map[string]int)
	for _, rank := range e.Ranks() {
		text := fmt.Sprint(e.Failures[rank])
		i, ok := at[text]
		if !ok {
			i = len(groups)
			at[text] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], rank)
	}
	return groups
}

// Unwrap returns the failures in the order of their ranks.
func (e *StepError) Unwrap() []error {
	errs := make([]error, 0, len(e.Failures))
	for _, rank := range e.Ranks() {
		errs = append(errs, e.Failures[rank])
	}
	return errs
}

// Ranks returns the ranks that err names as those at fault: of the first
// [*StepError] in it, or else of the first [*Error]. It is nil where err has
// neither.
func Ranks(err error) []int {
	if e, ok := errors.AsType[*StepError](err); ok {
		return e.Ranks()
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Ranks
	}
	return nil
}
