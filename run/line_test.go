package run

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	old := func(s int64, minutes int) commit {
		return commit{name: FolderName(s), id: fmt.Sprint("old", s), step: step(s), time: at(minutes)}
	}
	numbered := func(s int64, minutes int, number int64, parent string, left ...string) commit {
		c := commit{name: FolderName(s), id: fmt.Sprint("new", s), step: step(s), time: at(minutes), line: &meta.Line{Commit: number, Parent: parent}}
		if len(left) > 0 {
			c.line.Left = []meta.Left{{Since: at(minutes), Saves: left}}
		}
		return c
	}
	left := func(ids ...string) []meta.Left { return []meta.Left{{Since: at(9), Saves: ids}} }
	for name, c := range map[string]struct {
		all     []commit
		rewound *Rewound
		want    string // ids, the oldest first; "(…)" was left, "*" is the head, "?" has no known place
	}{
		"none":                            {nil, nil, ""},
		"by step":                         {[]commit{old(3, 1), old(1, 3), old(2, 2)}, nil, "old1 old2 old3*"},
		"by commit":                       {[]commit{numbered(1, 9, 3, "new5", "new5"), numbered(5, 2, 2, "")}, nil, "(new5) new1*"},
		"a clock that was set back":       {[]commit{numbered(1, 9, 10, ""), numbered(2, 1, 11, "new1"), numbered(3, 0, 12, "new2")}, nil, "new1 new2 new3*"},
		"old ones before":                 {[]commit{old(1, 1), old(9, 2), numbered(5, 3, 100, "old1", "old9")}, nil, "old1 (old9) new5*"},
		"another program after":           {[]commit{numbered(5, 3, 100, ""), old(6, 4)}, nil, "new5 old6*"},
		"another program goes back":       {[]commit{numbered(5, 3, 100, ""), old(4, 4)}, nil, "old4? new5*"},
		"a line that goes on":             {[]commit{numbered(1, 1, 1, ""), numbered(2, 2, 2, "new1"), numbered(3, 9, 4, "new1", "new2"), numbered(4, 3, 3, "new2")}, nil, "new1 (new2) (new4) new3*"},
		"rewound":                         {[]commit{old(1, 1), old(2, 2), old(3, 3)}, &Rewound{To: "old1", Commit: 1, Time: at(9), Left: left("old2", "old3")}, "old1* (old2) (old3)"},
		"rewound, then saved":             {[]commit{old(1, 1), old(2, 2), numbered(2, 10, 20, "old1", "old2")}, &Rewound{To: "old1", Commit: 10, Time: at(9), Left: left("old2")}, "old1 (old2) new2*"},
		"rewound to a line that was left": {[]commit{numbered(1, 1, 1, ""), numbered(2, 2, 2, "new1"), numbered(3, 3, 3, "new1", "new2")}, &Rewound{To: "new2", Commit: 4, Time: at(9), Left: left("new3")}, "new1 new2* (new3)"},
		"rewound to one that is gone":     {[]commit{old(1, 1), old(2, 2)}, &Rewound{To: "gone", Commit: 1, Time: at(9), Left: left("old2")}, "old1* (old2)"},
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

// model is a run and what is expected of it.
type model struct {
	t       *testing.T
	dir     string
	line    *Line
	parents map[string]string // of all saves, by their ids
	at      string            // the save that the job has loaded or made last
	n       int
	clock   time.Time
}

// save saves a step as a job does, with a policy.
func (m *model) save(step int64, policy string) {
	m.t.Helper()
	member := &Member{Address: m.dir, Name: FolderName(step), Line: m.line, Settings: Settings{Keep: keep(m.t, policy)}}
	m.n++
	md := meta.Storage{SaveID: fmt.Sprintf("save-%d", m.n), Step: &step, Time: m.clock, WorldSize: 1, Writer: "test"}
	md.Line = member.Begin(m.t.Context(), &step, m.clock, func(error) {})
	s := openDir(m.t, m.dir, member.Name)
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(native.Format{}, s, storage.WriteOptions{}) }}
	must.Do(m.t, storagetest.Save(m.t.Context(), p, md, plan.State{"v": storagetest.Filled(m.t, tensor.Float32, []int64{2}, 1)}))
	member.Committed(md.SaveID)
	m.parents[md.SaveID], m.at = md.Line.Parent, md.SaveID
	must.Get(member.Tend(m.t.Context(), nil))(m.t)
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

// A job that goes back to any checkpoint, in any order, with any clock: the last save is the
// newest, it and its parent stay, its ancestors are on its line, and the others were left.
func TestLinesProperty(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 3 {
		m := &model{t: t, dir: filepath.Join(t.TempDir(), "run"), line: new(Line), parents: map[string]string{}, clock: day}
		policy := []string{"last 1", "last 2", "last 3, every 10 steps", "all"}[r.IntN(4)]
		for range 14 {
			m.clock = m.clock.Add(time.Duration(r.IntN(600)-200) * time.Second) // also back
			run := openRun(t, m.dir, "")
			var all []Checkpoint
			if m.n > 0 {
				all = must.Get(run.Checkpoints(t.Context()))(t)
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
			m.check(seed, before, all)
		}
	}
}

// check checks the run after a save that goes on from the save before. was are the checkpoints
// that the run had before it.
func (m *model) check(seed uint64, before string, was []Checkpoint) {
	m.t.Helper()
	run := openRun(m.t, m.dir, "")
	all := must.Get(run.Checkpoints(m.t.Context()))(m.t)
	ids := map[string]bool{}
	for i := range all {
		c := &all[i]
		ids[c.SaveID] = true
		if c.Head != (c.SaveID == m.at) {
			m.t.Fatalf("seed %d: %s is the head: %v; want %v", seed, c.SaveID, c.Head, !c.Head)
		}
		if ancestor := m.isAncestor(c.SaveID, m.at); c.Left == ancestor {
			m.t.Fatalf("seed %d: %s was left: %v; it is an ancestor of %s: %v", seed, c.SaveID, c.Left, m.at, ancestor)
		}
	}
	if !ids[m.at] || !ids[m.parents[m.at]] && slices.ContainsFunc(was, func(c Checkpoint) bool { return c.SaveID == m.parents[m.at] }) {
		m.t.Fatalf("seed %d: %s or its parent %s is gone: there are %v", seed, m.at, m.parents[m.at], ids)
	}
	if p := m.parents[m.at]; p != before && ids[before] {
		m.t.Fatalf("seed %d: the parent of %s is %q; want %q", seed, m.at, p, before)
	}
	if found := must.Get(run.Latest(m.t.Context()))(m.t); found.SaveID != m.at {
		m.t.Fatalf("seed %d: Latest = %s; want %s", seed, found.SaveID, m.at)
	}
	if found := must.Get(run.Newest(m.t.Context(), Bounds{}))(m.t); found.SaveID != m.at {
		m.t.Fatalf("seed %d: Newest = %s; want %s", seed, found.SaveID, m.at)
	}
	if _, err := os.Stat(filepath.Join(m.dir, all[slices.IndexFunc(all, func(c Checkpoint) bool { return c.Head })].Name)); err != nil {
		m.t.Fatal(err)
	}
}

// Two jobs that save to one run follow their own lines, and keep the checkpoints of each other.
func TestTwoJobsHaveLines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	a := &model{t: t, dir: dir, line: new(Line), parents: map[string]string{}, clock: day}
	a.save(1, "last 1")
	b := &model{t: t, dir: dir, line: new(Line), parents: a.parents, clock: day, n: 100}
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
