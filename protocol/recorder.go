package protocol

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
)

// The operations that a Recorder notes.
const (
	OpSave    = "save"
	OpLoad    = "load"
	OpConvert = "convert"
	// OpUpload is the upload of a save to a second store.
	OpUpload = "upload"
)

// Outcome describes a save or load that is over on one rank.
type Outcome struct {
	Op     string // OpSave or OpLoad; OpUpload for Observer.Uploaded
	Rank   int    // negative: all ranks
	SaveID string // empty: unknown
	Step   *int64 // nil: unknown
	// Time is from the call until the save or load was over. Stall is from the call
	// until it returned: all of Time, unless the save was in the background.
	Time, Stall time.Duration
	// Bytes is the number of bytes that this rank wrote or read.
	Bytes int64
	// Phases are in the order in which they ended.
	Phases []meta.Phase
	// Traffic is the traffic of the store, including repeated requests. Nil: it is not known, or
	// the store does not count it.
	Traffic *blob.Traffic
	// Err is nil if the save or load succeeded.
	Err error
}

// Recorder notes the phases of a save or load on one rank. It reports them to a log, to
// an Observer, and as OpenTelemetry spans below the span of the caller's context, if
// there is one. Its methods are safe for concurrent use.
type Recorder struct {
	logger   *slog.Logger // nil: no log
	observer *Observer
	tracer   trace.Tracer
	span     trace.Span // of the whole save or load
	start    time.Time

	mu       sync.Mutex
	out      Outcome
	open     []*OpenPhase
	agreedAt time.Duration // when the ranks agreed on the plan
	stall    time.Duration // until the call returned; zero: it has not
	failed   string        // the phase that failed last
	ended    bool
}

// tracerName is the name of the instrumentation in spans.
const tracerName = "github.com/cairn-ckpt/cairn"

// NewRecorder begins to record an operation of one rank, or, if rank is negative, of all
// ranks together. logger and observer may be nil.
// ctx is the context of the caller.
func NewRecorder(ctx context.Context, op string, rank int, logger *slog.Logger, observer *Observer) *Recorder {
	if observer == nil {
		observer = new(Observer)
	}
	r := &Recorder{logger: logger, observer: observer, start: time.Now(), out: Outcome{Op: op, Rank: rank}}
	// The provider of the caller's span needs no global state, and without such a span spans are
	// free.
	r.tracer = trace.SpanFromContext(ctx).TracerProvider().Tracer(tracerName)
	_, r.span = r.tracer.Start(ctx, "cairn."+op, trace.WithTimestamp(r.start), trace.WithAttributes(r.attributes()...))
	return r
}

// Describe notes which save it is about.
func (r *Recorder) Describe(s *meta.Storage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.SaveID, r.out.Step = s.SaveID, s.Step
	if r.span.IsRecording() {
		r.span.SetAttributes(r.attributes()...)
	}
}

// attributes describe the save or load in spans.
func (r *Recorder) attributes() []attribute.KeyValue {
	var out []attribute.KeyValue
	if r.out.Rank >= 0 {
		out = append(out, attribute.Int("cairn.rank", r.out.Rank))
	}
	if r.out.SaveID != "" {
		out = append(out, attribute.String("cairn.save_id", r.out.SaveID))
	}
	if r.out.Step != nil {
		out = append(out, attribute.Int64("cairn.step", *r.out.Step))
	}
	return out
}

// Context returns ctx with the span of the save or load.
func (r *Recorder) Context(ctx context.Context) context.Context {
	return trace.ContextWithSpan(ctx, r.span)
}

// OpenPhase is a phase that is under way.
type OpenPhase struct {
	r     *Recorder
	phase meta.Phase // without its end
	span  trace.Span
}

// Begin begins a phase. The context that it returns has the span of the phase.
func (r *Recorder) Begin(ctx context.Context, name string) (context.Context, *OpenPhase) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := &OpenPhase{r: r, phase: meta.Phase{Name: name, Start: now.Sub(r.start)}}
	ctx, p.span = r.startSpan(r.Context(ctx), name, now)
	r.open = append(r.open, p)
	return ctx, p
}

func (r *Recorder) startSpan(ctx context.Context, name string, at time.Time) (context.Context, trace.Span) {
	ctx, span := r.tracer.Start(ctx, "cairn."+r.out.Op+"."+name, trace.WithTimestamp(at))
	if span.IsRecording() {
		span.SetAttributes(r.attributes()...)
	}
	return ctx, span
}

// End ends the phase, after bytes were moved. err is nil if it succeeded. Only the first
// call has an effect.
func (p *OpenPhase) End(bytes int64, err error) {
	r, at := p.r, time.Now()
	r.mu.Lock()
	i := slices.Index(r.open, p)
	if i < 0 {
		r.mu.Unlock()
		return // it has ended before
	}

	r.open = slices.Delete(r.open, i, i+1)
	p.phase.End, p.phase.Bytes = at.Sub(r.start), bytes
	if err != nil {
		r.failed = p.phase.Name
	}
	r.mu.Unlock()
	endSpan(p.span, at, bytes, err, nil)

	if err == nil {
		r.add(p.phase)
	}
}

