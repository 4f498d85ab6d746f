package bench

import (
	"context"
	"encoding/json"
	"io"

	"github.com/cairn-ckpt/cairn/group/tcp"
)

// rankJob is to be one rank of a group of processes, which the environment
// describes.
type rankJob struct {
	// Calls is how many calls the latency is taken of. Zero: throughput it is.
	Calls int `json:",omitempty"`
	// Bytes and Repeat are those of [GroupOptions].
	Bytes  int64 `json:",omitempty"`
	Repeat int   `json:",omitempty"`
}

// run is the process of one rank. Rank 0 prints the figures.
func (j *rankJob) run(ctx context.Context, out io.Writer) error {
	g, err := tcp.Join(ctx, tcp.Config{})
	if err != nil {
		return err
	}
	defer g.Close()
	figures, err := j.measure(ctx, g)
	if err != nil || g.Rank() != 0 {
		return err
	}
	return json.NewEncoder(out).Encode(figures)
}

func (j *rankJob) measure(ctx context.Context, g *tcp.Group) (any, error) {
	if j.Calls > 0 {
		return latency(ctx, g, j.Calls, "processes")
	}
	return throughput(ctx, g, j)
}
