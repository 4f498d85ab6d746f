package native

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

func sampleTimeline() meta.Timeline {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	return meta.Timeline{
		{
			{Name: "stage", Start: 0, End: ms(120), Bytes: 1 << 30}, {Name: "plan", Start: ms(120), End: ms(125)},
			{Name: "write", Start: ms(130), End: ms(1130), Bytes: 1 << 30}, {Name: "commit", Start: ms(2500), End: ms(2512)},
		},
		{{Name: "plan", Start: ms(121), End: ms(122)}, {Name: "write", Start: ms(130), End: ms(2490), Bytes: 1 << 30}},
	}
}

func recordWithTimeline() *record {
	r := sampleRecord()
	r.Timeline = sampleTimeline()
	return r
}

func TestRecordKeepsTheTimeline(t *testing.T) {
	b := must.Get(encodeRecord(recordWithTimeline()))(t)
	want := golden(t, "record-v1-timeline.json", b)
	if d := cmp.Diff(string(want), string(b)); d != "" {
		t.Errorf("encodeRecord (-want +got):\n%s", d)
	}
	got := must.Get(decodeRecord(want))(t)
	if d := cmp.Diff(recordWithTimeline(), got, sameRecord); d != "" {
		t.Errorf("decodeRecord (-want +got):\n%s", d)
	}
}

func TestCheckpointReturnsTheTimeline(t *testing.T) {
	s := new(mem.Store)
	md := &meta.Metadata{Storage: meta.Storage{SaveID: "s", WorldSize: 2, Timeline: sampleTimeline()}}
	must.Do(t, Commit(t.Context(), s, md, nil))
	c := must.Get(openCheckpoint(t.Context(), s, readRecord, nil))(t)
	defer c.Close()
	if d := cmp.Diff(sampleTimeline(), c.Storage().Timeline); d != "" {
		t.Errorf("Storage().Timeline (-want +got):\n%s", d)
	}
}

// A timeline that cannot be recorded does not make a save fail.
func TestTimelineThatMakesNoSenseIsLeftOut(t *testing.T) {
	phase := func(change func(p *meta.Phase)) meta.Timeline {
		p := meta.Phase{Name: "write", End: time.Second}
		change(&p)
		return meta.Timeline{{p}}
	}
	many := make([]meta.Phase, meta.MaxPhases+1)
	for i := range many {
		many[i].Name = "write"
	}
	long := make([]meta.Phase, meta.MaxPhases)
	for i := range long {
		long[i] = meta.Phase{Name: "write", Start: meta.MaxPhaseTime, End: meta.MaxPhaseTime, Bytes: 1 << 62}
	}
	large := make(meta.Timeline, 20_000)
	for i := range large {
		large[i] = long
	}
	for name, tl := range map[string]meta.Timeline{
		"no name":               phase(func(p *meta.Phase) { p.Name = "" }),
		"a name in capitals":    phase(func(p *meta.Phase) { p.Name = "Write" }),
		"a long name":           phase(func(p *meta.Phase) { p.Name = strings.Repeat("w", meta.MaxPhaseName+1) }),
		"a negative start":      phase(func(p *meta.Phase) { p.Start = -1 }),
		"an end before a start": phase(func(p *meta.Phase) { p.End = -1 }),
		"a late end":            phase(func(p *meta.Phase) { p.End = meta.MaxPhaseTime + 1 }),
		"negative bytes":        phase(func(p *meta.Phase) { p.Bytes = -1 }),
		"many phases":           {many},
		"more ranks than ranks": {{}, {}, {}},
		"a large one":           large,
	} {
		t.Run(name, func(t *testing.T) {
			r := sampleRecord()
			if name == "a large one" {
				r.WorldSize = len(large)
			}
			r.Timeline = tl
			b := must.Get(encodeRecord(r))(t)
			if got, err := decodeRecord(b); err != nil || got.Timeline != nil {
				t.Errorf("decodeRecord = %v, %v; want no timeline", got.Timeline, err)
			}
		})
	}
}

// The record has a limit, and its other fields are needed.
func TestTimelineIsLeftOutOfALargeRecord(t *testing.T) {
	want := must.Get(encodeRecord(sampleRecord()))(t)
	full := must.Get(encodeRecord(recordWithTimeline()))(t)
	for limit, want := range map[int][]byte{len(full): full, len(full) - 1: want, len(want): want} {
		if got, err := encodeWithin(recordWithTimeline(), limit); err != nil || !bytes.Equal(got, want) {
			t.Errorf("encodeWithin(%d) = %s, %v; want %s", limit, got, err, want)
		}
	}
}

