package cli

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/inspect"
)

func TestBarOfARank(t *testing.T) {
	for name, tc := range map[string]struct {
		phases []inspect.RankPhase
		want   string
	}{
		"nothing":                       {nil, "          "},
		"phases and waiting":            {[]inspect.RankPhase{{Name: "plan", Start: 1, End: 2}, {Name: "write", Start: 4, End: 8}}, "·p··wwww  "},
		"the later of two that overlap": {[]inspect.RankPhase{{Name: "stage", Start: 0, End: 6}, {Name: "plan", Start: 1, End: 2}, {Name: "write", Start: 3, End: 9}}, "spswwwwww "},
		"a short phase has a cell":      {[]inspect.RankPhase{{Name: "plan", Start: 0, End: 0.001}}, "p         "},
		"a short phase at the end":      {[]inspect.RankPhase{{Name: "commit", Start: 10, End: 10}}, "·········c"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &chart{seconds: 10, cells: 10}
			if got := c.bar(&output{}, tc.phases); got != tc.want {
				t.Errorf("bar = %q; want %q", got, tc.want)
			}
		})
	}
}

func TestBarOfASaveThatTookNoTime(t *testing.T) {
	c := &chart{cells: 5}
	if got := c.bar(&output{}, []inspect.RankPhase{{Name: "write"}}); got != "w    " {
		t.Errorf("bar = %q; want one cell", got)
	}
}

// On a terminal, the chart has its width and colours.
func TestChartFitsTheTerminal(t *testing.T) {
	v := &timelineOf{Timeline: &inspect.Timeline{Seconds: 10, Phases: []inspect.PhaseTotals{{Name: "write", Ranks: 2, Median: 5, Slowest: 10}}, Ranks: []inspect.RankTimeline{
		{Rank: 0, Busy: 5, Phases: []inspect.RankPhase{{Name: "write", End: 5, Bytes: 1 << 30}}},
		{Rank: 1, Busy: 10, Slow: true, Phases: []inspect.RankPhase{{Name: "write", End: 10, Bytes: 1 << 30}}},
	}}}
	for _, width := range []int{60, 80, 132} {
		var b bytes.Buffer
		printTimeline(&output{out: &b, width: width}, v)
		longest := 0
		for line := range strings.Lines(b.String()) {
			longest = max(longest, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
		}
		if longest != width {
			t.Errorf("on a terminal of %d columns the longest line has %d:\n%s", width, longest, &b)
		}
		if strings.Contains(b.String(), "\x1b") {
			t.Error("there are colours without a terminal that shows them")
		}
	}
	var b bytes.Buffer
	printTimeline(&output{out: &b, width: 80, color: true}, v)
	for _, want := range []string{"\x1b[7;32mwww", "\x1b[31mslow\x1b[0m\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the chart in colour lacks %q:\n%s", want, &b)
		}
	}
}
