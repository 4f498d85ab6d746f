// Package metrics makes Prometheus metrics of saves and loads. A [Metrics] observes
// through cairn.Observer, so no other package of cairn depends on Prometheus, and this
// one is a module of its own. docs/telemetry.md lists the metrics.
package metrics

import (
	"errors"

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
	save, load operation
	stall      prometheus.Histogram
	leftOut    prometheus.Counter
	step       prometheus.Gauge
	phase      *prometheus.HistogramVec
	stager     *cairn.Stager // nil: none
}

var _ prometheus.Collector = (*Metrics)(nil)

// operation counts saves or loads.
type operation struct {
	seconds         prometheus.Histogram
	bytes, failures prometheus.Counter
}

// buckets are bounds for seconds: 1 ms to about 35 minutes.
var buckets = prometheus.ExponentialBuckets(0.001, 2, 22)

// The use of staging memory is read when it is asked for.
var (
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
	return &Metrics{
		save: operation{
			seconds:  prometheus.NewHistogram(seconds("cairn_save_seconds", "Time from the call of a save until the checkpoint was durable.")),
			bytes:    counter("cairn_save_bytes_total", "Bytes that this rank has written in saves that succeeded."),
			failures: counter("cairn_save_failures_total", "Saves that failed."),
		},
		load: operation{
			seconds:  prometheus.NewHistogram(seconds("cairn_load_seconds", "Time of a load.")),
			bytes:    counter("cairn_load_bytes_total", "Bytes that this rank has loaded in loads that succeeded."),
			failures: counter("cairn_load_failures_total", "Loads that failed."),
		},
		stall:   prometheus.NewHistogram(seconds("cairn_save_stall_seconds", "Time from the call of a save to its return, during which training stood still.")),
		leftOut: counter("cairn_save_left_out_total", "Background saves that were skipped or replaced by a newer one."),
		step: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cairn_save_last_step", Help: "Training step of the newest save that succeeded.",
		}),
		phase: prometheus.NewHistogramVec(
			seconds("cairn_phase_seconds", "Time of a phase of a save or load, without waiting for other ranks."), []string{"op", "phase"}),
		stager: stager,
	}
}

// Observer returns an Observer for the options of saves and loads. It passes everything
// on to next, which may be nil.
func (m *Metrics) Observer(next *cairn.Observer) *cairn.Observer {
	var o cairn.Observer
	if next != nil {
		o = *next
	}
	ended := o.Ended
	o.Ended = func(out *cairn.Outcome) {
		m.observe(out)
		if ended != nil {
			ended(out)
		}
	}
	return &o
}

// observe counts a save or load that is over.
func (m *Metrics) observe(out *cairn.Outcome) {
	op := &m.load
	if out.Op == cairn.OpSave {
		op = &m.save
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
	}
	if out.Op != cairn.OpSave {
		return
	}
	m.stall.Observe(out.Stall.Seconds())
	if out.Err == nil && out.Step != nil {
		m.step.Set(float64(*out.Step))
	}
}

// collectors are the metrics that keep their own values.
func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.save.seconds, m.save.bytes, m.save.failures, m.load.seconds, m.load.bytes, m.load.failures,
		m.stall, m.leftOut, m.step, m.phase,
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
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
	if m.stager == nil {
		return
	}
	u := m.stager.Usage()
	ch <- prometheus.MustNewConstMetric(usedDesc, prometheus.GaugeValue, float64(u.Used))
	ch <- prometheus.MustNewConstMetric(peakDesc, prometheus.GaugeValue, float64(u.Peak))
	ch <- prometheus.MustNewConstMetric(ceilingDesc, prometheus.GaugeValue, float64(u.Ceiling))
}
