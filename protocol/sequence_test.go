package protocol_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// drawnCall is a call in a picture of docs/architecture.md.
type drawnCall struct {
	name   string
	root   bool     // only rank 0 makes it
	phase  int      // how many messages between the ranks come before it
	during []string // the calls that are made while it runs
}

var (
	drawnName  = regexp.MustCompile(`\b(?:planner|writer|reader|cache|plan|Stateful)\.\w+`)
	drawnInner = regexp.MustCompile(`\b(planner)\.(\w+(?:, \w+)*)`)
)

// drawn returns the calls of the picture under a heading, in order, without
// the calls that neither a planner nor storage gets.
func drawn(t *testing.T, heading string) []drawnCall {
	t.Helper()
	page := must.Get(os.ReadFile("../docs/architecture.md"))(t)
	_, picture, ok := strings.Cut(string(page), "\n## "+heading+"\n\n```\n")
	picture, _, closed := strings.Cut(picture, "\n```\n")
	head, picture, _ := strings.Cut(picture, "\n")
	right := len([]rune(head[:max(0, strings.Index(head, "rank 0"))]))
	if !ok || !closed || right == 0 {
		t.Fatalf("docs/architecture.md has no picture of %q", heading)
	}
	var out []drawnCall
	phase := 0
	for line := range strings.Lines(picture) {
		if there, back := strings.Contains(line, "─►"), strings.Contains(line, "◄─"); there || back {
			if there != back { // otherwise any rank talks to any other
				phase++
			}
			continue
		}
		at := drawnName.FindStringIndex(line)
		if at == nil {
			continue
		}
		c := drawnCall{name: line[at[0]:at[1]], root: len([]rune(line[:at[0]])) >= right, phase: phase}
		for _, m := range drawnInner.FindAllStringSubmatch(line[at[1]:], -1) {
			for _, method := range strings.Split(m[2], ", ") {
				c.during = append(c.during, m[1]+"."+method)
			}
		}
		if owner, _, _ := strings.Cut(c.name, "."); owner == "planner" || owner == "writer" || owner == "reader" {
			out = append(out, c)
		}
	}
	return out
}

// madeCall is a call that a rank made.
type madeCall struct {
	rank int
	name string
}

// diary records the calls of the ranks, in their order.
type diary struct {
	mu    sync.Mutex
	calls []madeCall
	// share says that tensors are filled from messages too, outside of ReadData.
	share bool
	roles []string // arguments of SetUp that contradict the rank
}

// hook returns the hook of one rank.
func (d *diary) hook(rank int) Hook {
	return func(point string) error {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.calls = append(d.calls, madeCall{rank, point})
		return nil
	}
}

// role records the arguments of a SetUp.
func (d *diary) role(method string, g *inproc.Group, rank, size int, coordinator bool) {
	if rank == g.Rank() && size == world && coordinator == (rank == 0) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.roles = append(d.roles, method)
}

// check compares the diary with a picture.
func (d *diary) check(t *testing.T, picture []drawnCall) {
	t.Helper()
	if len(d.roles) > 0 {
		t.Errorf("%q were told of another rank, size or coordinator", d.roles)
	}
	phase := map[string]int{"writer.HasWritten": 0, "writer.HasFinished": 0, "reader.HasRead": 0}
	inner := map[string]string{}
	for _, c := range picture {
		phase[c.name] = c.phase
		for _, name := range c.during {
			phase[name], inner[name] = c.phase, c.name
		}
	}
	for end, begin := range map[string]string{"writer.HasWritten": "writer.WriteData", "writer.HasFinished": "writer.Finish", "reader.HasRead": "reader.ReadData"} {
		phase[end] = phase[begin]
	}
	for i := 1; i < len(d.calls); i++ {
		if a, b := d.calls[i-1], d.calls[i]; phase[a.name] > phase[b.name] {
			t.Errorf("rank %d came to %s after rank %d came to %s; the picture has messages between them", b.rank, b.name, a.rank, a.name)
		}
	}
	for rank := range world {
		d.checkRank(t, picture, inner, rank)
	}
}