// endSpan ends a span. t may be nil.
func endSpan(span trace.Span, at time.Time, bytes int64, err error, t *blob.Traffic) {
	if span.IsRecording() {
		span.SetAttributes(attribute.Int64("cairn.bytes", bytes))
		if t != nil {
			span.SetAttributes(attribute.Int64("cairn.requests", t.Requests), attribute.Int64("cairn.retries", t.Retries))
		}
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
		}
	}
	span.End(trace.WithTimestamp(at))
}

// Now returns the time since the beginning of the recording.
func (r *Recorder) Now() time.Duration { return time.Since(r.start) }

// Note adds a phase that is over. Its times count from the beginning of the recording
// and may be negative.
func (r *Recorder) Note(p meta.Phase) {
	r.mu.Lock()
	_, span := r.startSpan(r.Context(context.Background()), p.Name, r.start.Add(p.Start))
	r.mu.Unlock()
	endSpan(span, r.start.Add(p.End), p.Bytes, nil, nil)
	r.add(p)
}

// add adds a phase that has succeeded and reports it.
func (r *Recorder) add(p meta.Phase) {
	r.mu.Lock()
	if len(r.out.Phases) < meta.MaxPhases-1 { // one may be open
		r.out.Phases = append(r.out.Phases, p)
	}

	attrs := append(r.logAttrs(), rateAttrs(p.End-p.Start, p.Bytes)...)
	r.mu.Unlock()
	if r.observer.Phase != nil {
		r.observer.Phase(p)
	}
	r.log(slog.LevelInfo, r.out.Op+": "+p.Name, attrs)
}

// ForProcess returns an Observer for a process that carries out the save: its progress goes to
// the Observer of the recording, its warnings and phases to the recording.
func (r *Recorder) ForProcess() *Observer {
	return &Observer{Planned: r.observer.Planned, Moved: r.observer.Moved, Warned: r.Warn, Phase: r.importPhase}
}

// importPhase adds a phase of another process, which has other clocks. It ends now.
func (r *Recorder) importPhase(p meta.Phase) {
	now := r.Now()
	p.Start, p.End = now-(p.End-p.Start), now
	r.Note(p)
}

// ImportFailure notes the name of a phase that failed in another process. Empty: it is
// unknown.
func (r *Recorder) ImportFailure(phase string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if phase != "" {
		r.failed = phase
	}
}

// FailedPhase returns the name of the phase that failed last, or "" if no phase failed.
func (r *Recorder) FailedPhase() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// agreed notes that the ranks have agreed on the plan, at about the same moment. Times
// of different ranks are compared by it.
func (r *Recorder) agreed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agreedAt = time.Since(r.start)
}

// Phases returns the phases so far. Their times count from the beginning of the first.
func (r *Recorder) Phases() []meta.Phase {
	out := r.sinceAgreed()
	shift(meta.Timeline{out})
	return out
}

// sinceAgreed returns the phases so far. Their times count from the moment at which the
// ranks agreed on the plan. Phases that are under way end now.
func (r *Recorder) sinceAgreed() []meta.Phase {
	r.mu.Lock()
	defer r.mu.Unlock()

	out := slices.Clone(r.out.Phases)
	for _, p := range r.open {
		if len(out) < meta.MaxPhases {
			q := p.phase
			q.End = time.Since(r.start)
			out = append(out, q)
		}
	}

	for i := range out {
		out[i].Start -= r.agreedAt
		out[i].End -= r.agreedAt
	}

	return out
}

// shift changes the times of t so that the first phase begins at zero.
func shift(t meta.Timeline) {
	var first time.Duration
	some := false
	for _, phases := range t {
		for _, p := range phases {
			if !some || p.Start < first {
				first, some = p.Start, true
			}
		}
	}

	for _, phases := range t {
		for i := range phases {
			phases[i].Start -= first
			phases[i].End -= first
		}
	}
}

// EndStall notes that the call returns and the save goes on in the background.
func (r *Recorder) EndStall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stall == 0 {
		r.stall = time.Since(r.start)
	}
}

// Traffic records the traffic of the store, for the log of the outcome. t may be nil.
func (r *Recorder) Traffic(t *blob.Traffic) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.Traffic = t
}

// End ends the recording. bytes is the number of bytes that the rank has written or read, err
// the outcome. Only the first call has an effect. benign are errors that are no failures.
func (r *Recorder) End(bytes int64, err error, benign ...error) {
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return
	}

	r.ended = true
	for _, p := range r.open { // they have failed
		p.span.End()
	}

	r.open = nil
	now := time.Now()
	r.out.Bytes, r.out.Err, r.out.Time = bytes, err, now.Sub(r.start)
	if r.out.Stall = r.stall; r.out.Stall == 0 {
		r.out.Stall = r.out.Time
	}

	out, attrs := r.out, r.logAttrs()
	if r.failed != "" {
		attrs = append(attrs, slog.String("phase", r.failed))
	}
	if t := r.out.Traffic; t != nil {
		attrs = append(attrs, trafficAttrs(t)...)
	}
	r.mu.Unlock()
	endSpan(r.span, now, bytes, err, out.Traffic)

	if r.observer.Ended != nil {
		r.observer.Ended(&out)
	}
	r.logEnd(&out, attrs, benign)
}

