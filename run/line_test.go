package run

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// At the same moment, the order of commits does not depend on the order of a list, and
// checkpoints without a commit keep the order of their steps.
func TestHistory(t *testing.T) {
	step := func(n int64) *int64 { return &n }
	at := func(minutes int) time.Time { return day.Add(time.Duration(minutes) * time.Minute) }
	old := func(s int64, minutes int) savedStep {
		return savedStep{name: FolderName(s), id: fmt.Sprint("old", s), step: step(s), time: at(minutes)}
	}
	numbered := func(s int64, minutes int, number int64, parent string, left ...string) savedStep {
		c := savedStep{name: FolderName(s), id: fmt.Sprint("new", s), step: step(s), time: at(minutes), line: &meta.Line{Commit: number, Parent: parent}}
		if len(left) > 0 {
			c.line.Left = []meta.Left{{Since: at(minutes), Saves: left}}
		}
		return c
	}
	left := func(ids ...string) []meta.Left { return []meta.Left{{Since: at(9), Saves: ids}} }
	for name, c := range map[string]struct {
		all     []savedStep
		rewound *Rewound
		want    string // ids, the oldest first; "(…)" was left, "*" is the head, "?" has no known place
	}{
		"none":                            {nil, nil, ""},
		"by step":                         {[]savedStep{old(3, 1), old(1, 3), old(2, 2)}, nil, "old1 old2 old3*"},
		"by commit":                       {[]savedStep{numbered(1, 9, 3, "new5", "new5"), numbered(5, 2, 2, "")}, nil, "(new5) new1*"},
		"a clock that was set back":       {[]savedStep{numbered(1, 9, 10, ""), numbered(2, 1, 11, "new1"), numbered(3, 0, 12, "new2")}, nil, "new1 new2 new3*"},
		"old ones before":                 {[]savedStep{old(1, 1), old(9, 2), numbered(5, 3, 100, "old1", "old9")}, nil, "old1 (old9) new5*"},
		"another program after":           {[]savedStep{numbered(5, 3, 100, ""), old(6, 4)}, nil, "new5 old6*"},
		"another program goes back":       {[]savedStep{numbered(5, 3, 100, ""), old(4, 4)}, nil, "old4? new5*"},
		"a line that goes on":             {[]savedStep{numbered(1, 1, 1, ""), numbered(2, 2, 2, "new1"), numbered(3, 9, 4, "new1", "new2"), numbered(4, 3, 3, "new2")}, nil, "new1 (new2) (new4) new3*"},
		"rewound":                         {[]savedStep{old(1, 1), old(2, 2), old(3, 3)}, &Rewound{To: "old1", Commit: 1, Time: at(9), Left: left("old2", "old3")}, "old1* (old2) (old3)"},
		"rewound, then saved":             {[]savedStep{old(1, 1), old(2, 2), numbered(2, 10, 20, "old1", "old2")}, &Rewound{To: "old1", Commit: 10, Time: at(9), Left: left("old2")}, "old1 (old2) new2*"},
		"rewound to a line that was left": {[]savedStep{numbered(1, 1, 1, ""), numbered(2, 2, 2, "new1"), numbered(3, 3, 3, "new1", "new2")}, &Rewound{To: "new2", Commit: 4, Time: at(9), Left: left("new3")}, "new1 new2* (new3)"},
		"rewound to one that is gone":     {[]savedStep{old(1, 1), old(2, 2)}, &Rewound{To: "gone", Commit: 1, Time: at(9), Left: left("old2")}, "old1* (old2)"},
	} {
		for range 3 {
			rand.Shuffle(len(c.all), func(i, j int) { c.all[i], c.all[j] = c.all[j], c.all[i] })
			h := newHistory(c.all, c.rewound)
			var got []string
			for _, i := range h.order {
				text := c.all[i].id
				if _, left := h.left[i]; left {
					text = "(" + text + ")"
				}
				if i == h.head {
					text += "*"
				}
				if h.unplaced[i] {
					text += "?"
				}
				got = append(got, text)
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%s: %s; want %s", name, strings.Join(got, " "), c.want)
			}
		}
	}
}

