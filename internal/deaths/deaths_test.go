//go:build unix

package deaths

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
)

// lanes is how many jobs the matrix is spread over: most of their time they wait
// for a timeout.
const lanes = 16

// death is one cell of the matrix.
type death struct {
	point
	how  string
	rank int
}

func (d death) String() string { return fmt.Sprintf("%s %s %s rank %d", d.op, d.at, d.how, d.rank) }

func matrix() []death {
	var all []death
	for _, p := range points {
		for _, how := range ways {
			all = append(all, death{p, how, 0})
			if !p.global {
				all = append(all, death{p, how, size - 1})
			}
		}
	}
	return all
}

// Whoever goes, wherever and however: the others notice, name it, and find a
// whole checkpoint; and with another process in its place the job meets again.
func TestEveryDeathIsNoticed(t *testing.T) {
	all := matrix()
	for lane := range lanes {
		t.Run(fmt.Sprintf("job %d", lane), func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			for i := lane; i < len(all); i += lanes {
				t.Run(all[i].String(), func(t *testing.T) { j.play(t, all[i]) })
			}
		})
	}
}

// job is a few processes that live through many deaths of one of them. It meets
// under one name all the time.
type job struct {
	dir, meet string
	store     blob.Store
	ranks     [size]*process // nil: to be started
	owner     *testing.T     // whose end is that of the processes
}

func newJob(t *testing.T) *job {
	t.Helper()
	j := &job{dir: t.TempDir(), meet: filepath.Join(t.TempDir(), "meet"), owner: t}
	var err error
	if j.store, err = file.Open(j.dir, nil); err != nil {
		t.Fatal(err)
	}
	return j
}

// play lets one rank go and looks at what the others make of it.
func (j *job) play(t *testing.T, d death) {
	j.saveOld(t)
	for r := range j.ranks {
		if j.ranks[r] == nil {
			j.ranks[r] = start(j.owner)
		}
		o := order{Meet: j.meet, Dir: j.dir, Rank: r, Op: d.op}
		if r == d.rank {
			o.At, o.How = d.at, d.how
		}
		j.ranks[r].order(t, o)
	}
	uncertain := false
	for r, p := range j.ranks {
		if r != d.rank {
			uncertain = j.checkSurvivor(t, r, p, d) || uncertain
		}
	}
	victim := j.ranks[d.rank]
	j.ranks[d.rank] = nil
	j.checkStore(t, d, uncertain)
	checkVictim(t, victim, d)
}

// checkSurvivor checks what another rank says, and reports whether it could not
// tell which checkpoint is there.
func (j *job) checkSurvivor(t *testing.T, r int, p *process, d death) bool {
	t.Helper()
	got, ok := p.outcome(t)
	switch {
	case !ok:
		j.ranks[r] = nil
		t.Errorf("rank %d ended", r)
	case got.Err == "":
		t.Errorf("rank %d went on as if nothing were", r)
	case got.Late || !got.Gone || !slices.Equal(got.Ranks, []int{d.rank}):
		t.Errorf("rank %d returned %q (names %v); want that rank %d is gone", r, got.Err, got.Ranks, d.rank)
	}
	return got.Uncertain
}

// checkVictim checks that a rank that lives on has come to an error too.
func checkVictim(t *testing.T, p *process, d death) {
	t.Helper()
	if d.how == byStop {
		p.Continue(t)
	}
	got, ok := p.outcome(t)
	switch lives := d.how == byStop || d.how == byCut; {
	case lives != ok:
		t.Errorf("the rank that went said %+v, %v; want %v", got, ok, lives)
	case lives && (got.Err == "" || got.Late):
		t.Errorf("the rank that was away returned %q; want an error in time", got.Err)
	}
	p.In.Close()
}

// checkStore checks that a whole checkpoint is there: the old one, unless the new
// one was complete or nobody can tell.
func (j *job) checkStore(t *testing.T, d death, uncertain bool) {
	t.Helper()
	c, err := cairn.Open(t.Context(), j.store)
	if err != nil {
		t.Errorf("no checkpoint is left: %v", err)
		return
	}
	defer c.Close()
	if rep, err := c.Verify(t.Context(), nil); err != nil || len(rep.Problems) > 0 {
		t.Errorf("the checkpoint is not whole: %v, %v", rep, err)
	}
	n, err := c.ReadValue(t.Context(), "counter.n")
	step := *c.Info().Step
	if err != nil || n != step {
		t.Errorf("the checkpoint of step %d says %v, %v", step, n, err)
	}
	if step != oldStep && d.at != "writer.HasFinished" && !uncertain {
		t.Errorf("the checkpoint is of step %d; want the old one", step)
	}
}

// saveOld puts the checkpoint there that a save is to replace.
func (j *job) saveOld(t *testing.T) {
	t.Helper()
	err := inproc.Run(t.Context(), size, func(ctx context.Context, g group.Group) error {
		_, err := cairn.Save(ctx, j.store, stateOf(g.Rank(), oldStep, trap{}), &cairn.SaveOptions{Group: g, Step: new(int64(oldStep))})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
