package demo

import (
	"bytes"
	"cmp"
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
// checkpoint, save in the background, meet again under the same name, save, and load
// in another number.
// The result is as in Run.
func RunProcs(ctx context.Context, c Config) (*Report, error) {
	d := c.withDefaults()
	if d.Ranks < 2 || max(d.Ranks, d.LoadRanks) > MaxProcs {
		return nil, fmt.Errorf("%d processes that save and %d that load: at least 2 and 1, at most %d", d.Ranks, d.LoadRanks, MaxProcs)
	}
	return runStages(ctx, c, func(p *runner) []stage {
		t := newProcRunner(p)
		p.saver, p.loader, p.rep.Procs = t.save, t.load, true
		return []stage{p.save, p.verify, t.kills, t.background, p.overwrite, p.load}
	})
}

// procRunner is a runner with processes as ranks.
type procRunner struct {
	*runner
	secret string
	port   int // where ranks meet, once known
}

func newProcRunner(p *runner) *procRunner { return &procRunner{runner: p, secret: rand.Text()} }

type answer struct {
	dying   string
	died    time.Time
	trained *trained
	*outcome
	ended time.Time
}

// launch runs a task in n processes and returns their answers.
func (t *procRunner) launch(ctx context.Context, n int, k task, keepGoing bool) ([]answer, *launch.Report, error) {
	k.Bytes, k.Ranks, k.LoadRanks = t.Bytes, cmp.Or(k.Ranks, t.Ranks), t.LoadRanks
	text, err := json.Marshal(k)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stepTime, launch.ErrTimeout)
	defer cancel()
	answers, printed := make([]answer, n), new(bytes.Buffer)
	stderr := t.Stderr
	if stderr == nil {
		stderr = printed
	}
	env := t.Env
	if k.Job != "" {
		env = append(slices.Clone(env), jobVariable+"="+k.Job)
	}
	rep, err := launch.Run(ctx, launch.Config{
		N: n, Command: append(t.Command[:len(t.Command):len(t.Command)], string(text)), Env: env,
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
	if text := strings.TrimSpace(printed.String()); err != nil && text != "" && ctx.Err() == nil {
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
	if m.Trained != nil {
		l.trained = m.Trained
	}
	if m.Done != nil {
		l.outcome, l.ended = m.Done, m.Time
	}
}

// launchAll runs a task in n processes, which must all succeed.
func (t *procRunner) launchAll(ctx context.Context, n int, k task) ([]answer, error) {
	answers, _, err := t.launch(ctx, n, k, false)
	for rank, a := range answers {
		switch {
		case err != nil:
		case a.outcome == nil:
			err = fmt.Errorf("%w: rank %d sent no result", ErrWrong, rank)
		case a.Error != "":
			err = fmt.Errorf("%w: rank %d: %s", ErrWrong, rank, a.Error)
		}
	}
	return answers, err
}

// save saves the state of a step from all processes.
func (t *procRunner) save(ctx context.Context, step int64) (*Save, error) {
	answers, err := t.launchAll(ctx, t.Ranks, task{Step: step})
	if err != nil {
		return nil, err
	}
	return answers[0].Save, nil
}

// load loads the checkpoint of a step in another number of processes.
func (t *procRunner) load(ctx context.Context, step int64) ([]*Load, error) {
	answers, err := t.launchAll(ctx, t.LoadRanks, task{Load: true, Step: step})
	if err != nil {
		return nil, err
	}
	var out []*Load
	for _, a := range answers {
		out = append(out, a.Load)
	}
	return out, nil
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
	t.beginSave()
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
	return out, t.examineCrash(ctx, &out.Crash, step, k.committed)
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
			return fmt.Errorf("%w: rank %d sent no result", ErrWrong, rank)
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
