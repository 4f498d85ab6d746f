package run

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cairn-ckpt/cairn/internal/size"
	"github.com/cairn-ckpt/cairn/storage"
)

// Policy says which checkpoints of a run are kept. A checkpoint is kept if at least one rule
// keeps it; a policy without rules keeps all of them. Apply describes the checkpoints that
// are kept in any case. ParsePolicy returns the policy of a text, and String is its inverse.
type Policy struct {
	Rules []Rule
	// AtMost bounds the bytes of the checkpoints that the rules keep: the oldest ones are
	// removed until the others fit. Tagged ones stay if a rule keeps them for their tags.
	// Zero: there is no bound.
	AtMost int64

	keepTagged bool              // PruneOptions.KeepTagged
	protect    map[string]string // PruneOptions.protect
}

// Rule is a part of a Policy: Last, EverySteps, Every, Best, Tagged, Within or Left. String
// returns its text.
type Rule interface {
	String() string
	// check returns an error if the rule makes no sense.
	check() error
	// keeps returns the checkpoints that the rule keeps, by their numbers in all, which
	// are complete and in order, the oldest first.
	keeps(all []Checkpoint, now time.Time) []int
}

type (
	// Last keeps this number of newest checkpoints: "last 3".
	Last int
	// EverySteps keeps the first checkpoint at or after each multiple of this number of
	// steps, and the one of step 0: "every 5000 steps".
	EverySteps int64
	// Every keeps the first checkpoint of each period of this length: "every hour",
	// "every 6 hours". The first period began with the year 1970, in UTC.
	Every time.Duration
	// Best keeps the checkpoints with the lowest or highest values of a metric: "best 2 by
	// loss", "best 2 by highest accuracy". Of equal ones, it keeps the newer. A checkpoint
	// with the metric NaN is never among them.
	Best struct {
		N       int
		By      string
		Highest bool
	}
	// Tagged keeps the checkpoints that have this tag: "tagged release". Empty: the ones that
	// have any tag, "tagged".
	Tagged string
	// Within keeps the checkpoints that are not older than this: "within 12 hours".
	Within time.Duration
	// Left keeps the checkpoints on lines that were left not longer ago than this: "left
	// within 2 days". DefaultLeft holds for policies without it.
	Left time.Duration
)

// ErrPolicy reports a policy that makes no sense. It wraps storage.ErrOptions.
var ErrPolicy error = policyError{}

type policyError struct{}

func (policyError) Error() string { return "unusable policy" }
func (policyError) Unwrap() error { return storage.ErrOptions }

// The bounds of policies.
const (
	maxRules      = 100
	maxPolicyText = 10_000
	maxLabel      = 128 // bytes of a tag or of the name of a metric
)

// units are the units of time of policies, the longest first.
var units = []struct {
	name string
	time.Duration
}{
	{"week", 7 * 24 * time.Hour},
	{"day", 24 * time.Hour},
	{"hour", time.Hour},
	{"minute", time.Minute},
	{"second", time.Second},
}

// String returns "last N".
func (r Last) String() string { return fmt.Sprintf("last %d", int(r)) }

// String returns "every N steps".
func (r EverySteps) String() string {
	if r == 1 {
		return "every step"
	}
	return fmt.Sprintf("every %d steps", int64(r))
}

// String returns "every hour", "every 6 hours" and so on.
func (r Every) String() string {
	n, unit := inUnits(time.Duration(r))
	if n == 1 {
		return "every " + unit
	}
	return fmt.Sprintf("every %d %ss", n, unit)
}

// String returns "best N by METRIC" or "best N by highest METRIC".
func (r Best) String() string { return fmt.Sprintf("best %d by %s", r.N, r.by()) }

// by returns the metric, and its order unless the lowest value is the best.
func (r Best) by() string {
	switch {
	case r.Highest:
		return "highest " + r.By
	case isOrder(r.By):
		return "lowest " + r.By // otherwise it would be the order
	}
	return r.By
}

