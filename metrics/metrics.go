// Package metrics makes Prometheus metrics of saves and loads. A [Metrics] observes
// through cairn.Observer, so no other package of cairn depends on Prometheus.
// docs/telemetry.md lists the metrics.
package metrics

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cairn-ckpt/cairn"
)

// Metrics counts the saves and loads of one rank. It is a prometheus.Collector, to be
// registered once:
//
//	m := metrics.New(stager)
//	prometheus.MustRegister(m)
//	opts.Observer = m.Observer(opts.Observer)
//
// If a process has several ranks, each has its own Metrics, and
// prometheus.WrapRegistererWith adds a label to tell them apart. The methods are safe for
// concurrent use.
type Metrics struct {
	save, load, upload operation
	stall              prometheus.Histogram
	leftOut            prometheus.Counter
	phase              *prometheus.SummaryVec
	requests, retries  *prometheus.CounterVec
	stager             *cairn.Stager // may be nil

	mu       sync.Mutex
	step     *int64    // of the newest save that succeeded, or nil; guarded by mu
	saved    time.Time // when it ended; guarded by mu
	uploaded time.Time // when the newest upload that succeeded ended; guarded by mu
}

var _ prometheus.Collector = (*Metrics)(nil)

// operation counts saves, loads or uploads.
type operation struct {
	seconds interface {
		prometheus.Collector
		prometheus.Observer
	}
	bytes, failures prometheus.Counter
}

// buckets are bounds for seconds: 1 ms to about 17 minutes. Each is a series of each rank, so
// there are few, and only for saves, which alerts are about.
var buckets = prometheus.ExponentialBuckets(0.001, 4, 11)

// These are read when they are asked for. A time or step is absent until there is one.
var (
	stepDesc     = prometheus.NewDesc("cairn_save_last_step", "Training step of the newest save that succeeded.", nil, nil)
	savedDesc    = prometheus.NewDesc("cairn_save_last_success_timestamp_seconds", "Time at which the newest save that succeeded was durable.", nil, nil)
	uploadedDesc = prometheus.NewDesc("cairn_upload_last_success_timestamp_seconds", "Time at which the newest upload that succeeded was durable.", nil, nil)

	usedDesc    = prometheus.NewDesc("cairn_stage_used_bytes", "Staging memory in use.", nil, nil)
	peakDesc    = prometheus.NewDesc("cairn_stage_peak_bytes", "The most staging memory that was in use.", nil, nil)
	ceilingDesc = prometheus.NewDesc("cairn_stage_ceiling_bytes", "The most staging memory that may be in use.", nil, nil)
)

// New returns Metrics of a rank. stager is the one that its background saves use. Nil:
// there are no metrics of staging memory.
func New(stager *cairn.Stager) *Metrics {
	seconds := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	summary := func(name, help string) prometheus.SummaryOpts {
		return prometheus.SummaryOpts{Name: name, Help: help} // without quantiles: a sum and a count
	}
	perOp := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"op"})
	}
	return &Metrics{
		save: operation{
			seconds:  prometheus.NewHistogram(seconds("cairn_save_seconds", "Time from the call of a save until the checkpoint was durable.")),
			bytes:    counter("cairn_save_bytes_total", "Bytes that this rank has written in saves that succeeded."),
			failures: counter("cairn_save_failures_total", "Saves that failed."),
		},
		load: operation{
			seconds:  prometheus.NewSummary(summary("cairn_load_seconds", "Time of a load.")),
			bytes:    counter("cairn_load_bytes_total", "Bytes that this rank has loaded in loads that succeeded."),
			failures: counter("cairn_load_failures_total", "Loads that failed."),
		},
		upload: operation{
			seconds:  prometheus.NewSummary(summary("cairn_upload_seconds", "Time of an upload to the second store.")),
			bytes:    counter("cairn_upload_bytes_total", "Bytes that this rank has uploaded in uploads that succeeded."),
			failures: counter("cairn_upload_failures_total", "Uploads to the second store that failed."),
		},
		stall:   prometheus.NewHistogram(seconds("cairn_save_stall_seconds", "Time from the call of a save to its return, during which training stood still.")),
		leftOut: counter("cairn_save_left_out_total", "Background saves that were skipped or replaced by a newer one."),
		phase: prometheus.NewSummaryVec(
			summary("cairn_phase_seconds", "Time of a phase of a save or load, without waiting for other ranks."), []string{"op", "phase"}),
		requests: perOp("cairn_requests_total", "Requests to object storage."),
		retries:  perOp("cairn_retries_total", "Requests to object storage that were repeated."),
		stager:   stager,
	}
}

