package run

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// recent is a time of the day before. Tests that use the real clock save then: a run keeps
// checkpoints that were left within two days.
var recent = time.Now().UTC().Truncate(24 * time.Hour).Add(-24 * time.Hour)

// day is a time for tests that set the clock.
var day = time.Date(2026, 11, 17, 0, 0, 0, 0, time.UTC)

// at returns a complete checkpoint of a step, which was saved that many minutes after the
// beginning of the day, and has 100 bytes.
func at(step int64, minutes int) Checkpoint {
	return Checkpoint{
		Name: FolderName(step), Step: &step, Time: day.Add(time.Duration(minutes) * time.Minute), Bytes: 100, Local: &Copy{State: Complete},
	}
}

// kept returns the steps that a policy keeps, each with the reasons.
func kept(verdicts []Verdict) string {
	var out []string
	for _, v := range verdicts {
		if v.Keep {
			out = append(out, fmt.Sprintf("%d (%s)", *v.Checkpoint.Step, strings.Join(v.Reasons, "; ")))
		}
	}
	return strings.Join(out, ", ")
}

func TestApply(t *testing.T) {
	// Twelve checkpoints, one in 20 minutes.
	var all []Checkpoint
	for i := range 12 {
		c := at(int64(1000*(i+1)), 20*i)
		c.Metrics = Metrics{"loss": math.Abs(float64(i) - 4), "accuracy": float64(i % 5)}
		all = append(all, c)
	}
	all[2].Tags = []string{"release"}
	all[5].Tags = []string{"demo"}
	all[3].Metrics["loss"] = math.NaN()
	delete(all[6].Metrics, "accuracy")
	now := day.Add(4 * time.Hour)
	for text, want := range map[string]string{
		"last 3":                         "10000 (last 3), 11000 (last 3), 12000 (last 3; newest)",
		"last 1":                         "12000 (last 1; newest)",
		"every 5000 steps":               "5000 (every 5000 steps), 10000 (every 5000 steps), 12000 (newest)",
		"every 4500 steps":               "5000 (every 4500 steps), 9000 (every 4500 steps), 12000 (newest)",
		"every hour":                     "1000 (every hour), 4000 (every hour), 7000 (every hour), 10000 (every hour), 12000 (newest)",
		"every 2 hours":                  "1000 (every 2 hours), 7000 (every 2 hours), 12000 (newest)",
		"every day":                      "1000 (every day), 12000 (newest)",
		"best 2 by loss":                 "5000 (best 2 by loss), 6000 (best 2 by loss), 12000 (newest)",
		"best 2 by highest accuracy":     "5000 (best 2 by highest accuracy), 10000 (best 2 by highest accuracy), 12000 (newest)",
		"best 3 by f1":                   "12000 (newest)",
		"tagged":                         "3000 (tagged), 6000 (tagged), 12000 (newest)",
		"tagged release":                 "3000 (tagged release), 12000 (newest)",
		"within 1 hour":                  "10000 (within 1 hour), 11000 (within 1 hour), 12000 (within 1 hour; newest)",
		"last 2, tagged, best 1 by loss": "3000 (tagged), 5000 (best 1 by loss), 6000 (tagged), 11000 (last 2), 12000 (last 2; newest)",
		"last 5, at most 250 B":          "11000 (last 5), 12000 (last 5; newest)",
		"last 5, tagged, at most 250 B":  "3000 (tagged), 6000 (tagged), 12000 (last 5; newest)",
		"at most 1 B":                    "12000 (all; newest)",
		"at most 300 B":                  "10000 (all), 11000 (all), 12000 (all; newest)",
	} {
		verdicts := Apply(must.Get(ParsePolicy(text))(t), all, now)
		if got := kept(verdicts); got != want {
			t.Errorf("%s keeps %s; want %s", text, got, want)
		}
	}
	if got := kept(Apply(Policy{}, all, now)); strings.Count(got, "all") != 12 {
		t.Errorf("an empty policy keeps %s", got)
	}
	last := Apply(must.Get(ParsePolicy("last 2, at most 100 B"))(t), all, now)
	if got := last[0].Reasons[0] + ", " + last[10].Reasons[0]; got != "no rule keeps it, above 100 B" {
		t.Errorf("the reasons are %s", got)
	}
}