// model is a run and the expected state of it.
type model struct {
	t       *testing.T
	dir     string
	line    *Line
	parents map[string]string // of all saves, by their ids
	at      string            // the save that the job has loaded or made last
	head    string            // the save that counts as the newest
	order   []string          // all saves
	n       int
	clock   time.Time
}

// newModel returns an empty run. Its job begins at a time.
func newModel(t *testing.T, at time.Time) *model {
	return &model{t: t, dir: filepath.Join(t.TempDir(), "run"), line: new(Line), parents: map[string]string{}, clock: at}
}

// save saves a step as a job does, with a policy.
func (m *model) save(step int64, policy string) {
	m.t.Helper()
	must.Get(m.commit(step, policy).Tend(m.t.Context(), nil))(m.t)
}

// commit is save without the work after it.
func (m *model) commit(step int64, policy string) *Member {
	m.t.Helper()
	member := &Member{Address: m.dir, Name: FolderName(step), Line: m.line, Settings: Settings{Keep: keep(m.t, policy)}}
	m.n++
	md := meta.Storage{SaveID: fmt.Sprintf("save-%d", m.n), Step: &step, Time: m.clock, WorldSize: 1, Writer: "test"}
	md.Line = member.Begin(m.t.Context(), &step, m.clock, func(error) {})
	s := openDir(m.t, m.dir, member.Name)
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}) }}
	must.Do(m.t, storagetest.Save(m.t.Context(), p, md, plan.State{"v": storagetest.Filled(m.t, tensor.Float32, []int64{2}, 1)}))
	member.Committed(md.SaveID)
	m.parents[md.SaveID], m.at, m.head, m.order = md.Line.Parent, md.SaveID, md.SaveID, append(m.order, md.SaveID)
	return member
}

// isAncestor reports whether the job at a save has gone on from id.
func (m *model) isAncestor(id, of string) bool {
	for ; of != ""; of = m.parents[of] {
		if of == id {
			return true
		}
	}
	return false
}

// jump sets the clock: forward or back, by minutes to years, or to its beginning.
func (m *model) jump(r *rand.Rand) {
	if r.IntN(20) == 0 {
		m.clock = time.Unix(0, 0).UTC()
		return
	}
	m.clock = m.clock.Add(time.Duration((2*r.Float64() - 1) * math.Pow(10, 2+6*r.Float64()) * float64(time.Second)))
}