// Observer returns an Observer for the options of saves and loads. It passes everything
// on to next, which may be nil.
func (m *Metrics) Observer(next *cairn.Observer) *cairn.Observer {
	var o cairn.Observer
	if next != nil {
		o = *next
	}
	ended, uploaded := o.Ended, o.Uploaded
	o.Ended = func(out *cairn.Outcome) {
		m.observe(out)
		if ended != nil {
			ended(out)
		}
	}
	o.Uploaded = func(out *cairn.Outcome) {
		m.observe(out)
		if uploaded != nil {
			uploaded(out)
		}
	}
	return &o
}

// observe counts a save, load or upload that is over.
func (m *Metrics) observe(out *cairn.Outcome) {
	op := &m.load
	switch out.Op {
	case cairn.OpSave:
		op = &m.save
	case cairn.OpUpload:
		op = &m.upload
	}
	if t := out.Traffic; t != nil {
		m.requests.WithLabelValues(out.Op).Add(float64(t.Requests))
		m.retries.WithLabelValues(out.Op).Add(float64(t.Retries))
	}
	for _, p := range out.Phases {
		m.phase.WithLabelValues(out.Op, p.Name).Observe((p.End - p.Start).Seconds())
	}
	switch {
	case errors.Is(out.Err, cairn.ErrSkipped), errors.Is(out.Err, cairn.ErrReplaced):
		m.leftOut.Inc()
		return
	case out.Err != nil:
		op.failures.Inc()
	default:
		op.seconds.Observe(out.Time.Seconds())
		op.bytes.Add(float64(out.Bytes))
		m.succeeded(out)
	}
	if out.Op == cairn.OpSave {
		m.stall.Observe(out.Stall.Seconds())
	}
}

// succeeded notes when the last save and the last upload succeeded.
func (m *Metrics) succeeded(out *cairn.Outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch out.Op {
	case cairn.OpSave:
		m.saved = time.Now()
		if out.Step != nil {
			m.step = new(*out.Step)
		}
	case cairn.OpUpload:
		m.uploaded = time.Now()
	}
}

// collectors are the metrics that keep their own values.
func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.save.seconds, m.save.bytes, m.save.failures, m.load.seconds, m.load.bytes, m.load.failures,
		m.upload.seconds, m.upload.bytes, m.upload.failures, m.stall, m.leftOut, m.phase, m.requests, m.retries,
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
	ch <- stepDesc
	ch <- savedDesc
	ch <- uploadedDesc
	if m.stager != nil {
		ch <- usedDesc
		ch <- peakDesc
		ch <- ceilingDesc
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	m.mu.Lock()
	step, saved, uploaded := m.step, m.saved, m.uploaded
	m.mu.Unlock()
	if step != nil {
		gauge(stepDesc, float64(*step))
	}
	if !saved.IsZero() {
		gauge(savedDesc, float64(saved.UnixMilli())/1e3)
	}
	if !uploaded.IsZero() {
		gauge(uploadedDesc, float64(uploaded.UnixMilli())/1e3)
	}
	if m.stager == nil {
		return
	}
	u := m.stager.Usage()
	gauge(usedDesc, float64(u.Used))
	gauge(peakDesc, float64(u.Peak))
	gauge(ceilingDesc, float64(u.Ceiling))
}
