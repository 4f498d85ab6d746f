package examples

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// signing keeps the SHA-256 of each chunk and value in the native format.
type signing struct{ storage.PassWriter }

// WriteData lets the native writer write, and adds to each of its results.
func (s *signing) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	out, err := s.Writer.WriteData(ctx, p, data)
	if err != nil {
		return nil, err
	}
	sums := map[meta.IndexKey][]byte{}
	for i := range p.Items {
		b, err := storage.Contents(ctx, data, &p.Items[i])
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(b)
		sums[p.Items[i].Index().Key()] = sum[:]
	}
	for i := range out.Items {
		out.Items[i].Loc.SetStorageData(sums[out.Items[i].Index.Key()])
	}
	return out, nil
}

// counted counts the items that a load reads.
type counted struct {
	storage.PassReader
	items int
}

func (c *counted) ReadData(ctx context.Context, p *plan.LoadPlan, dst storage.Receiver) (storage.ReadStats, error) {
	c.items += len(p.Items)
	return c.Reader.ReadData(ctx, p, dst)
}

func Example_wrapStorage() {
	ctx := context.Background()
	store := new(mem.Store)
	inner, err := native.Format{}.NewWriter(store, storage.WriteOptions{})
	check(err)
	state := cairn.State{"w": floats([]int64{2}, 1, 2), "lr": 0.5}
	_, err = cairn.Save(ctx, store, state, &cairn.SaveOptions{Writer: &signing{storage.PassWriter{Writer: inner, AddsData: true}}})
	check(err)

	// The checkpoint is one of the native format.
	c, err := cairn.Open(ctx, store)
	check(err)
	defer c.Close()
	md, err := c.Metadata(ctx)
	check(err)
	loc, _ := md.Location(meta.Index{FQN: "w", Offset: []int64{0}})
	fmt.Printf("sha256 of w: %x…\n", loc.StorageData()[:4])

	reader := &counted{PassReader: storage.PassReader{Reader: storage.NewReader(native.Format{}.Open, store, storage.ReadOptions{})}}
	_, err = cairn.Load(ctx, store, state, &cairn.LoadOptions{Reader: reader})
	check(err)
	fmt.Println("items:", reader.items)
	// Output:
	// sha256 of w: b9c80b5a…
	// items: 2
}