// Incomplete checkpoints stay, and do not count.
func TestApplyKeepsWhatIsIncomplete(t *testing.T) {
	all := []Checkpoint{at(1, 0), at(2, 1), at(3, 2), at(4, 3)}
	all[2].Local.State, all[3].Local.State = Incomplete, UnderWay
	want := "2 (last 1; newest), 3 (incomplete), 4 (under way)"
	if got := kept(Apply(Policy{Rules: []Rule{Last(1)}, AtMost: 1}, all, day)); got != want {
		t.Errorf("kept: %s; want %s", got, want)
	}
	if got := Apply(Policy{}, nil, day); len(got) != 0 {
		t.Errorf("Apply to nothing = %v", got)
	}
}

// A checkpoint to which a kept one refers stays, and a ceiling removes it only after the
// ones that refer to it.
func TestApplyKeepsBases(t *testing.T) {
	all := []Checkpoint{at(1, 0), at(2, 1), at(3, 2), at(4, 3), at(5, 4)}
	all[1].Bases, all[2].Bases, all[4].Bases = []string{all[0].Name}, []string{all[1].Name, "gone"}, []string{all[3].Name}
	for text, want := range map[string]string{
		"last 1":                "4 (others refer to it), 5 (last 1; newest)",
		"last 3":                "1 (others refer to it), 2 (others refer to it), 3 (last 3), 4 (last 3; others refer to it), 5 (last 3; newest)",
		"last 3, at most 400 B": "4 (last 3; others refer to it), 5 (last 3; newest)",
		"at most 100 B":         "4 (all; others refer to it), 5 (all; newest)",
	} {
		if got := kept(Apply(must.Get(ParsePolicy(text))(t), all, day)); got != want {
			t.Errorf("%s keeps %s; want %s", text, got, want)
		}
	}
	all[4].Local.State = UnderWay // it may need its base
	if got, want := kept(Apply(Policy{Rules: []Rule{Tagged("x")}}, all, day)), "4 (newest; others refer to it), 5 (under way)"; got != want {
		t.Errorf("kept: %s; want %s", got, want)
	}
}

// Properties that every policy has, whatever the checkpoints are.
func TestApplyProperties(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 3000 {
		all, p := randomCheckpoints(r), randomPolicy(r)
		now := day.Add(time.Duration(r.IntN(48)) * time.Hour)
		verdicts := Apply(p, all, now)
		if err := checkVerdicts(p, all, verdicts, now); err != nil {
			t.Fatalf("seed %d: %q: %v\n%+v", seed, p, err, all)
		}
	}
}

func checkVerdicts(p Policy, all []Checkpoint, verdicts []Verdict, now time.Time) error {
	if len(verdicts) != len(all) {
		return fmt.Errorf("%d verdicts", len(verdicts))
	}
	var newest *Checkpoint
	var rest []Checkpoint
	byName := map[string]bool{}
	removable, total := false, int64(0)
	for i, v := range verdicts {
		c := &all[i]
		if v.Checkpoint.Name != c.Name || len(v.Reasons) == 0 {
			return fmt.Errorf("the verdict about %s is %+v", c.Name, v)
		}
		if c.Complete() && (newest == nil || newer(all, c, newest)) {
			newest = c
		}
		byName[c.Name] = v.Keep
		if v.Keep {
			rest = append(rest, *c)
		} else if !c.Complete() {
			return fmt.Errorf("%s is not complete, and is removed", c.Name)
		}
	}
	for _, c := range rest {
		for _, base := range c.Bases {
			if keep, ok := byName[base]; ok && !keep {
				return fmt.Errorf("%s refers to %s, which is removed", c.Name, base)
			}
		}
		referred := slices.ContainsFunc(rest, func(d Checkpoint) bool { return slices.Contains(d.Bases, c.Name) })
		if c.Complete() {
			total += c.Bytes
			removable = removable || !(c.Name == newest.Name || referred || p.hasTag(&c) || c.Problem != "")
		}
	}
	switch {
	case newest != nil && !byName[newest.Name]:
		return fmt.Errorf("the newest one, %s, is removed", newest.Name)
	case p.KeepsAll() && len(rest) < len(all):
		return fmt.Errorf("a policy that keeps all removes %d", len(all)-len(rest))
	case p.AtMost > 0 && total > p.AtMost && removable:
		return fmt.Errorf("%d bytes are kept, and there are more to remove", total)
	}
	for _, v := range Apply(p, rest, now) {
		if !v.Keep {
			return fmt.Errorf("applied again, it removes %s", v.Checkpoint.Name)
		}
	}
	shuffled := slices.Clone(all)
	slices.Reverse(shuffled)
	for _, v := range Apply(p, shuffled, now) {
		if v.Keep != byName[v.Checkpoint.Name] {
			return fmt.Errorf("the verdict about %s depends on the order", v.Checkpoint.Name)
		}
	}
	return nil
}

