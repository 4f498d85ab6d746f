package demo

import (
	"errors"
	"testing"
	"time"
)

func TestCheckSurvivors(t *testing.T) {
	died := time.Unix(1000, 0)
	survivor := func(text string, gone ...int) answer {
		return answer{outcome: &outcome{Error: text, Gone: gone}, ended: died.Add(time.Hour)}
	}
	dead := answer{dying: "write", died: died}
	for claim, c := range map[string]struct {
		last answer
		ok   bool
	}{
		"an error that names the killed rank, however late": {survivor("rank 1 is gone", 1), true},
		"no result":                        {answer{}, false},
		"success":                          {survivor(""), false},
		"an error that names another rank": {survivor("rank 0 is gone", 0), false},
	} {
		k := &Kill{Rank: 1}
		err := k.checkSurvivors([]answer{survivor("rank 1 is gone", 1), dead, c.last})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrWrong) {
			t.Errorf("%s: checkSurvivors = %v; want success %v", claim, err, c.ok)
		}
		if c.ok && (k.Survivors != 2 || k.Known != 3600 || len(k.Errors) != 1) {
			t.Errorf("%s: %+v; want two survivors after an hour", claim, k)
		}
	}
}
