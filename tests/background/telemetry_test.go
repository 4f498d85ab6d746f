package background

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// watcher collects the reports of saves and loads.
type watcher struct {
	mu     sync.Mutex
	log    bytes.Buffer
	to     *slog.Logger
	phases map[string]bool // by rank
	ended  []*cairn.Outcome
}

// logger returns the logger of all ranks, which writes one record at a time.
func (w *watcher) logger() *slog.Logger {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.to == nil {
		w.to = slog.New(slog.NewJSONHandler(&w.log, nil))
	}
	return w.to
}

func (w *watcher) observer(rank int) *cairn.Observer {
	return &cairn.Observer{
		Phase: func(p cairn.Phase) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.phases == nil {
				w.phases = map[string]bool{}
			}
			w.phases[fmt.Sprintf("%d %s", rank, p.Name)] = true
		},
		Ended: func(o *cairn.Outcome) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = append(w.ended, o)
		},
	}
}

// messages returns the log records as "rank message", sorted. It checks that each record
// of a phase has bytes and seconds, and that each that moved bytes has a rate.
func (w *watcher) messages(t *testing.T) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(w.log.String()) {
		m := map[string]any{}
		must.Do(t, json.Unmarshal([]byte(line), &m))
		out = append(out, fmt.Sprintf("%v %v", m["rank"], m["msg"]))
		if m["error"] != nil {
			continue
		}
		bytes, hasBytes := m["bytes"].(float64)
		seconds, hasSeconds := m["seconds"].(float64)
		if _, hasRate := m["bytes_per_second"]; !hasBytes || !hasSeconds || hasRate != (bytes > 0 && seconds > 0) {
			t.Errorf("the record lacks bytes, seconds or the rate: %s", line)
		}
	}
	slices.Sort(out)
	return out
}

// saveRows saves a matrix from several ranks.
func saveRows(ctx context.Context, g group.Group, save func(state cairn.State, o cairn.SaveOptions) error) error {
	w, err := shard.Zeros[float32](shard.Rows(g.Size()), []int64{64, 8}, g.Rank())
	if err != nil {
		return err
	}
	step := int64(7)
	return save(cairn.State{"w": w}, cairn.SaveOptions{Group: g, Step: &step})
}

// phaseNames returns the names of the phases of each rank of a checkpoint, sorted, and
// checks their times.
func phaseNames(t *testing.T, store blob.Store) [][]string {
	t.Helper()
	c := must.Get(cairn.Open(t.Context(), store))(t)
	defer c.Close()
	var out [][]string
	for rank, phases := range c.Info().Timeline {
		var names []string
		for _, p := range phases {
			names = append(names, p.Name)
			if moves := p.Name == "write" || p.Name == "stage"; p.Start < 0 || p.End < p.Start || (p.Bytes > 0) != moves {
				t.Errorf("rank %d: %+v", rank, p)
			}
		}
		slices.Sort(names)
		out = append(out, names)
	}
	return out
}

func TestSaveAndLoadReportPhases(t *testing.T) {
	const ranks = 2
	var w watcher
	store := new(mem.Store)
	jobtest.EachRank(t, ranks, func(ctx context.Context, g group.Group) error {
		return saveRows(ctx, g, func(state cairn.State, o cairn.SaveOptions) error {
			o.Observer, o.Logger = w.observer(g.Rank()), w.logger()
			if _, err := cairn.Save(ctx, store, state, &o); err != nil {
				return err
			}
			_, err := cairn.Load(ctx, store, state, &cairn.LoadOptions{Group: g, Observer: o.Observer, Logger: o.Logger})
			return err
		})
	})
	want := []string{
		"0 load: done", "0 load: global-plan", "0 load: plan", "0 load: read",
		"0 save: commit", "0 save: done", "0 save: global-plan", "0 save: plan", "0 save: write",
		"1 load: done", "1 load: plan", "1 load: read",
		"1 save: commit", "1 save: done", "1 save: plan", "1 save: write",
	}
	if d := cmp.Diff(want, w.messages(t)); d != "" {
		t.Errorf("log records (-want +got):\n%s", d)
	}
	wantPhases := []string{
		"0 commit", "0 global-plan", "0 plan", "0 read", "0 write", "1 commit", "1 plan", "1 read", "1 write",
	}
	if d := cmp.Diff(wantPhases, slices.Sorted(maps.Keys(w.phases))); d != "" {
		t.Errorf("Observer.Phase (-want +got):\n%s", d)
	}
	if len(w.ended) != 2*ranks {
		t.Fatalf("Observer.Ended was called %d times; want %d", len(w.ended), 2*ranks)
	}
	for _, o := range w.ended {
		if o.Err != nil || o.Bytes == 0 || o.Time <= 0 || o.Stall != o.Time || *o.Step != 7 || o.SaveID == "" {
			t.Errorf("the outcome is %+v", o)
		}
	}
	if d := cmp.Diff([][]string{{"commit", "global-plan", "plan", "write"}, {"plan", "write"}}, phaseNames(t, store)); d != "" {
		t.Errorf("the timeline (-want +got):\n%s", d)
	}
}

