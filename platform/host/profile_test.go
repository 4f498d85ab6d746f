package host_test

import (
	"bytes"
	"runtime/pprof"
	"runtime/trace"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/platform"
	"github.com/cairn-ckpt/cairn/platform/host"
)

func TestRegionsAreInTheTrace(t *testing.T) {
	var b bytes.Buffer
	must.Do(t, trace.Start(&b))
	ctx, end := platform.Region(t.Context(), host.New(nil), "outer-region")
	_, endInner := platform.Region(ctx, host.New(nil), "inner-region")
	endInner()
	end()
	trace.Stop()
	for _, want := range []string{"outer-region", "inner-region"} {
		if !bytes.Contains(b.Bytes(), []byte(want)) {
			t.Errorf("the trace has no %q", want)
		}
	}
}

func TestRegionsLabelProfiles(t *testing.T) {
	ctx, end := host.New(nil).Region(t.Context(), "forward")
	if got, ok := pprof.Label(ctx, host.RegionLabel); !ok || got != "forward" {
		t.Errorf("label inside = %q, %v; want forward", got, ok)
	}
	inside := goroutineLabels(t)
	end()
	if after := goroutineLabels(t); !strings.Contains(inside, "forward") || strings.Contains(after, "forward") {
		t.Errorf("labels of goroutines: %q inside, %q after; want forward inside alone", inside, after)
	}
}

// goroutineLabels returns the labels in the profile of goroutines.
func goroutineLabels(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	must.Do(t, pprof.Lookup("goroutine").WriteTo(&b, 1))
	var out []string
	for line := range strings.Lines(b.String()) {
		if strings.HasPrefix(line, "# labels:") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}
