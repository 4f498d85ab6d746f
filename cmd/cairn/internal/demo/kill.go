package demo

import (
	"context"
	"fmt"
	"slices"
)

// kill is who is killed, and when.
type kill struct {
	rank  int
	point string
	// committed says that the new checkpoint must be there afterwards.
	committed bool
}

// kills lets one save after the other lose a process and looks at what is there
// then.
func (t *troupe) kills(ctx context.Context) error {
	for _, k := range []kill{
		{rank: t.Ranks - 1, point: killWriting},
		{rank: 0, point: killCommit},
		{rank: 0, point: killCommitted, committed: true},
	} {
		rep, err := t.kill(ctx, k)
		if err != nil {
			return fmt.Errorf("kill rank %d with %s: %w", k.rank, k.point, err)
		}
		t.rep.Kills = append(t.rep.Kills, *rep)
		t.Watch.End("kill", t.rep)
	}
	return nil
}

func (t *troupe) kill(ctx context.Context, k kill) (*Kill, error) {
	step := t.step + nextStep
	t.Watch.Begin("save", t.model.bytes())
	answers, exits, err := t.launch(ctx, t.Ranks, task{Step: step, Victim: k.rank, Point: k.point}, true)
	if err != nil {
		return nil, err
	}
	out := &Kill{Crash: Crash{At: k.point, Operation: answers[k.rank].dying}, Rank: k.rank, Errors: []string{}}
	if out.Operation == "" || exits.Ranks[k.rank].Code == 0 {
		return nil, fmt.Errorf("%w: rank %d was not killed: %+v", ErrWrong, k.rank, answers[k.rank].outcome)
	}
	if err := out.mourn(answers); err != nil {
		return nil, err
	}
	f, err := t.examine(ctx)
	if err != nil {
		return nil, err
	}
	out.SaveID, out.Digest, out.Survivor = f.saveID, f.digest, "old"
	if out.LeftFiles, out.LeftBytes, err = f.leftovers(ctx, t.Store); err != nil {
		return nil, err
	}
	if k.committed {
		out.Survivor = "new"
		return out, t.survivedNew(f, step)
	}
	return out, t.survivedOld(f)
}

// mourn checks that every survivor returned an error that names the one that was
// killed, and notes after how long the last one did: how soon it should is for
// whoever reads that, as machines may be busy.
func (k *Kill) mourn(answers []answer) error {
	died := answers[k.Rank].died
	for rank, a := range answers {
		switch {
		case rank == k.Rank:
			continue
		case a.outcome == nil:
			return fmt.Errorf("%w: rank %d said nothing", ErrWrong, rank)
		case a.Error == "":
			return fmt.Errorf("%w: rank %d reports success", ErrWrong, rank)
		case !slices.Equal(a.Gone, []int{k.Rank}):
			return fmt.Errorf("%w: the error of rank %d does not name rank %d: %s", ErrWrong, rank, k.Rank, a.Error)
		}
		k.Survivors++
		k.Known = max(k.Known, a.ended.Sub(died).Seconds())
		if !slices.Contains(k.Errors, a.Error) {
			k.Errors = append(k.Errors, a.Error)
		}
	}
	return nil
}