func TestBackgroundSavesReportPhases(t *testing.T) {
	const ranks = 2
	for mode, options := range jobtest.Modes {
		for _, overlap := range []bool{false, true} {
			t.Run(fmt.Sprint(mode, overlap), func(t *testing.T) {
				var w watcher
				store := jobtest.TempStore(t)
				jobtest.EachRank(t, ranks, func(ctx context.Context, g group.Group) error {
					s, err := cairn.NewStager(options(1 << 20))
					if err != nil {
						return err
					}
					defer s.Close(ctx)
					return saveRows(ctx, g, func(state cairn.State, o cairn.SaveOptions) error {
						o.Observer, o.Logger = w.observer(g.Rank()), w.logger()
						p, err := cairn.SaveAsync(ctx, store, state, &cairn.AsyncOptions{SaveOptions: o, Stager: s, Overlap: overlap})
						if err != nil {
							return err
						}
						r, err := p.Wait(ctx)
						if err != nil {
							return err
						}
						if len(r.Phases) != 4+1-g.Rank() {
							return fmt.Errorf("the report has the phases %v", r.Phases)
						}
						return nil
					})
				})
				want := []string{
					"0 save: commit", "0 save: done", "0 save: global-plan", "0 save: plan", "0 save: stage", "0 save: write",
					"1 save: commit", "1 save: done", "1 save: plan", "1 save: stage", "1 save: write",
				}
				if d := cmp.Diff(want, w.messages(t)); d != "" {
					t.Errorf("log records (-want +got):\n%s", d)
				}
				for _, o := range w.ended {
					if o.Err != nil || o.Bytes == 0 || o.Stall <= 0 || o.Stall > o.Time || *o.Step != 7 || o.SaveID != w.ended[0].SaveID {
						t.Errorf("the outcome is %+v", o)
					}
				}
				if len(w.ended) != ranks {
					t.Errorf("Observer.Ended was called %d times; want %d", len(w.ended), ranks)
				}
				names := [][]string{{"commit", "global-plan", "plan", "stage", "write"}, {"plan", "stage", "write"}}
				if d := cmp.Diff(names, phaseNames(t, store)); d != "" {
					t.Errorf("the timeline (-want +got):\n%s", d)
				}
			})
		}
	}
}

// A save that fails in the background is in the log, and the observer receives it.
func TestFailedBackgroundSaveIsReported(t *testing.T) {
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			var w watcher
			store := jobtest.TempStore(t)
			s := jobtest.Stager(t, options(1<<20))
			save := func(failIfExists bool) error {
				p, err := cairn.SaveAsync(t.Context(), store, cairn.State{"w": jobtest.Numbered(t, 100, 1)}, &cairn.AsyncOptions{
					Stager: s, SaveOptions: cairn.SaveOptions{FailIfExists: failIfExists, Observer: w.observer(0), Logger: w.logger()},
				})
				if err != nil {
					t.Fatal(err)
				}
				_, err = p.Wait(t.Context())
				return err
			}
			must.Do(t, save(false))
			w.log.Reset()
			if err := save(true); !errors.Is(err, cairn.ErrExists) {
				t.Fatalf("Wait = %v; want ErrExists", err)
			}
			if d := cmp.Diff([]string{"0 save: failed", "0 save: stage"}, w.messages(t)); d != "" {
				t.Errorf("log records (-want +got):\n%s", d)
			}
			if log := w.log.String(); !strings.Contains(log, `"level":"ERROR"`) || !strings.Contains(log, cairn.ErrExists.Error()) {
				t.Errorf("the log has no error that says %q: %s", cairn.ErrExists, log)
			}
			if len(w.ended) != 2 || !errors.Is(w.ended[1].Err, cairn.ErrExists) {
				t.Errorf("the outcomes are %v; want ErrExists last", w.ended)
			}
		})
	}
}

