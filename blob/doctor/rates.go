package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
)

// rateStreams are the numbers of streams that are measured.
var rateStreams = []int{1, 8, 32}

var rates = check{
	name:    "rates",
	follows: "How long saves and loads take is not known.",
	run: func(ctx context.Context, e *exam) (string, error) {
		data := blob.AlignedBytes(int(partBytes))
		copy(data, pattern(partBytes))
		var texts []string
		for _, n := range rateStreams {
			r, err := e.rate(ctx, n, data)
			if err != nil {
				return "", err
			}
			e.rep.Rates = append(e.rep.Rates, r)
			texts = append(texts, fmt.Sprintf("%d: %.0f MB/s written, %.0f MB/s read", n, r.Write/1e6, r.Read/1e6))
		}
		return "streams " + strings.Join(texts, "; "), nil
	},
}
