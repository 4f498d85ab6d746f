package launch

import (
	"slices"
	"testing"
	"time"
)

func TestExitString(t *testing.T) {
	for want, e := range map[string]Exit{
		"exited with code 3 at once":        {Code: 3, Seconds: 0.0004},
		"exited with code 3 after 1ms":      {Code: 3, Seconds: 0.001},
		"exited with code 3 after 43ms":     {Code: 3, Seconds: 0.0431},
		"exited with code 3 after 1.2s":     {Code: 3, Seconds: 1.234},
		"was ended by SIGSEGV after 1h2m5s": {Code: 139, Signal: "SIGSEGV", Seconds: 3725.4},
		"was ended by signal 34 after 1m0s": {Code: 162, Signal: "signal 34", Seconds: 60},
		"exited with code 3 after 1m1s":     {Code: 3, Seconds: 60.6},
		"exited with code 0 after 500ms":    {Seconds: 0.5},
		"exited with code 255 after 59.9s":  {Code: 255, Seconds: 59.94},
		"was ended by SIGKILL after 3ms":    {Code: 137, Signal: "SIGKILL", Seconds: 0.003},
	} {
		if got := e.String(); got != want {
			t.Errorf("%+v = %q; want %q", e, got, want)
		}
	}
}

// Of ranks that end at once the cause comes first, however the launcher noticed.
func TestFirstFailureIsTheCause(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	for claim, c := range map[string]struct {
		exits []Exit
		want  int
	}{
		"the one that was killed": {[]Exit{{Rank: 0, Code: 1, at: at(1)}, {Rank: 1, Code: 137, Signal: "SIGKILL", at: at(2)}}, 1},
		"the first":               {[]Exit{{Rank: 0, Code: 1, at: at(2)}, {Rank: 1, Code: 3, at: at(1)}}, 1},
		"not one that gave up":    {[]Exit{{Rank: 0, Code: 134, Signal: "SIGABRT", at: at(2)}, {Rank: 1, Code: 3, at: at(1)}}, 1},
	} {
		slices.SortStableFunc(c.exits, compareCauses)
		if c.exits[0].Rank != c.want {
			t.Errorf("%s: rank %d comes first; want %d", claim, c.exits[0].Rank, c.want)
		}
	}
}
