package examples

import (
	"context"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// saveFromRank saves what this process holds, together with the other ranks of
// its job, which it meets by the environment.
func saveFromRank(ctx context.Context, store blob.Store, state cairn.State) error {
	meeting, cancel := context.WithTimeout(ctx, 5*time.Minute) // for the slowest to come
	defer cancel()
	g, err := tcp.Join(meeting, tcp.Config{Job: "my-training"})
	if err != nil {
		return err
	}
	defer g.Close()
	_, err = cairn.Save(ctx, store, state, &cairn.SaveOptions{Group: g})
	return err
}

func TestSaveFromRank(t *testing.T) {
	for name, value := range map[string]string{
		"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1",
	} {
		t.Setenv(name, value)
	}
	store := new(mem.Store)
	if err := saveFromRank(t.Context(), store, cairn.State{"step": 7}); err != nil {
		t.Fatal(err)
	}
	c, err := cairn.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