// checkRank compares the calls of one rank.
func (d *diary) checkRank(t *testing.T, picture []drawnCall, inner map[string]string, rank int) {
	t.Helper()
	var want, got []string
	for _, c := range picture {
		if !c.root || rank == 0 {
			want = append(want, c.name)
		}
	}
	running, made := "", map[string]bool{}
	for _, c := range d.calls {
		switch {
		case c.rank != rank:
		case strings.Contains(c.name, ".Has"):
			running = ""
		case inner[c.name] != "":
			made[c.name] = true
			// Before FinishPlan, a save compares the copies that other ranks write.
			compared := c.name == "planner.Resolve" && !slices.Contains(got, "planner.FinishPlan")
			if inner[c.name] != running && !d.share && !compared {
				t.Errorf("rank %d: %s was called outside of %s", rank, c.name, inner[c.name])
			}
		default:
			got, running = append(got, c.name), c.name
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rank %d (-picture +calls):\n%s", rank, diff)
	}
	for name := range inner {
		if !made[name] {
			t.Errorf("rank %d: %s was not called", rank, name)
		}
	}
}

// The planners and the storage of these tests record the arguments of SetUp.
type (
	noted struct {
		d *diary
		g *inproc.Group
	}
	notedSave struct {
		SavePlanner
		noted
	}
	notedLoad struct {
		LoadPlanner
		noted
	}
	notedWriter struct {
		Writer
		noted
		aborted bool
	}
	notedReader struct {
		Reader
		noted
	}
)

func (p *notedSave) SetUp(s plan.SaveSetup) error {
	p.d.role("planner.SetUp", p.g, s.Rank, s.Size, s.Coordinator)
	return p.SavePlanner.SetUp(s)
}

func (p *notedLoad) SetUp(s plan.LoadSetup) error {
	p.d.role("planner.SetUp", p.g, s.Rank, s.Size, s.Coordinator)
	return p.LoadPlanner.SetUp(s)
}

func (w *notedWriter) SetUp(ctx context.Context, s storage.Session) error {
	w.d.role("writer.SetUp", w.g, s.Rank, s.Size, s.Coordinator)
	return w.Writer.SetUp(ctx, s)
}

func (w *notedWriter) Abort(ctx context.Context) error {
	w.aborted = true
	return w.Writer.Abort(ctx)
}

func (r *notedReader) SetUp(ctx context.Context, md *meta.Metadata, s storage.Session) error {
	r.d.role("reader.SetUp", r.g, s.Rank, s.Size, s.Coordinator)
	return r.Reader.SetUp(ctx, md, s)
}

// Every rank calls planners and storage as docs/architecture.md draws it.
func TestSaveCallOrder(t *testing.T) {
	picture := drawn(t, "A save")
	s, caches := new(mem.Store), make([]plan.Cache, world)
	for _, c := range []struct {
		name, id string
		cached   bool
		calls    []drawnCall
	}{
		{"without a cache", "a", false, picture},
		{"with an empty cache", "b", true, picture},
		{"with the plans of the save before", "c", true, slices.DeleteFunc(slices.Clone(picture), func(c drawnCall) bool {
			return strings.HasSuffix(c.name, "GlobalPlan")
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := new(diary)
			errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
				job, n := saveJob(t, g, s, c.id, 1), noted{d, g}
				w := &notedWriter{Writer: Writer{Writer: job.Writer, Hook: d.hook(g.Rank())}, noted: n}
				job.Planner, job.Writer = &notedSave{SavePlanner{Hook: d.hook(g.Rank())}, n}, w
				if c.cached {
					job.Cache = &caches[g.Rank()]
				}
				_, err := protocol.Save(ctx, job)
				if w.aborted {
					err = errors.Join(err, errors.New("a save that succeeded was aborted"))
				}
				return err
			})
			must.Do(t, errors.Join(errs...))
			d.check(t, c.calls)
		})
	}
}

func TestLoadCallOrder(t *testing.T) {
	s := new(mem.Store)
	mustSave(t, s, "a", 1)
	for name, share := range map[string]bool{"alone": false, "sharing": true} {
		t.Run(name, func(t *testing.T) {
			d := &diary{share: share}
			errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
				n := noted{d, g}
				_, err := protocol.Load(ctx, protocol.RankLoad{
					Group: g, State: blank(t, g.Rank()), Share: share,
					Planner: &notedLoad{LoadPlanner{Hook: d.hook(g.Rank()), Share: share}, n},
					Reader:  &notedReader{Reader{Reader: storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{}), Hook: d.hook(g.Rank())}, n},
				})
				return err
			})
			must.Do(t, errors.Join(errs...))
			d.check(t, drawn(t, "A load"))
		})
	}
}

// The diagrams show every method that package protocol calls, so that a comparison
// with them is complete.
func TestArchitectureShowsAllCalls(t *testing.T) {
	for heading, want := range map[string][]string{
		"A save": {
			"planner.SetUp", "writer.SetUp", "planner.LocalPlan", "writer.PrepareLocalPlan", "planner.GlobalPlan",
			"writer.PrepareGlobalPlan", "planner.FinishPlan", "writer.WriteData", "planner.Resolve", "writer.Finish",
		},
		"A load": {
			"reader.ReadMetadata", "planner.SetUp", "reader.SetUp", "planner.LocalPlan", "reader.PrepareLocalPlan", "planner.GlobalPlan",
			"reader.PrepareGlobalPlan", "planner.FinishPlan", "reader.ReadData", "planner.ResolveTensor", "planner.CommitTensor", "planner.LoadBytes",
		},
	} {
		var got []string
		for _, c := range drawn(t, heading) {
			got = append(append(got, c.name), c.during...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +picture):\n%s", heading, diff)
		}
	}
}