func (r *Recorder) logEnd(out *Outcome, attrs []slog.Attr, benign []error) {
	if out.Err == nil {
		attrs = append(attrs, rateAttrs(out.Time, out.Bytes)...)
		if out.Stall != out.Time {
			attrs = append(attrs, slog.Float64("stall_seconds", out.Stall.Seconds()))
		}
		r.log(slog.LevelInfo, out.Op+": done", attrs)
		return
	}

	level, text := slog.LevelError, out.Op+": failed"
	if slices.ContainsFunc(benign, func(e error) bool { return errors.Is(out.Err, e) }) {
		level, text = slog.LevelInfo, out.Op+": left out"
	}
	attrs = append(attrs, slog.Float64("seconds", out.Time.Seconds()), slog.String("error", out.Err.Error()))
	r.log(level, text, attrs)
}

// EndUpload records the end of the upload of the save to a second store, which comes after
// End: in the log, for the Observer, and as a span below the span of the save. d is how long
// the upload took. Zero: since the end of the save. t may be nil. err is nil if the upload
// succeeded.
func (r *Recorder) EndUpload(bytes int64, d time.Duration, t *blob.Traffic, err error) {
	now := time.Now()
	r.mu.Lock()
	attrs, out := r.logAttrs(), r.out
	if d == 0 {
		d = max(0, now.Sub(r.start)-r.out.Time)
	}

	out.Op, out.Phases, out.Bytes, out.Time, out.Stall, out.Traffic, out.Err = OpUpload, nil, bytes, d, 0, t, err
	_, span := r.tracer.Start(r.Context(context.Background()), "cairn."+OpUpload, trace.WithTimestamp(now.Add(-d)), trace.WithAttributes(r.attributes()...))
	r.mu.Unlock()
	endSpan(span, now, bytes, err, t)
	if r.observer.Uploaded != nil {
		r.observer.Uploaded(&out)
	}

	level, text := slog.LevelInfo, "upload: done"
	if err == nil {
		attrs = append(attrs, rateAttrs(d, bytes)...)
	} else {
		level, text = slog.LevelError, "upload: failed"
		attrs = append(attrs, slog.Float64("seconds", d.Seconds()), slog.String("error", err.Error()))
	}

	if t != nil {
		attrs = append(attrs, trafficAttrs(t)...)
	}
	r.log(level, text, attrs)
}

// trafficAttrs describe the traffic of a store in log records.
func trafficAttrs(t *blob.Traffic) []slog.Attr {
	attrs := []slog.Attr{slog.Int64("requests", t.Requests), slog.Int64("retries", t.Retries), slog.Int64("hedges", t.Hedges)}
	if t.Cached > 0 {
		attrs = append(attrs, slog.Int64("bytes_cached", t.Cached))
	}
	return attrs
}

// Warn logs an error that does no harm, and passes it to the Observer.
func (r *Recorder) Warn(err error) {
	if r.observer.Warned != nil {
		r.observer.Warned(err)
	}

	if r.logger == nil {
		return
	}

	r.mu.Lock()
	attrs := append(r.logAttrs(), slog.String("error", err.Error()))
	r.mu.Unlock()
	r.log(slog.LevelWarn, r.out.Op+": warning", attrs)
}

// Inform logs work for a save after its end.
func (r *Recorder) Inform(text string, attrs ...slog.Attr) {
	if r.logger == nil {
		return
	}
	r.mu.Lock()
	all := append(r.logAttrs(), attrs...)
	r.mu.Unlock()
	r.log(slog.LevelInfo, text, all)
}

// log writes a log record. The context of the save may have ended.
func (r *Recorder) log(level slog.Level, text string, attrs []slog.Attr) {
	if r.logger != nil {
		r.logger.LogAttrs(r.Context(context.Background()), level, text, attrs...)
	}
}

// logAttrs describe the save or load in log records.
func (r *Recorder) logAttrs() []slog.Attr {
	if r.logger == nil {
		return nil
	}

	var attrs []slog.Attr
	if r.out.Rank >= 0 {
		attrs = append(attrs, slog.Int("rank", r.out.Rank))
	}
	if r.out.SaveID != "" {
		attrs = append(attrs, slog.String("save_id", r.out.SaveID))
	}
	if r.out.Step != nil {
		attrs = append(attrs, slog.Int64("step", *r.out.Step))
	}
	return attrs
}

// rateAttrs describe in log records how fast bytes were moved.
func rateAttrs(d time.Duration, bytes int64) []slog.Attr {
	attrs := []slog.Attr{slog.Int64("bytes", bytes), slog.Float64("seconds", d.Seconds())}
	if d > 0 && bytes > 0 {
		attrs = append(attrs, slog.Int64("bytes_per_second", int64(float64(bytes)/d.Seconds())))
	}
	return attrs
}
