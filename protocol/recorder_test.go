package protocol_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// slowWriter takes a fixed time for each step of a save.
type slowWriter struct {
	storage.Writer
	plan, write time.Duration
	err         error // of WriteData
}

func (w *slowWriter) PrepareLocalPlan(ctx context.Context, p *plan.SavePlan) (*plan.SavePlan, error) {
	time.Sleep(w.plan)
	return w.Writer.PrepareLocalPlan(ctx, p)
}

func (w *slowWriter) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	time.Sleep(w.write)
	if w.err != nil {
		return nil, w.err
	}
	return w.Writer.WriteData(ctx, p, data)
}

// slowJob returns the job of a rank that begins late, plans and writes for a number of
// seconds. Rank 2 begins one second late, and rank 3 takes ten seconds to write.
func slowJob(t *testing.T, g *inproc.Group, s blob.Store) protocol.RankSave {
	job := saveJob(t, g, s, "id", 1)
	w := &slowWriter{Writer: job.Writer, plan: time.Duration(1+g.Rank()) * time.Second, write: 2 * time.Second}
	switch g.Rank() {
	case 2:
		time.Sleep(time.Second)
	case 3:
		w.write = 10 * time.Second
	}
	job.Writer = w
	return job
}

// seconds prints a timeline in seconds, without bytes.
func seconds(tl meta.Timeline) []string {
	var out []string
	for rank, phases := range tl {
		line := fmt.Sprintf("%d:", rank)
		for _, p := range phases {
			line += fmt.Sprintf(" %s %g-%g", p.Name, p.Start.Seconds(), p.End.Seconds())
		}
		out = append(out, line)
	}
	return out
}

// In the timeline the times of all ranks count from the same moment, and waiting for other
// ranks is not a part of any phase.
func TestTimelineShowsTheSlowRank(t *testing.T) {
	s := new(mem.Store)
	reports := make([]*protocol.SaveReport, world)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) (err error) {
		reports[g.Rank()], err = protocol.Save(ctx, slowJob(t, g, s))
		return err
	})
	must.Do(t, errors.Join(errs...))
	c := must.Get(native.Format{}.Open(t.Context(), s))(t)
	defer c.Close()
	tl := c.Storage().Timeline
	want := []string{
		"0: plan 0-1 global-plan 4-4 write 4-6 commit 14-14",
		"1: plan 0-2 write 4-6",
		"2: plan 0-3 write 4-6",
		"3: plan 0-4 write 4-14",
	}
	if d := cmp.Diff(want, seconds(tl)); d != "" {
		t.Errorf("the timeline (-want +got):\n%s", d)
	}
	for rank, phases := range tl {
		if got := phases[len(phases)-1].Bytes + phases[len(phases)-2].Bytes; got != reports[rank].RankBytes || got == 0 {
			t.Errorf("rank %d wrote %d bytes in the timeline; the report has %d", rank, got, reports[rank].RankBytes)
		}
	}
	if d := cmp.Diff([]string{"0: plan 0-3 write 4-6 commit 14-14"}, seconds(meta.Timeline{reports[2].Phases})); d != "" {
		t.Errorf("the phases of rank 2 (-want +got):\n%s", d)
	}
}

// A phase that is under way when a rank sends its results ends there.
func TestTimelineHasPhasesThatAreUnderWay(t *testing.T) {
	s := new(mem.Store)
	errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
		job := slowJob(t, g, s)
		job.Recorder = protocol.NewRecorder(ctx, protocol.OpSave, g.Rank(), nil, nil)
		_, stage := job.Recorder.Begin(ctx, meta.PhaseStage)
		defer stage.End(1, nil)
		_, err := protocol.Save(ctx, job)
		return err
	})
	must.Do(t, errors.Join(errs...))
	c := must.Get(native.Format{}.Open(t.Context(), s))(t)
	defer c.Close()
	want := []string{
		"0: plan 1-2 global-plan 5-5 write 5-7 stage 0-15 commit 15-15",
		"1: plan 1-3 write 5-7 stage 0-7",
		"2: plan 1-4 write 5-7 stage 1-7",
		"3: plan 1-5 write 5-15 stage 0-15",
	}
	if d := cmp.Diff(want, seconds(c.Storage().Timeline)); d != "" {
		t.Errorf("the timeline (-want +got):\n%s", d)
	}
}

// records decodes log records. It drops their times.
func records(t *testing.T, log *bytes.Buffer) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(log.String()) {
		m := map[string]any{}
		must.Do(t, json.Unmarshal([]byte(line), &m))
		delete(m, slog.TimeKey)
		out = append(out, m)
	}
	return out
}

