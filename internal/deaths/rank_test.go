//go:build unix

package deaths

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
	"github.com/cairn-ckpt/cairn/internal/engine/enginetest"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	// size is the number of ranks, in a chain: that between the others is
	// nobody's neighbour alone.
	size = 3
	// timeout is how long a rank may be silent: long enough for a busy machine,
	// and what half of the matrix waits for.
	timeout = 3 * time.Second
	// limit is when a rank that was not noticed is a fault of ours.
	limit = time.Minute
)

// rankVariable is set in processes that are a rank.
const rankVariable = "CAIRN_DEATHS_RANK"

func init() {
	if os.Getenv(rankVariable) != "" {
		serve()
		os.Exit(0)
	}
}

// serve carries orders out, until there are no more.
func serve() {
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var o order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			panic(err)
		}
		if err := out.Encode(carryOut(o)); err != nil {
			panic(err)
		}
	}
}

func carryOut(o order) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	w := new(tcptest.Wires)
	g, err := tcp.Join(ctx, tcp.Config{
		Rendezvous: "file://" + o.Meet, Job: "deaths", Rank: o.Rank, Size: size,
		Secret: []byte("of the matrix"), Timeout: timeout, Arity: 1, Wrap: w.Wrap,
	})
	if err == nil {
		defer g.Close()
		err = act(ctx, g, o, trap{o.At, sync.OnceFunc(func() { goAway(o.How, g, w) })})
	}
	return outcomeOf(err)
}

func outcomeOf(err error) outcome {
	if err == nil {
		return outcome{}
	}
	return outcome{
		Err: err.Error(), Gone: errors.Is(err, group.ErrGone),
		Uncertain: errors.Is(err, storage.ErrUncertain), Late: errors.Is(err, context.DeadlineExceeded),
		Ranks: group.Ranks(err),
	}
}

// goAway ends this rank for the others. It returns where the rank lives on.
func goAway(how string, g *tcp.Group, w *tcptest.Wires) {
	switch how {
	case byKill:
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case byStop:
		syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case byCut:
		w.Cut()
	case byLeave:
		g.Close()
		os.Exit(0)
	}
}

func act(ctx context.Context, g group.Group, o order, t trap) error {
	store, err := file.Open(o.Dir, nil)
	if err != nil {
		return err
	}
	if o.Op == opSave {
		_, err := cairn.Save(ctx, store, stateOf(g.Rank(), newStep, t), &cairn.SaveOptions{
			Group: g, Step: new(int64(newStep)), Planner: &enginetest.SavePlanner{Hook: t.enter},
			Writer: &enginetest.Writer{Writer: storagetest.NewWriter(native.Format{}, store, storage.WriteOptions{}), Hook: t.enter},
		})
		return err
	}
	state := stateOf(g.Rank(), 0, t)
	open := func(ctx context.Context) (storage.Checkpoint, error) { return formats.Open(ctx, store, nil) }
	_, err = cairn.Load(ctx, store, state, &cairn.LoadOptions{
		Group: g, Planner: &enginetest.LoadPlanner{Hook: t.enter, Share: true},
		Reader: &enginetest.Reader{Reader: storage.NewReader(open, storage.ReadOptions{}), Hook: t.enter},
		Share:  o.Op == opShare,
	})
	return err
}

// The steps of the checkpoint that is there and of the one that is to replace it.
const oldStep, newStep = 1, 2

// stateOf returns a rank's part of a state whose numbers tell the step.
func stateOf(rank int, step int64, t trap) cairn.State {
	same := make([]float32, 1000)
	for i := range same {
		same[i] = float32(step)*1000 + float32(i)
	}
	x, err := tensor.Of([]int64{int64(len(same))}, same)
	if err != nil {
		panic(err)
	}
	rows := shard.Placed{Mesh: shard.Mesh{Shape: []int{size}}, Placements: []shard.Placement{shard.Shard(0)}}
	part, err := shard.Empty(rows, tensor.Int64, []int64{size * 50, 20}, rank)
	if err != nil {
		panic(err)
	}
	v, err := tensor.Values[int64](part.Local())
	if err != nil {
		panic(err)
	}
	for i := range v {
		v[i] = step
	}
	return cairn.State{"same": x, "part": part, "counter": &counter{n: step, trap: t}}
}