// Two jobs that go back to any checkpoint, and a user who rewinds the run, in any order, with clocks
// that jump: the last save is the newest, it and its parent stay, its ancestors are on its line,
// and the others were left. Rules that do not depend on clocks keep their checkpoints.
//
// SOAK is how long it runs, such as 5m, and SEED repeats it.
func TestLinesProperty(t *testing.T) {
	length := deep.Soak(t, 0, time.Minute)
	seed := deep.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	runs := 0
	for begun := time.Now(); runs < 3 || time.Since(begun) < length; runs++ {
		m := newModel(t, time.Now().UTC())
		other, otherAt := new(Line), "" // of the other job
		policy := []string{"last 2", "last 3, every 10 steps", "within 1 hour, last 1, left within 2 hours", "tagged, every 5 steps, every day"}[r.IntN(4)]
		for range 14 {
			m.jump(r)
			run := openRun(t, m.dir, "")
			var all []Checkpoint
			if m.n > 0 {
				all = must.Get(run.Checkpoints(t.Context()))(t)
			}
			if len(all) > 0 {
				c := all[r.IntN(len(all))]
				switch r.IntN(6) {
				case 0:
					must.Get(run.rewind(t.Context(), c.Name, m.clock))(t)
					m.head = c.SaveID
				case 1:
					must.Do(t, run.Note(t.Context(), c.Name, func(n *Notes) error { n.Tag("x"); return nil }))
				}
				all = must.Get(run.Checkpoints(t.Context()))(t)
				m.check(seed, all, m.clock, policy)
				m.jump(r)
				must.Get(run.Prune(t.Context(), &PruneOptions{Keep: keep(t, policy), Now: m.clock}))(t)
				m.check(seed, all, m.clock, policy)
				all = must.Get(run.Checkpoints(t.Context()))(t)
			}
			m.jump(r)
			if r.IntN(2) == 0 {
				m.line, m.at, other, otherAt = other, otherAt, m.line, m.at
			}
			there := slices.ContainsFunc(all, func(c Checkpoint) bool { return c.SaveID == m.at })
			if m.at != "" && !there || m.at == "" && len(all) > 0 { // the other job has removed it, or it begins: it loads the newest one
				c := all[slices.IndexFunc(all, func(c Checkpoint) bool { return c.Head })]
				m.line.Loaded(c.Name, c.SaveID)
				m.at = c.SaveID
			}
			step := int64(1 + r.IntN(40))
			switch r.IntN(4) {
			case 0: // another process goes on from any checkpoint
				m.line = new(Line)
				fallthrough
			case 1: // the job goes back to any checkpoint
				if len(all) == 0 {
					break
				}
				c := all[r.IntN(len(all))]
				m.line.Loaded(c.Name, c.SaveID)
				m.at, step = c.SaveID, *c.Step+int64(r.IntN(5))
			case 2, 3: // it goes on
				for i := range all {
					if all[i].SaveID == m.at {
						step = *all[i].Step + int64(r.IntN(6))
					}
				}
			}
			before := m.at
			m.save(step, policy)
			m.check(seed, all, time.Now(), policy)
			m.checkParent(seed, before, all)
		}
	}
	t.Logf("%d runs", runs)
}

// stay returns the saves of all, and the newest one, that a policy keeps at a time.
func (m *model) stay(all []Checkpoint, now time.Time, policy string) []string {
	steps, tagged := map[string]int64{}, []string{}
	for i := range all {
		steps[all[i].SaveID] = *all[i].Step
		if len(all[i].Tags) > 0 {
			tagged = append(tagged, all[i].SaveID)
		}
	}
	var line []string // the current one, of which the oldest is first
	for _, id := range m.order {
		if _, ok := steps[id]; ok && m.isAncestor(id, m.head) {
			line = append(line, id)
		}
	}
	out := []string{m.head}
	for _, rule := range keep(m.t, policy).Rules {
		switch rule := rule.(type) {
		case Last:
			out = append(out, line[max(0, len(line)-int(rule)):]...)
		case EverySteps:
			seen := map[int64]bool{0: true}
			for _, id := range line {
				if n := steps[id] / int64(rule); !seen[n] {
					seen[n], out = true, append(out, id)
				}
			}
		case Tagged:
			out = append(out, tagged...)
		case Within:
			for i := range all {
				if now.Sub(all[i].Time) < time.Duration(rule)-time.Minute { // a removal takes time
					out = append(out, all[i].SaveID)
				}
			}
		}
	}
	return out
}