func TestRecorderLogsPhases(t *testing.T) {
	var log bytes.Buffer
	var phases []meta.Phase
	var ended []*protocol.Outcome
	synctest.Test(t, func(t *testing.T) {
		r := protocol.NewRecorder(t.Context(), protocol.OpSave, 3, slog.New(slog.NewJSONHandler(&log, nil)), &protocol.Observer{
			Phase: func(p meta.Phase) { phases = append(phases, p) },
			Ended: func(o *protocol.Outcome) { ended = append(ended, o) },
		})
		r.Describe(&meta.Storage{SaveID: "id", Step: new(int64(7))})
		_, p := r.Begin(t.Context(), meta.PhaseStage)
		time.Sleep(2 * time.Second)
		p.End(1000, nil)
		p.End(1, nil) // has no effect
		r.EndStall()
		r.Warn(errors.New("harmless"))
		time.Sleep(2 * time.Second)
		r.Note(meta.Phase{Name: meta.PhasePlan, Start: 3 * time.Second, End: 3 * time.Second})
		r.End(5000, nil)
		r.End(1, errors.New("has no effect"))
	})
	about := func(m map[string]any) map[string]any {
		m["rank"], m["save_id"], m["step"] = 3.0, "id", 7.0
		return m
	}
	want := []map[string]any{
		about(map[string]any{"level": "INFO", "msg": "save: stage", "bytes": 1000.0, "seconds": 2.0, "bytes_per_second": 500.0}),
		about(map[string]any{"level": "WARN", "msg": "save: warning", "error": "harmless"}),
		about(map[string]any{"level": "INFO", "msg": "save: plan", "bytes": 0.0, "seconds": 0.0}),
		about(map[string]any{"level": "INFO", "msg": "save: done", "bytes": 5000.0, "seconds": 4.0, "bytes_per_second": 1250.0, "stall_seconds": 2.0}),
	}
	if d := cmp.Diff(want, records(t, &log)); d != "" {
		t.Errorf("log records (-want +got):\n%s", d)
	}
	wantPhases := []meta.Phase{
		{Name: "stage", End: 2 * time.Second, Bytes: 1000}, {Name: "plan", Start: 3 * time.Second, End: 3 * time.Second},
	}
	if d := cmp.Diff(wantPhases, phases); d != "" {
		t.Errorf("Observer.Phase (-want +got):\n%s", d)
	}
	wantEnd := []*protocol.Outcome{{
		Op: "save", Rank: 3, SaveID: "id", Step: new(int64(7)), Time: 4 * time.Second, Stall: 2 * time.Second, Bytes: 5000, Phases: wantPhases,
	}}
	if d := cmp.Diff(wantEnd, ended); d != "" {
		t.Errorf("Observer.Ended (-want +got):\n%s", d)
	}
}

func TestRecorderLogsFailures(t *testing.T) {
	errBenign := errors.New("left out")
	for name, tc := range map[string]struct {
		err   error
		level string
		msg   string
	}{
		"a failure":                       {errors.New("broken"), "ERROR", "load: failed"},
		"an error that counts as success": {fmt.Errorf("wrapped: %w", errBenign), "INFO", "load: left out"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			var ended error
			synctest.Test(t, func(t *testing.T) {
				r := protocol.NewRecorder(t.Context(), protocol.OpLoad, -1, slog.New(slog.NewJSONHandler(&log, nil)), &protocol.Observer{
					Ended: func(o *protocol.Outcome) { ended = o.Err },
				})
				_, p := r.Begin(t.Context(), meta.PhaseRead)
				time.Sleep(time.Second)
				p.End(0, tc.err)
				r.End(0, tc.err, errBenign)
			})
			want := []map[string]any{{"level": tc.level, "msg": tc.msg, "phase": "read", "seconds": 1.0, "error": tc.err.Error()}}
			if d := cmp.Diff(want, records(t, &log)); d != "" {
				t.Errorf("log records (-want +got):\n%s", d)
			}
			if ended != tc.err {
				t.Errorf("Observer.Ended received %v; want %v", ended, tc.err)
			}
		})
	}
}