// hostileTimelines are members of records that no writer makes.
var hostileTimelines = map[string]struct{ text, want string }{
	"null":                    {`null`, "timeline: not a JSON object"},
	"a list":                  {`[]`, "timeline: not a JSON object"},
	"no phases":               {`{"ranks": [[]]}`, "phases: missing"},
	"no ranks":                {`{"phases": []}`, "ranks: missing"},
	"phases of null":          {`{"phases": null, "ranks": [[]]}`, "phases: null"},
	"ranks of null":           {`{"phases": [], "ranks": null}`, "ranks: null"},
	"a rank of null":          {`{"phases": [], "ranks": [null]}`, "ranks[0]"},
	"ranks twice":             {`{"phases": [], "ranks": [[]], "ranks": [[]]}`, `"ranks" twice`},
	"an empty list of ranks":  {`{"phases": [], "ranks": []}`, "ranks: 0"},
	"more ranks than ranks":   {`{"phases": [], "ranks": [[], []]}`, "ranks: 2"},
	"half a phase":            {`{"phases": ["a"], "ranks": [[0, 1, 2]]}`, "3 numbers"},
	"a phase that is unknown": {`{"phases": ["a"], "ranks": [[1, 1, 2, 3]]}`, "phase 1 of 1"},
	"a negative phase":        {`{"phases": ["a"], "ranks": [[-1, 1, 2, 3]]}`, "phase -1 of 1"},
	"a negative start":        {`{"phases": ["a"], "ranks": [[0, -1, 2, 3]]}`, "out of range"},
	"a negative length":       {`{"phases": ["a"], "ranks": [[0, 1, -2, 3]]}`, "out of range"},
	"negative bytes":          {`{"phases": ["a"], "ranks": [[0, 1, 2, -3]]}`, "-3 bytes"},
	"a start beyond time":     {`{"phases": ["a"], "ranks": [[0, 9223372036854775807, 0, 0]]}`, "out of range"},
	"an end beyond time":      {`{"phases": ["a"], "ranks": [[0, 1125899906842624, 1125899906842624, 0]]}`, "invalid timeline"},
	"a start above an int64":  {`{"phases": ["a"], "ranks": [[0, 9223372036854775808, 0, 0]]}`, "ranks"},
	"a start of a fraction":   {`{"phases": ["a"], "ranks": [[0, 1.5, 0, 0]]}`, "ranks"},
	"a name in capitals":      {`{"phases": ["A"], "ranks": [[]]}`, `"A" is not the name of a phase`},
	"a name of null":          {`{"phases": [null], "ranks": [[]]}`, `"" is not the name of a phase`},
	"many names":              {`{"phases": [` + strings.Repeat(`"a",`, meta.MaxPhases) + `"a"], "ranks": [[]]}`, "17 names"},
	"many phases":             {`{"phases": ["a"], "ranks": [[` + strings.Repeat(`0,0,0,0,`, meta.MaxPhases) + `0,0,0,0]]}`, "68 numbers"},
	"far too much":            {`{"phases": [], "ranks": [[]], "x": "` + strings.Repeat("x", maxTimelineBytes) + `"}`, "bytes; at most"},
}

func TestHostileTimelinesAreRefused(t *testing.T) {
	for name, tc := range hostileTimelines {
		t.Run(name, func(t *testing.T) {
			_, err := decodeRecord(sealRecord(recordWith("", "", `"timeline": `+tc.text)))
			if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), "timeline") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("decodeRecord = %v; want ErrCorrupt with %q", err, tc.want)
			}
		})
	}
}

// Later programs may add fields.
func TestTimelineIgnoresUnknownFields(t *testing.T) {
	r := must.Get(decodeRecord(sealRecord(recordWith("", "", `"timeline": {"phases": ["a"], "ranks": [[0, 1, 2, 3]], "new": 1}`))))(t)
	want := fmt.Sprint(meta.Timeline{{{Name: "a", Start: time.Microsecond, End: 3 * time.Microsecond, Bytes: 3}}})
	if got := fmt.Sprint(r.Timeline); got != want {
		t.Errorf("the timeline is %s; want %s", got, want)
	}
}