// String returns "tagged" or "tagged TAG".
func (r Tagged) String() string { return strings.TrimSuffix("tagged "+string(r), " ") }

// String returns "within N hours" and so on.
func (r Within) String() string {
	n, unit := inUnits(time.Duration(r))
	if n == 1 {
		return "within 1 " + unit
	}
	return fmt.Sprintf("within %d %ss", n, unit)
}

// String returns "left within N days" and so on.
func (r Left) String() string { return "left " + Within(r).String() }

// inUnits returns a time as a number of the longest unit that divides it.
func inUnits(d time.Duration) (int64, string) {
	for _, u := range units {
		if d%u.Duration == 0 {
			return int64(d / u.Duration), u.name
		}
	}
	return int64(d / time.Second), "second"
}

func isOrder(word string) bool {
	return strings.EqualFold(word, "lowest") || strings.EqualFold(word, "highest")
}

// String returns the text of the policy, for ParsePolicy. A policy that keeps all
// checkpoints has the text "all".
func (p Policy) String() string {
	var out []string
	for _, r := range p.Rules {
		out = append(out, r.String())
	}
	if p.AtMost > 0 {
		out = append(out, "at most "+bytesText(p.AtMost))
	}
	if len(out) == 0 {
		return "all"
	}
	return strings.Join(out, ", ")
}