// Another process notes times by another clock: its phases end when they arrive. Its
// progress goes to the observer, and its failure to the log.
func TestRecorderImportsFromAnotherProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var planned int64
		r := protocol.NewRecorder(t.Context(), protocol.OpSave, 0, slog.New(slog.NewJSONHandler(&log, nil)), &protocol.Observer{
			Planned: func(n int64) { planned += n },
		})
		_, p := r.Begin(t.Context(), meta.PhaseStage)
		time.Sleep(2 * time.Second)
		p.End(5, nil)
		o := r.ForProcess()
		o.Planned(7)
		time.Sleep(time.Second)
		o.Phase(meta.Phase{Name: meta.PhaseWrite, Start: time.Hour, End: time.Hour + 2*time.Second, Bytes: 5})
		o.Warned(errors.New("harmless"))
		r.ImportFailure("")
		r.ImportFailure(meta.PhaseCommit)
		r.End(0, errors.New("broken"))
		if d := cmp.Diff([]string{"0: stage 0-2 write 1-3"}, seconds(meta.Timeline{r.Phases()})); d != "" {
			t.Errorf("phases (-want +got):\n%s", d)
		}
		if planned != 7 {
			t.Errorf("%d bytes were planned; want 7", planned)
		}
		want := []map[string]any{
			{"level": "INFO", "msg": "save: stage", "rank": 0.0, "bytes": 5.0, "seconds": 2.0, "bytes_per_second": 2.0},
			{"level": "INFO", "msg": "save: write", "rank": 0.0, "bytes": 5.0, "seconds": 2.0, "bytes_per_second": 2.0},
			{"level": "WARN", "msg": "save: warning", "rank": 0.0, "error": "harmless"},
			{"level": "ERROR", "msg": "save: failed", "rank": 0.0, "phase": "commit", "seconds": 3.0, "error": "broken"},
		}
		if d := cmp.Diff(want, records(t, &log)); d != "" {
			t.Errorf("log records (-want +got):\n%s", d)
		}
	})
}

// Phases that do not fit in a record are dropped, and do not make a save fail.
func TestRecorderKeepsFewPhases(t *testing.T) {
	r := protocol.NewRecorder(t.Context(), protocol.OpSave, 0, nil, nil)
	for range 3 * meta.MaxPhases {
		r.Note(meta.Phase{Name: "again"})
	}
	for range 3 {
		r.Begin(t.Context(), "open")
	}
	if got := r.Phases(); len(got) != meta.MaxPhases || got[meta.MaxPhases-1].Name != "open" {
		t.Errorf("there are %d phases, the last %v; want %d, open", len(got), got[len(got)-1], meta.MaxPhases)
	}
}

// spans collects spans. It is a trace.TracerProvider.
type spans struct {
	embedded.TracerProvider
	mu   sync.Mutex
	list []*span
}

// tracer makes spans.
type tracer struct {
	embedded.Tracer
	*spans
}

type span struct {
	noop.Span
	of         *spans
	name       string
	parent     trace.Span
	start, end time.Time
	attrs      map[attribute.Key]attribute.Value
	status     string
	errs       []error
}

func (s *spans) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{spans: s} }

func (s tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	c := trace.NewSpanStartConfig(opts...)
	x := &span{of: s.spans, name: name, parent: trace.SpanFromContext(ctx), start: c.Timestamp(), attrs: map[attribute.Key]attribute.Value{}}
	x.SetAttributes(c.Attributes()...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, x)
	return trace.ContextWithSpan(ctx, x), x
}

func (x *span) IsRecording() bool                    { return true }
func (x *span) TracerProvider() trace.TracerProvider { return x.of }
func (x *span) SetStatus(c codes.Code, _ string)     { x.status = c.String() }
func (x *span) RecordError(err error, _ ...trace.EventOption) {
	x.errs = append(x.errs, err)
}
func (x *span) End(opts ...trace.SpanEndOption) {
	c := trace.NewSpanEndConfig(opts...)
	x.end = c.Timestamp()
}
func (x *span) SetAttributes(list ...attribute.KeyValue) {
	for _, a := range list {
		x.attrs[a.Key] = a.Value
	}
}

// describe prints the spans in the order of their starts, with their parents, seconds and
// attributes.
func (s *spans) describe() []string {
	var out []string
	for _, x := range s.list[1:] {
		parent, _ := x.parent.(*span)
		line := fmt.Sprintf("%s in %s: %g s", x.name, parent.name, x.end.Sub(x.start).Seconds())
		for _, k := range []attribute.Key{"cairn.rank", "cairn.step", "cairn.save_id"} {
			if v, ok := x.attrs[k]; ok {
				line += fmt.Sprintf(" %s=%s", strings.TrimPrefix(string(k), "cairn."), v.String())
			}
		}
		if x.attrs["cairn.bytes"].AsInt64() > 0 {
			line += " bytes"
		}
		if x.status != "" || len(x.errs) > 0 {
			line += fmt.Sprintf(" %s %v", x.status, x.errs)
		}
		out = append(out, line)
	}
	return out
}

// solo runs fn with a context that has a span, in a synctest bubble with one rank.
func solo(t *testing.T, fn func(ctx context.Context, g *inproc.Group)) []string {
	s := new(spans)
	synctest.Test(t, func(t *testing.T) {
		ctx, _ := s.Tracer("").Start(t.Context(), "trainer")
		fn(ctx, inproc.New(1)[0])
	})
	return s.describe()
}

func soloJob(t *testing.T, g *inproc.Group, s blob.Store, err error) protocol.RankSave {
	job := saveJob(t, g, s, "id", 1)
	job.State = plan.State{"v": []byte("some bytes")}
	job.Storage.Step = new(int64(7))
	job.Writer = &slowWriter{Writer: job.Writer, plan: time.Second, write: 2 * time.Second, err: err}
	return job
}