// check checks the run after a save, a rewind or a removal, for which the time was now. was are the
// checkpoints that it had before.
func (m *model) check(seed uint64, was []Checkpoint, now time.Time, policy string) {
	m.t.Helper()
	run := openRun(m.t, m.dir, "")
	all := must.Get(run.Checkpoints(m.t.Context()))(m.t)
	ids, names := map[string]bool{}, map[string]string{}
	for i := range all {
		c := &all[i]
		ids[c.SaveID], names[c.Name] = true, c.SaveID
		if c.Head != (c.SaveID == m.head) {
			m.t.Fatalf("seed %d: %s is the head: %v; want %v", seed, c.SaveID, c.Head, !c.Head)
		}
		if ancestor := m.isAncestor(c.SaveID, m.head); c.Left == ancestor {
			m.t.Fatalf("seed %d: %s was left: %v; it is an ancestor of %s: %v", seed, c.SaveID, c.Left, m.head, ancestor)
		}
	}
	replaced := func(c Checkpoint) bool { return names[c.Name] == m.head && c.SaveID != m.head }
	was = slices.DeleteFunc(slices.Clone(was), replaced)
	for i := range all {
		if all[i].SaveID == m.head && !slices.ContainsFunc(was, func(c Checkpoint) bool { return c.SaveID == m.head }) {
			was = append(was, all[i])
		}
	}
	for _, id := range m.stay(was, now, policy) {
		if !ids[id] {
			m.t.Fatalf("seed %d: %s is gone, and %q keeps it: there are %v", seed, id, policy, ids)
		}
	}
	if found := must.Get(run.Latest(m.t.Context()))(m.t); found.SaveID != m.head {
		m.t.Fatalf("seed %d: Latest = %s; want %s", seed, found.SaveID, m.head)
	}
	if found := must.Get(run.Newest(m.t.Context(), Bounds{}))(m.t); found.SaveID != m.head {
		m.t.Fatalf("seed %d: Newest = %s; want %s", seed, found.SaveID, m.head)
	}
}

// checkParent checks that the last save goes on from the save before, and that its parent stays. was
// are the checkpoints that the run had before it.
func (m *model) checkParent(seed uint64, before string, was []Checkpoint) {
	m.t.Helper()
	ids := map[string]bool{}
	for _, c := range must.Get(openRun(m.t, m.dir, "").Checkpoints(m.t.Context()))(m.t) {
		ids[c.SaveID] = true
	}
	p := m.parents[m.at]
	if !ids[p] && slices.ContainsFunc(was, func(c Checkpoint) bool { return c.SaveID == p }) {
		m.t.Fatalf("seed %d: the parent %s of %s is gone: there are %v", seed, p, m.at, ids)
	}
	if p != before && ids[before] {
		m.t.Fatalf("seed %d: the parent of %s is %q; want %q", seed, m.at, p, before)
	}
}

// The work after a save may come so late that later saves are complete. It keeps the newest of them
// and its parent, as the later save would.
func TestTendBehindLaterSaves(t *testing.T) {
	m := newModel(t, time.Now().UTC())
	var members []*Member
	for step := range int64(5) {
		m.clock = m.clock.Add(time.Minute)
		members = append(members, m.commit(step, "last 1"))
	}
	for i, want := range []string{"0 3 4", "0 3 4", "3 4", "3 4", "3 4"} {
		must.Get(members[i].Tend(t.Context(), nil))(t)
		var got []string
		for _, c := range must.Get(openRun(t, m.dir, "").Checkpoints(t.Context()))(t) {
			got = append(got, fmt.Sprint(*c.Step))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("after the save of step %d the run has %v; want %s", i, got, want)
		}
	}
}

// Two jobs that save to one run follow their own lines, and keep the checkpoints of each other.
func TestTwoJobsHaveLines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	a := &model{t: t, dir: dir, line: new(Line), parents: map[string]string{}, clock: time.Now().UTC()}
	a.save(1, "last 1")
	b := &model{t: t, dir: dir, line: new(Line), parents: a.parents, clock: time.Now().UTC(), n: 100}
	b.line.Loaded(FolderName(1), "save-1")
	for i := range int64(3) {
		a.clock, b.clock = a.clock.Add(time.Minute), b.clock.Add(time.Minute)
		b.save(1000+i, "last 1")
		a.save(10+i, "last 1")
	}
	var got []string
	for _, c := range must.Get(openRun(t, dir, "").Checkpoints(t.Context()))(t) {
		text := fmt.Sprint(*c.Step)
		if c.Left {
			text = "(" + text + ")"
		}
		got = append(got, text)
	}
	if want := "(1001) 11 (1002) 12"; strings.Join(got, " ") != want {
		t.Errorf("the run has %s; want %s", strings.Join(got, " "), want)
	}
}
