package metrics_test

import (
	"errors"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/metrics"
	"github.com/cairn-ckpt/cairn/tensor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// job is a rank with metrics.
type job struct {
	*testing.T
	*metrics.Metrics
	stager *cairn.Stager
	ended  int
}

func newJob(t *testing.T) *job {
	t.Helper()
	s := must.Get(cairn.NewStager(&cairn.StagerOptions{Ceiling: 1 << 20}))(t)
	t.Cleanup(func() {
		if err := s.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return &job{T: t, Metrics: metrics.New(s), stager: s}
}

func (j *job) observer() *cairn.Observer {
	return j.Observer(&cairn.Observer{Ended: func(*cairn.Outcome) { j.ended++ }})
}

func (j *job) state() cairn.State {
	x, err := tensor.New(tensor.Float32, []int64{1000})
	if err != nil {
		j.Fatal(err)
	}
	return cairn.State{"w": x}
}

func (j *job) save(s blob.Store, step int64) error {
	_, err := cairn.Save(j.Context(), s, j.state(), &cairn.SaveOptions{Step: &step, Observer: j.observer()})
	return err
}

// gather returns the values of counters and gauges, and the counts of histograms.
func (j *job) gather() map[string]float64 {
	j.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(j.Metrics); err != nil {
		j.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		j.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			out[name] = value(m)
		}
	}
	return out
}

func value(m *dto.Metric) float64 {
	switch {
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	case m.Summary != nil:
		return float64(m.Summary.GetSampleCount())
	case m.Counter != nil:
		return m.Counter.GetValue()
	}
	return m.Gauge.GetValue()
}

func TestMetricsCountSavesAndLoads(t *testing.T) {
	j := newJob(t)
	store := new(mem.Store)
	must.Do(t, j.save(store, 7))
	if _, err := cairn.Load(t.Context(), store, j.state(), &cairn.LoadOptions{Observer: j.observer()}); err != nil {
		t.Fatal(err)
	}
	p, err := cairn.SaveAsync(t.Context(), store, j.state(), &cairn.AsyncOptions{
		SaveOptions: cairn.SaveOptions{Observer: j.observer()}, Stager: j.stager,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := j.save(fault.New(new(mem.Store), fault.CrashAt(1)), 8); err == nil {
		t.Fatal("a save to a store that fails returned no error")
	}
	if _, err := cairn.Load(t.Context(), new(mem.Store), j.state(), &cairn.LoadOptions{Observer: j.observer()}); !errors.Is(err, cairn.ErrNotFound) {
		t.Fatalf("Load = %v; want ErrNotFound", err)
	}
	if j.ended != 5 {
		t.Errorf("the Observer that follows was called %d times; want 5", j.ended)
	}
	got := j.gather()
	if b := got["cairn_save_bytes_total"]; b < 2*4000 {
		t.Errorf("cairn_save_bytes_total is %v; want at least 8000", b)
	}
	if p := got["cairn_stage_peak_bytes"]; p < 4000 {
		t.Errorf("cairn_stage_peak_bytes is %v; want at least 4000", p)
	}
	delete(got, "cairn_save_bytes_total")
	if at := got["cairn_save_last_success_timestamp_seconds"]; math.Abs(float64(time.Now().Unix())-at) > 600 {
		t.Errorf("cairn_save_last_success_timestamp_seconds is %v", at)
	}
	delete(got, "cairn_stage_peak_bytes")
	delete(got, "cairn_save_last_success_timestamp_seconds")
	want := map[string]float64{
		"cairn_save_seconds": 2, "cairn_save_failures_total": 1, "cairn_save_left_out_total": 0,
		"cairn_save_stall_seconds": 3, "cairn_save_last_step": 7,
		"cairn_load_seconds": 1, "cairn_load_bytes_total": 4000, "cairn_load_failures_total": 1,
		"cairn_upload_seconds": 0, "cairn_upload_bytes_total": 0, "cairn_upload_failures_total": 0,
		"cairn_stage_used_bytes": 0, "cairn_stage_ceiling_bytes": 1 << 20,
		"cairn_phase_seconds save stage": 1, "cairn_phase_seconds save plan": got["cairn_phase_seconds save plan"],
		"cairn_phase_seconds save global-plan": got["cairn_phase_seconds save global-plan"], "cairn_phase_seconds load global-plan": 1,
		"cairn_phase_seconds save write": 2, "cairn_phase_seconds save commit": 2,
		"cairn_phase_seconds load plan": 1, "cairn_phase_seconds load read": 1,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error("metrics differ (-want +got):\n" + d)
	}
}

func TestSavesThatAreLeftOutAreNoFailures(t *testing.T) {
	j := newJob(t)
	o := j.Observer(nil)
	for _, err := range []error{cairn.ErrSkipped, cairn.ErrReplaced} {
		o.Ended(&cairn.Outcome{Op: cairn.OpSave, Err: err})
	}
	got := j.gather()
	if got["cairn_save_left_out_total"] != 2 || got["cairn_save_failures_total"] != 0 || got["cairn_save_stall_seconds"] != 0 {
		t.Errorf("metrics are %v; want 2 left out, no failure, no stall", got)
	}
}

// Unknown metrics are absent, and not zero.
func TestMetricsBeforeTheFirstSave(t *testing.T) {
	j := newJob(t)
	if err := j.save(fault.New(new(mem.Store), fault.CrashAt(1)), 8); err == nil {
		t.Fatal("a save to a store that fails returned no error")
	}
	got := j.gather()
	for _, name := range []string{"cairn_save_last_step", "cairn_save_last_success_timestamp_seconds", "cairn_upload_last_success_timestamp_seconds"} {
		if v, ok := got[name]; ok {
			t.Errorf("%s is %v before the first success", name, v)
		}
	}
	if got["cairn_save_failures_total"] != 1 {
		t.Errorf("metrics are %v; want a failure", got)
	}
}

func TestMetricsCountUploads(t *testing.T) {
	j := newJob(t)
	passed := 0
	o := j.Observer(&cairn.Observer{Uploaded: func(*cairn.Outcome) { passed++ }})
	o.Uploaded(&cairn.Outcome{Op: cairn.OpUpload, Bytes: 100, Time: time.Second, Traffic: &blob.Traffic{Requests: 7, Retries: 2}})
	o.Uploaded(&cairn.Outcome{Op: cairn.OpUpload, Err: errors.New("no answer")})
	o.Ended(&cairn.Outcome{Op: cairn.OpSave, Traffic: &blob.Traffic{Requests: 1}})
	got := j.gather()
	for name, want := range map[string]float64{
		"cairn_upload_seconds": 1, "cairn_upload_bytes_total": 100, "cairn_upload_failures_total": 1,
		"cairn_requests_total upload": 7, "cairn_retries_total upload": 2, "cairn_requests_total save": 1, "cairn_retries_total save": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v; want %v", name, v, want)
		}
	}
	if _, ok := got["cairn_upload_last_success_timestamp_seconds"]; !ok || passed != 2 {
		t.Errorf("%d uploads were passed on, the time of the last success is there: %v; want 2, true", passed, ok)
	}
}

// A rank has few series, because there are many ranks.
func TestSeriesOfARank(t *testing.T) {
	j := newJob(t)
	o := j.Observer(nil)
	for op, phases := range map[string][]string{
		cairn.OpSave: {meta.PhaseStage, meta.PhasePlan, meta.PhaseGlobalPlan, meta.PhaseWrite, meta.PhaseCommit},
		cairn.OpLoad: {meta.PhasePlan, meta.PhaseGlobalPlan, meta.PhaseRead}, cairn.OpUpload: nil,
	} {
		out := &cairn.Outcome{Op: op, Step: new(int64(7)), Traffic: new(blob.Traffic)}
		for _, name := range phases {
			out.Phases = append(out.Phases, meta.Phase{Name: name})
		}
		o.Ended(out)
	}
	if n := j.series(); n > 70 {
		t.Errorf("a rank has %d series; want at most 70", n)
	}
}

// series returns the number of time series that Prometheus stores.
func (j *job) series() int {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(j.Metrics)
	families, err := r.Gather()
	if err != nil {
		j.Fatal(err)
	}
	n := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch {
			case m.Histogram != nil:
				n += len(m.Histogram.GetBucket()) + 3 // +Inf, sum, count
			case m.Summary != nil:
				n += 2
			default:
				n++
			}
		}
	}
	return n
}

func TestMetricsFollowTheConventions(t *testing.T) {
	j := newJob(t)
	must.Do(t, j.save(new(mem.Store), 1))
	problems, err := testutil.CollectAndLint(j.Metrics)
	if err != nil || len(problems) > 0 {
		t.Errorf("problems: %v, %v", problems, err)
	}
}

func TestMetricsWithoutStagerHaveNoStagingMemory(t *testing.T) {
	j := &job{T: t, Metrics: metrics.New(nil)}
	got := j.gather()
	for name := range maps.Keys(got) {
		if slices.Contains([]string{"cairn_stage_used_bytes", "cairn_stage_peak_bytes", "cairn_stage_ceiling_bytes"}, name) {
			t.Errorf("there is %s", name)
		}
	}
}