func TestSaveAndLoadHaveSpans(t *testing.T) {
	got := solo(t, func(ctx context.Context, g *inproc.Group) {
		s := new(mem.Store)
		if _, err := protocol.Save(ctx, soloJob(t, g, s, nil)); err != nil {
			t.Error(err)
		}
		_, err := protocol.Load(ctx, protocol.RankLoad{
			Group: g, Planner: new(plan.DefaultLoad), Reader: storage.NewReader(native.Format{}.Open, s, storage.ReadOptions{}),
			State: plan.State{"v": []byte(nil)},
		})
		if err != nil {
			t.Error(err)
		}
	})
	want := []string{
		"cairn.save in trainer: 3 s rank=0 step=7 save_id=id bytes",
		"cairn.save.plan in cairn.save: 1 s rank=0 step=7 save_id=id",
		"cairn.save.global-plan in cairn.save: 0 s rank=0 step=7 save_id=id",
		"cairn.save.write in cairn.save: 2 s rank=0 step=7 save_id=id bytes",
		"cairn.save.commit in cairn.save: 0 s rank=0 step=7 save_id=id",
		"cairn.load in trainer: 0 s rank=0 step=7 save_id=id",
		"cairn.load.plan in cairn.load: 0 s rank=0",
		"cairn.load.global-plan in cairn.load: 0 s rank=0",
		"cairn.load.read in cairn.load: 0 s rank=0 step=7 save_id=id",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
}

func TestSpansOfAFailedSave(t *testing.T) {
	got := solo(t, func(ctx context.Context, g *inproc.Group) {
		if _, err := protocol.Save(ctx, soloJob(t, g, new(mem.Store), errors.New("broken"))); err == nil {
			t.Error("Save returned no error")
		}
	})
	want := []string{
		"cairn.save in trainer: 3 s rank=0 step=7 save_id=id Error [write: broken]",
		"cairn.save.plan in cairn.save: 1 s rank=0 step=7 save_id=id",
		"cairn.save.global-plan in cairn.save: 0 s rank=0 step=7 save_id=id",
		"cairn.save.write in cairn.save: 2 s rank=0 step=7 save_id=id Error [broken]",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
}

// An upload is a span below its save, which is over by then. A failed one is an error in the
// log, and its time counts from the end of the save.
func TestUploadsAreRecorded(t *testing.T) {
	var log bytes.Buffer
	var outcomes []*protocol.Outcome
	got := solo(t, func(ctx context.Context, _ *inproc.Group) {
		for _, err := range []error{nil, errors.New("no answer")} {
			r := protocol.NewRecorder(ctx, protocol.OpSave, 0, slog.New(slog.NewJSONHandler(&log, nil)), &protocol.Observer{
				Uploaded: func(o *protocol.Outcome) { outcomes = append(outcomes, o) },
			})
			time.Sleep(time.Second)
			r.Traffic(&blob.Traffic{Requests: 5})
			r.End(100, nil)
			time.Sleep(3 * time.Second)
			if err == nil {
				r.EndUpload(100, 2*time.Second, &blob.Traffic{Requests: 9, Retries: 4}, nil)
			} else {
				r.EndUpload(0, 0, nil, err)
			}
		}
	})
	want := []string{
		"cairn.save in trainer: 1 s rank=0 bytes", "cairn.upload in cairn.save: 2 s rank=0 bytes",
		"cairn.save in trainer: 1 s rank=0 bytes", "cairn.upload in cairn.save: 3 s rank=0 Error [no answer]",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("spans (-want +got):\n%s", d)
	}
	done := map[string]any{"level": "INFO", "msg": "save: done", "rank": 0.0, "requests": 5.0, "retries": 0.0, "hedges": 0.0, "bytes": 100.0, "seconds": 1.0, "bytes_per_second": 100.0}
	wantLog := []map[string]any{
		done,
		{"level": "INFO", "msg": "upload: done", "rank": 0.0, "bytes": 100.0, "seconds": 2.0, "bytes_per_second": 50.0, "requests": 9.0, "retries": 4.0, "hedges": 0.0},
		done,
		{"level": "ERROR", "msg": "upload: failed", "rank": 0.0, "seconds": 3.0, "error": "no answer"},
	}
	if d := cmp.Diff(wantLog, records(t, &log)); d != "" {
		t.Errorf("log records (-want +got):\n%s", d)
	}
	if len(outcomes) != 2 || outcomes[0].Op != protocol.OpUpload || outcomes[0].Traffic.Retries != 4 || outcomes[1].Err == nil || outcomes[1].Time != 3*time.Second {
		t.Errorf("Observer.Uploaded received %+v", outcomes)
	}
}