// newer reports whether c comes after d: on the current line, or else by its commit.
func newer(all []Checkpoint, c, d *Checkpoint) bool {
	commits := make([]savedStep, len(all))
	for i := range all {
		commits[i] = all[i].commit()
	}
	at := positions(commits)
	index := func(c *Checkpoint) int {
		return slices.IndexFunc(all, func(x Checkpoint) bool { return x.Name == c.Name })
	}
	return cmp.Or(leftFirst(c, d), at[index(c)].compare(at[index(d)])) > 0
}

func randomCheckpoints(r *rand.Rand) []Checkpoint {
	var out []Checkpoint
	recorded := 15 // the first one that records its commit
	if r.IntN(2) == 0 {
		recorded = r.IntN(8)
	}
	for i := range r.IntN(15) {
		c := Checkpoint{Name: fmt.Sprint("c", i), Time: day.Add(time.Duration(r.IntN(2000)) * time.Minute), Bytes: r.Int64N(1000), Local: &Copy{State: Complete}}
		if r.IntN(8) > 0 {
			step := r.Int64N(40)
			c.Step = &step
		}
		if r.IntN(6) == 0 {
			c.Local.State = []State{Incomplete, UnderWay}[r.IntN(2)]
		}
		if r.IntN(4) == 0 {
			c.Tags = []string{[]string{"a", "b"}[r.IntN(2)]}
		}
		if r.IntN(3) > 0 {
			c.Metrics = Metrics{"loss": []float64{1, 2, 3, math.NaN(), math.Inf(1)}[r.IntN(5)]}
		}
		if i > 0 && r.IntN(3) == 0 { // a checkpoint refers to earlier ones only
			c.Bases = []string{fmt.Sprint("c", r.IntN(i))}
		}
		if i >= recorded {
			c.Commit, c.Time = int64(1000+i), c.Time.Add(2000*time.Minute)
			if c.Left = r.IntN(3) == 0; c.Left && r.IntN(3) > 0 {
				c.LeftSince = day.Add(time.Duration(r.IntN(72)) * time.Hour)
			}
		}
		if r.IntN(20) == 0 {
			c.Problem = "its notes cannot be read"
		}
		out = append(out, c)
	}
	return out
}

func randomPolicy(r *rand.Rand) Policy {
	rules := []Rule{
		Last(1 + r.IntN(5)), EverySteps(1 + r.IntN(10)), Every(time.Duration(1+r.IntN(10)) * time.Hour), Best{N: 1 + r.IntN(3), By: "loss", Highest: r.IntN(2) == 0},
		Tagged(""), Tagged("a"), Within(time.Duration(1+r.IntN(30)) * time.Hour), Left(time.Duration(1+r.IntN(60)) * time.Hour),
	}
	var p Policy
	for range r.IntN(4) {
		p.Rules = append(p.Rules, rules[r.IntN(len(rules))])
	}
	if r.IntN(2) == 0 {
		p.AtMost = 1 + r.Int64N(4000)
	}
	return p
}

// A clock that is set back removes no checkpoint, and one that is set forward removes neither
// the newest nor, by a save, its parent.
func TestApplyWithClocksThatJump(t *testing.T) {
	var all []Checkpoint
	for i := range 4 {
		c := at(int64(i+1), 10*i)
		c.Commit = int64(i + 1)
		all = append(all, c)
	}
	all[1].Left, all[1].LeftSince = true, day.Add(15*time.Minute)
	p := must.Get(ParsePolicy("within 1 hour, every 2 hours"))(t)
	p.protect = map[string]string{all[3].Name: ReasonNewest, all[2].Name: ReasonParent}
	year := 365 * 24 * time.Hour
	for now, want := range map[time.Time]string{
		day.Add(-year): "1 (within 1 hour; every 2 hours), 2 (within 1 hour; left within 2 days), 3 (within 1 hour), 4 (within 1 hour; newest)",
		day.Add(year):  "1 (every 2 hours), 3 (parent of the newest), 4 (newest)",
	} {
		if got := kept(Apply(p, all, now)); got != want {
			t.Errorf("at %v, the policy keeps %s; want %s", now, got, want)
		}
	}
}
