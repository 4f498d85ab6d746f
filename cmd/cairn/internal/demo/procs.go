package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
)

// MaxProcs bounds the ranks of RunProcs.
const MaxProcs = 64

// stepTime bounds the time of the processes of one stage.
const stepTime = 5 * time.Minute

// RunProcs runs the demo with processes as ranks, which must all have access to
// the store: they save, are killed one after the other during saves over that
// checkpoint, meet again under the same name, save, and load in another number.
// The result is as in Run.
func RunProcs(ctx context.Context, c Config) (*Report, error) {
	d := c.withDefaults()
	if d.Ranks < 2 || max(d.Ranks, d.LoadRanks) > MaxProcs {
		return nil, fmt.Errorf("%d processes that save and %d that load: at least 2 and 1, at most %d", d.Ranks, d.LoadRanks, MaxProcs)
	}
	return runStages(ctx, c, func(p *runner) []stage {
		t := &procRunner{runner: p, secret: rand.Text()}
		p.saver, p.rep.Procs = t.save, true
		return []stage{p.save, p.verify, t.kills, p.overwrite, t.load}
	})
}

// procRunner is a runner with processes as ranks.
type procRunner struct {
	*runner
	secret string
	port   int // where ranks meet, once known
}

type answer struct {
	dying string
	died  time.Time
	*outcome
	ended time.Time
}

// launch runs a task in n processes and returns their answers.
func (t *procRunner) launch(ctx context.Context, n int, k task, keepGoing bool) ([]answer, *launch.Report, error) {
	k.Bytes, k.Ranks, k.LoadRanks, k.Timeout = t.Bytes, t.Ranks, t.LoadRanks, t.Timeout
	text, err := json.Marshal(k)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, launch.ErrTimeout)
	defer cancel()
	answers, stderr := make([]answer, n), new(bytes.Buffer)
	rep, err := launch.Run(ctx, launch.Config{
		N: n, Command: append(t.Command[:len(t.Command):len(t.Command)], string(text)), Env: t.Env,
		Secret: t.secret, Port: t.port, KeepGoing: keepGoing,
		Streams: func(rank int) (io.Writer, io.Writer) {
			return &receiver{answer: &answers[rank], moved: t.Watch.Moved}, stderr
		},
	})
	if rep != nil {
		t.port = rep.MasterPort // all later tasks meet at the same port
	}
	if _, ok := errors.AsType[*launch.ExitError](err); ok && keepGoing {
		err = nil
	}
	if text := strings.TrimSpace(stderr.String()); err != nil && text != "" && ctx.Err() == nil {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return answers, rep, err
}

// receiver parses the messages of one process.
type receiver struct {
	*answer
	moved func(int64)
	line  []byte
}

func (l *receiver) Write(b []byte) (int, error) {
	l.line = append(l.line, b...)
	for {
		line, rest, ok := bytes.Cut(l.line, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		var m message
		if err := json.Unmarshal(line, &m); err == nil {
			l.receive(m)
		}
		l.line = append(l.line[:0], rest...)
	}
}

func (l *receiver) receive(m message) {
	l.moved(m.Moved)
	if m.Dying != "" {
		l.dying, l.died = m.Dying, m.Time
	}
	if m.Done != nil {
		l.outcome, l.ended = m.Done, m.Time
	}
}

// all returns an error unless every process succeeded.
func all(answers []answer) error {
	for rank, a := range answers {
		switch {
		case a.outcome == nil:
			return fmt.Errorf("%w: rank %d said nothing", ErrWrong, rank)
		case a.Error != "":
			return fmt.Errorf("%w: rank %d: %s", ErrWrong, rank, a.Error)
		}
	}
	return nil
}

// save saves the state of a step from all processes.
func (t *procRunner) save(ctx context.Context, step int64) (*Save, error) {
	t.Watch.Begin("save", t.model.bytes())
	answers, _, err := t.launch(ctx, t.Ranks, task{Step: step}, false)
	if err == nil {
		err = all(answers)
	}
	if err != nil {
		return nil, err
	}
	return answers[0].Save, nil
}

// load loads in another number of processes, which compare every byte.
func (t *procRunner) load(ctx context.Context) error {
	t.Watch.Begin("load", 2*t.model.wanted()) // they load and compare
	answers, _, err := t.launch(ctx, t.LoadRanks, task{Load: true, Step: t.step}, false)
	if err == nil {
		err = all(answers)
	}
	if err != nil {
		return err
	}
	t.rep.Load = answers[0].Load
	for _, a := range answers[1:] {
		t.rep.Load.Compared += a.Load.Compared
	}
	t.Watch.End("load", t.rep)
	return nil
}

// kill is a rank to be killed, and the point of the save.
type kill struct {
	rank  int
	point string
	// committed is set if the new checkpoint must exist afterwards.
	committed bool
}

// kills kills a process during one save after the other and checks the store.
func (t *procRunner) kills(ctx context.Context) error {
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

func (t *procRunner) kill(ctx context.Context, k kill) (*Kill, error) {
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
	if err := out.checkSurvivors(answers); err != nil {
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

// checkSurvivors checks that every survivor returned an error that names the killed rank,
// and records the time of the last one. It does not judge that time, because the
// machine may be busy.
func (k *Kill) checkSurvivors(answers []answer) error {
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