// bytesText returns a number of bytes in the largest unit that divides it.
func bytesText(n int64) string {
	for _, u := range []struct {
		name string
		n    int64
	}{
		{"PB", 1e15}, {"PiB", 1 << 50}, {"TB", 1e12}, {"TiB", 1 << 40}, {"GB", 1e9}, {"GiB", 1 << 30}, {"MB", 1e6}, {"MiB", 1 << 20},
	} {
		if n%u.n == 0 {
			return fmt.Sprintf("%d %s", n/u.n, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// KeepsAll reports whether the policy keeps every checkpoint.
func (p Policy) KeepsAll() bool { return len(p.Rules) == 0 && p.AtMost == 0 }

// MarshalText returns the text of the policy. It is empty if the policy keeps all
// checkpoints.
func (p Policy) MarshalText() ([]byte, error) {
	if p.KeepsAll() {
		return nil, nil
	}
	return []byte(p.String()), p.Check()
}

// UnmarshalText is ParsePolicy.
func (p *Policy) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePolicy(string(text))
	return err
}

// Check returns an error that wraps ErrPolicy if a rule makes no sense, such as Last(0).
func (p Policy) Check() error {
	var errs []error
	if p.AtMost < 0 {
		errs = append(errs, fmt.Errorf("%w: at most %d bytes: the number is negative", ErrPolicy, p.AtMost))
	}
	if len(p.Rules) > maxRules {
		errs = append(errs, fmt.Errorf("%w: it has %d rules, at most %d", ErrPolicy, len(p.Rules), maxRules))
	}
	for _, r := range p.Rules {
		if r == nil {
			errs = append(errs, fmt.Errorf("%w: a rule is nil", ErrPolicy))
		} else if err := r.check(); err != nil {
			errs = append(errs, fmt.Errorf("%w: %q: %w", ErrPolicy, r, err))
		}
	}
	return errors.Join(errs...)
}

func (r Last) check() error       { return positive(int64(r)) }
func (r EverySteps) check() error { return positive(int64(r)) }
func (r Every) check() error      { return wholeSeconds(time.Duration(r)) }
func (r Within) check() error     { return wholeSeconds(time.Duration(r)) }
func (r Left) check() error       { return wholeSeconds(time.Duration(r)) }
func (r Best) check() error       { return errors.Join(positive(int64(r.N)), CheckLabel(r.By)) }

func (r Tagged) check() error {
	if r == "" {
		return nil
	}
	return CheckLabel(string(r))
}

func positive(n int64) error {
	if n < 1 {
		return fmt.Errorf("%d is less than 1", n)
	}
	return nil
}

func wholeSeconds(d time.Duration) error {
	if d < time.Second || d%time.Second != 0 {
		return fmt.Errorf("%v is no positive number of seconds", d)
	}
	return nil
}

// CheckLabel returns an error unless text can be a tag or the name of a metric: 1 to 128
// bytes of valid UTF-8 without spaces, commas and characters that do not print.
func CheckLabel(text string) error {
	switch {
	case text == "":
		return errors.New("a tag or the name of a metric is empty")
	case len(text) > maxLabel:
		return fmt.Errorf("%.20q… has %d bytes, at most %d", text, len(text), maxLabel)
	case strings.ContainsFunc(text, func(r rune) bool {
		return r == ',' || r == unicode.ReplacementChar || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}):
		return fmt.Errorf("%q has a space, a comma or a character that does not print", text)
	}
	return nil
}

// ParsePolicy returns the policy of a text: rules with commas between them, such as
//
//	last 3, every 5000 steps, every 6 hours, best 2 by loss, tagged, within 12 hours, left within 7 days, at most 2 TB
//
// The empty text and "all" keep all checkpoints. The error wraps ErrPolicy and names the
// word that is wrong.
func ParsePolicy(text string) (Policy, error) {
	var p Policy
	if len(text) > maxPolicyText {
		return p, fmt.Errorf("%w: the text has %d bytes, at most %d", ErrPolicy, len(text), maxPolicyText)
	}
	if strings.TrimSpace(text) == "" {
		return p, nil
	}
	parts := strings.Split(text, ",")
	for _, part := range parts {
		words := strings.Fields(part)
		if len(words) == 1 && strings.EqualFold(words[0], "all") && len(parts) == 1 {
			return Policy{}, nil
		}
		if err := p.add(words); err != nil {
			return Policy{}, fmt.Errorf("%w: %q: %w", ErrPolicy, strings.TrimSpace(part), err)
		}
	}
	return p, p.Check()
}

// add adds the rule of some words.
func (p *Policy) add(words []string) error {
	if len(words) == 0 {
		return errors.New("there is nothing between two commas")
	}
	var r Rule
	var err error
	switch rest := words[1:]; strings.ToLower(words[0]) {
	case "last":
		r, err = parseLast(rest)
	case "every":
		r, err = parseEvery(rest)
	case "best":
		r, err = parseBest(rest)
	case "tagged":
		r, err = parseTagged(rest)
	case "within":
		r, err = parseWithin(rest)
	case "left":
		r, err = parseLeft(rest)
	case "at":
		return p.parseCeiling(rest)
	case "all":
		err = errors.New("all stands alone")
	default:
		err = fmt.Errorf("%q is not a rule: want last, every, best, tagged, within, left within, at most or all", words[0])
	}
	if err == nil {
		p.Rules = append(p.Rules, r)
	}
	return err
}

func parseLast(words []string) (Rule, error) {
	n, rest, err := parseNumber(words)
	if err != nil {
		return nil, err
	}
	if n > math.MaxInt32 {
		return nil, fmt.Errorf("%d is too many", n)
	}
	return Last(n), nothingAfter(rest)
}

// parseNumber parses the first word.
func parseNumber(words []string) (int64, []string, error) {
	if len(words) == 0 {
		return 0, nil, errors.New("a number is missing")
	}
	n, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil {
		if c := words[0][0]; c >= '0' && c <= '9' {
			return 0, nil, fmt.Errorf(`%q is not a whole number; a unit stands apart, as in "12 hours"`, words[0])
		}
		return 0, nil, fmt.Errorf("%q is not a number", words[0])
	}
	return n, words[1:], positive(n)
}

func nothingAfter(words []string) error {
	if len(words) > 0 {
		return fmt.Errorf("%q is unexpected; rules have commas between them", words[0])
	}
	return nil
}

// parseEvery parses "5000 steps", "6 hours", "hour" and so on.
func parseEvery(words []string) (Rule, error) {
	n, rest := int64(1), words
	if len(words) != 1 || words[0][0] >= '0' && words[0][0] <= '9' { // otherwise a single word is a unit
		var err error
		if n, rest, err = parseNumber(words); err != nil {
			return nil, err
		}
	}
	if len(rest) > 0 && (strings.EqualFold(rest[0], "step") || strings.EqualFold(rest[0], "steps")) {
		return EverySteps(n), nothingAfter(rest[1:])
	}
	d, err := parseTime(n, rest, "steps, ")
	return Every(d), err
}

func parseWithin(words []string) (Rule, error) {
	n, rest, err := parseNumber(words)
	if err != nil {
		return nil, err
	}
	d, err := parseTime(n, rest, "")
	return Within(d), err
}

// parseLeft parses "within 2 days".
func parseLeft(words []string) (Rule, error) {
	if len(words) == 0 || !strings.EqualFold(words[0], "within") {
		return nil, errors.New(`want "left within" and a time`)
	}
	r, err := parseWithin(words[1:])
	if err != nil {
		return nil, err
	}
	return Left(r.(Within)), nil
}

// parseTime returns n times the unit that the only word names.
func parseTime(n int64, words []string, others string) (time.Duration, error) {
	if len(words) == 0 {
		return 0, fmt.Errorf("a unit is missing: want %sseconds, minutes, hours, days or weeks", others)
	}
	for _, u := range units {
		if name := strings.ToLower(words[0]); name != u.name && name != u.name+"s" {
			continue
		}
		if n > int64(math.MaxInt64/u.Duration) {
			return 0, fmt.Errorf("%d %ss is too long", n, u.name)
		}
		return time.Duration(n) * u.Duration, nothingAfter(words[1:])
	}
	return 0, fmt.Errorf("%q is not a unit: want %sseconds, minutes, hours, days or weeks", words[0], others)
}

// parseBest parses "2 by loss" and "2 by highest accuracy".
func parseBest(words []string) (Rule, error) {
	n, rest, err := parseNumber(words)
	switch {
	case err != nil:
		return nil, err
	case n > math.MaxInt32:
		return nil, fmt.Errorf("%d is too many", n)
	case len(rest) == 0:
		return nil, errors.New(`"by" and a metric are missing`)
	case !strings.EqualFold(rest[0], "by"):
		return nil, fmt.Errorf(`%q: want "by" and a metric`, rest[0])
	}
	r := Best{N: int(n)}
	err = r.parseBy(rest[1:])
	return r, err
}

// parseBy parses "loss" and "highest accuracy".
func (r *Best) parseBy(words []string) error {
	if len(words) > 0 && isOrder(words[0]) {
		r.Highest = strings.EqualFold(words[0], "highest")
		words = words[1:]
	}
	if len(words) == 0 {
		return errors.New("the metric is missing")
	}
	r.By = words[0]
	return nothingAfter(words[1:])
}

func parseTagged(words []string) (Rule, error) {
	if len(words) == 0 {
		return Tagged(""), nil
	}
	return Tagged(words[0]), nothingAfter(words[1:])
}

// parseCeiling parses "most 2 TB".
func (p *Policy) parseCeiling(words []string) error {
	if len(words) == 0 || !strings.EqualFold(words[0], "most") {
		return errors.New(`want "at most" and a number of bytes`)
	}
	if p.AtMost != 0 {
		return errors.New("there are two ceilings")
	}
	text := strings.Join(words[1:], " ")
	n, err := size.Parse(text)
	switch _, bare := strconv.ParseFloat(text, 64); {
	case err == nil && n < 1:
		err = positive(n)
	case err == nil && bare == nil: // 2 bytes are not meant
		err = fmt.Errorf("%q has no unit: want B, MB, GB, TB, MiB, GiB or TiB", text)
	}
	p.AtMost = n
	return err
}

// hasTag reports whether a rule keeps a checkpoint for its tags.
func (p Policy) hasTag(c *Checkpoint) bool {
	return p.keepTagged && len(c.Tags) > 0 || slices.ContainsFunc(p.Rules, func(r Rule) bool {
		t, ok := r.(Tagged)
		return ok && t.matches(c)
	})
}