// The record of a failure has the phase and the save on all ranks, wherever the save runs.
func TestFailureRecordNamesPhaseAndSave(t *testing.T) {
	const ranks = 2
	for mode, options := range jobtest.Modes {
		t.Run(mode, func(t *testing.T) {
			var w watcher
			store := jobtest.TempStore(t)
			jobtest.EachRank(t, ranks, func(ctx context.Context, g group.Group) error {
				s, err := cairn.NewStager(options(1 << 20))
				if err != nil {
					return err
				}
				defer s.Close(ctx)
				return saveRows(ctx, g, func(state cairn.State, o cairn.SaveOptions) error {
					o.Logger = w.logger()
					// Rank 0 has another tensor of the same name: the plan fails there.
					state["v"] = jobtest.Numbered(t, 10+int64(g.Rank()), 1)
					p, err := cairn.SaveAsync(ctx, store, state, &cairn.AsyncOptions{SaveOptions: o, Stager: s})
					if err != nil {
						return err
					}
					if _, err := p.Wait(ctx); err == nil {
						return errors.New("the save has succeeded")
					}
					return nil
				})
			})
			ids := map[any]bool{}
			planned, failed := 0, 0
			for line := range strings.Lines(w.log.String()) {
				m := map[string]any{}
				must.Do(t, json.Unmarshal([]byte(line), &m))
				ids[m["save_id"]] = true
				if m["msg"] == "save: plan" {
					planned++ // phases are logged when they end, not with the outcome
				}
				if m["msg"] == "save: failed" {
					failed++
					if m["rank"] == 0.0 && m["phase"] != "global-plan" {
						t.Errorf("the phase is not global-plan: %s", line)
					}
				}
			}
			if planned != ranks || failed != ranks || len(ids) != 1 || ids[nil] {
				t.Errorf("%d plans and %d failures of the saves %v; want %d of one save\n%s", planned, failed, ids, ranks, &w.log)
			}
		})
	}
}

// Options that are refused end a save too.
func TestRefusedSavesAreReported(t *testing.T) {
	var w watcher
	s := jobtest.Stager(t, &cairn.StagerOptions{Ceiling: 1 << 20})
	o := cairn.SaveOptions{BufferBytes: -1, Observer: w.observer(0)}
	_, err := cairn.Save(t.Context(), new(mem.Store), cairn.State{"a": 1}, &o)
	_, asyncErr := cairn.SaveAsync(t.Context(), new(mem.Store), cairn.State{"a": 1}, &cairn.AsyncOptions{SaveOptions: o, Stager: s})
	_, loadErr := cairn.Load(t.Context(), new(mem.Store), cairn.State{"a": 1}, &cairn.LoadOptions{BufferBytes: -1, Observer: o.Observer})
	for i, err := range []error{err, asyncErr, loadErr} {
		if !errors.Is(err, cairn.ErrOptions) || len(w.ended) <= i || w.ended[i].Err.Error() != err.Error() {
			t.Errorf("error %d is %v; the outcomes are %+v", i, err, w.ended)
		}
	}
}

// A save that is skipped is over for the observer, and is no failure in the log.
func TestSkippedSaveIsReported(t *testing.T) {
	var w watcher
	s := jobtest.Stager(t, &cairn.StagerOptions{Ceiling: 1 << 20})
	hold, release := context.WithCancel(t.Context())
	defer release()
	save := func(o *cairn.Observer) *cairn.Pending {
		p := must.Get(cairn.SaveAsync(t.Context(), new(mem.Store), cairn.State{"a": jobtest.Numbered(t, 10, 1)}, &cairn.AsyncOptions{
			Stager: s, Busy: cairn.BusySkip, SaveOptions: cairn.SaveOptions{Observer: o, Logger: w.logger()},
		}))(t)
		return p
	}
	first := save(&cairn.Observer{Planned: func(int64) { <-hold.Done() }})
	second := save(w.observer(0))
	release()
	if _, err := second.Wait(t.Context()); !errors.Is(err, cairn.ErrSkipped) {
		t.Fatalf("Wait = %v; want ErrSkipped", err)
	}
	must.Get(first.Wait(t.Context()))(t)
	if len(w.ended) != 1 || !errors.Is(w.ended[0].Err, cairn.ErrSkipped) {
		t.Errorf("the outcomes are %v; want ErrSkipped", w.ended)
	}
	if got := w.messages(t); !slices.Contains(got, "0 save: left out") || strings.Contains(w.log.String(), "ERROR") {
		t.Errorf("the log is %s", &w.log)
	}
}
