package native

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
)

// maxTimelineBytes bounds the timeline in the record: room for more than a hundred
// thousand ranks.
const maxTimelineBytes = 16 << 20

// timelineFields is how many numbers describe a phase: which one it is, its start, its
// duration and its bytes.
const timelineFields = 4

// timelineText returns the timeline of a record as JSON text, with a line for each rank.
// It is empty if there is no timeline, or one that cannot be recorded: that is no reason
// for a save to fail.
func timelineText(t meta.Timeline, worldSize int) string {
	if len(t) == 0 || len(t) > worldSize || t.Check() != nil {
		return ""
	}
	var names []string
	ranks := []byte("[")
	for i, phases := range t {
		if i > 0 {
			ranks = append(ranks, ',')
		}
		ranks = append(ranks, "\n        ["...)
		for j, p := range phases {
			n := slices.Index(names, p.Name)
			if n < 0 {
				n, names = len(names), append(names, p.Name)
			}
			if j > 0 {
				ranks = append(ranks, ", "...)
			}
			ranks = strconv.AppendInt(ranks, int64(n), 10)
			for _, v := range []int64{p.Start.Microseconds(), (p.End - p.Start).Microseconds(), p.Bytes} {
				ranks = strconv.AppendInt(append(ranks, ", "...), v, 10)
			}
		}
		ranks = append(ranks, ']')
		if len(ranks) > maxTimelineBytes/2 {
			return ""
		}
	}
	if len(names) > meta.MaxPhases {
		return ""
	}
	text, _ := json.Marshal(names) // strings can always be marshalled
	return fmt.Sprintf("{\n      \"phases\": %s,\n      \"ranks\": %s\n      ]\n    }", text, ranks)
}

// readTimeline decodes the timeline of a record.
func readTimeline(b []byte, worldSize int) (meta.Timeline, error) {
	if len(b) > maxTimelineBytes {
		return nil, fmt.Errorf("%d bytes; at most %d are possible", len(b), maxTimelineBytes)
	}
	o := parseJSON("timeline", b)
	var names []string
	o.get("phases", &names)
	var ranks [][]int64
	o.get("ranks", &ranks)
	if o.err != nil {
		return nil, o.err
	}
	if len(names) > meta.MaxPhases {
		return nil, fmt.Errorf("phases: %d names; at most %d are possible", len(names), meta.MaxPhases)
	}
	for _, n := range names {
		if err := meta.CheckPhaseName(n); err != nil {
			return nil, fmt.Errorf("phases: %w", err)
		}
	}
	if len(ranks) == 0 || len(ranks) > worldSize {
		return nil, fmt.Errorf("ranks: %d, of a save of %d", len(ranks), worldSize)
	}
	out := make(meta.Timeline, len(ranks))
	for i, list := range ranks {
		var err error
		if out[i], err = readPhases(list, names); err != nil {
			return nil, fmt.Errorf("ranks[%d]: %w", i, err)
		}
	}
	return out, out.Check()
}

// readPhases decodes the phases of one rank.
func readPhases(list []int64, names []string) ([]meta.Phase, error) {
	if list == nil || len(list)%timelineFields != 0 || len(list) > timelineFields*meta.MaxPhases {
		return nil, fmt.Errorf("%d numbers", len(list))
	}
	out := make([]meta.Phase, 0, len(list)/timelineFields)
	for p := range slices.Chunk(list, timelineFields) {
		n, start, length := p[0], p[1], p[2]
		if n < 0 || n >= int64(len(names)) {
			return nil, fmt.Errorf("phase %d of %d", n, len(names))
		}
		const most = int64(meta.MaxPhaseTime / time.Microsecond)
		if start < 0 || length < 0 || start > most || length > most {
			return nil, errors.New("a time out of range")
		}
		at := time.Duration(start) * time.Microsecond
		out = append(out, meta.Phase{Name: names[n], Start: at, End: at + time.Duration(length)*time.Microsecond, Bytes: p[3]})
	}
	return out, nil
}
