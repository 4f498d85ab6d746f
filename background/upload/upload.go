// Package upload keeps checkpoints in two stores: a local one, to which saves go first, and a
// remote one, to which they are uploaded afterwards. It also bounds the bytes of the local
// one, which is then a folder. It does not depend on how states are staged and saves are
// run. docs/design/0021-tiers.md describes it.
package upload

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/transfer"
)

// Report describes an upload that succeeded.
type Report struct {
	SaveID string `json:"save_id"`
	// Bytes and Files count the files of all ranks, RankBytes the files that this rank has
	// uploaded.
	Bytes     int64         `json:"bytes"`
	RankBytes int64         `json:"local_bytes"`
	Files     int           `json:"files"`
	Time      time.Duration `json:"upload_ns"`
	// Direct means that there was no room in the local store: the save itself went to
	// the remote one.
	Direct bool `json:"direct,omitempty"`
	// Traffic counts the requests of this rank to the remote store, including other
	// work in the same blob.Store at the same time. Nil: the store does not count its requests.
	Traffic *blob.Traffic `json:"traffic,omitempty"`
}

// Pair is a checkpoint in both stores.
type Pair struct {
	Local, Remote blob.Store
	// Overwrite allows an upload to replace the checkpoint that is in Remote.
	Overwrite bool
	// Only is transfer.Options.Only.
	Only []string
	// Memory bounds the buffers of an upload. Zero: the default of package transfer.
	Memory int64
}

// totals counts the bytes and files that all ranks have uploaded.
type totals struct {
	Bytes int64 `json:"bytes"`
	Files int   `json:"files"`
}

// Upload copies the files that this rank has saved to the remote store. All ranks of g
// call it, and it fails on all of them or on no rank. saved is the error of the save on
// this rank: no rank uploads anything unless it is nil on all ranks. Rank 0 has saved the
// record. The checkpoint appears in the remote store completely or not at all. After a
// failure, files that are complete stay there, and a later copy uses them.
func (p *Pair) Upload(ctx context.Context, g group.Group, s transfer.Saved, saved error) (*Report, error) {
	start, since := time.Now(), blob.Since(p.Remote)
	var parts *transfer.Parts
	defer func() {
		if parts != nil {
			parts.Close()
		}
	}()

	// Rank 0 locks the remote folder before any rank writes to it, so that 'cairn clean'
	// recognises the files of dead ranks.
	err := group.Each(ctx, group.StopEarly(g), "begin upload", func(ctx context.Context) (err error) {
		if saved != nil {
			return fmt.Errorf("there is nothing to upload: %w", saved)
		}
		parts, err = transfer.BeginParts(ctx, p.Local, p.Remote, s, &transfer.Options{Overwrite: p.Overwrite, Only: p.Only, Memory: p.Memory})
		return err
	})
	if err != nil {
		return nil, err
	}

	var data []storage.File // of all ranks, on rank 0
	_, err = group.Decide(ctx, group.StopEarly(g), "upload", group.JSON[[]storage.File](), group.Bytes{},
		func(ctx context.Context) ([]storage.File, error) { return s.Files, parts.Copy(ctx) },
		func(_ context.Context, all [][]storage.File) ([]byte, error) {
			data = slices.Concat(all...)
			return nil, nil
		})
	if err != nil {
		return nil, err
	}

	// A rank whose context ends still learns whether the copy was published.
	sum, err := group.Broadcast(context.WithoutCancel(ctx), g, "publish", 0, group.JSON[totals](), func(context.Context) (totals, error) {
		if err := group.ContextError(ctx); err != nil {
			return totals{}, err
		}
		out := totals{Files: len(data)}
		for _, f := range data {
			out.Bytes += f.Size
		}
		return out, parts.Publish(ctx, data)
	})
	if err != nil {
		return nil, err
	}

	return &Report{
		SaveID: s.SaveID, Bytes: sum.Bytes, RankBytes: parts.Report().Bytes, Files: sum.Files, Time: time.Since(start), Traffic: since(),
	}, nil
}

// Open returns the remote store at an address and the run that it belongs to, which is nil
// if the address has no folder above it. The checkpoints of a run in object storage share
// a client. open opens an address.
func Open(open func(address string) (blob.Store, error), address string) (at, run blob.Store, err error) {
	above, name := blob.SplitAddress(address)
	if above == "" || name == "" || blob.CheckName(name) != nil {
		at, err = open(address)
		return at, nil, err
	}
	if blob.Scheme(address) == "file" {
		if run, err = open(above); err == nil {
			at, err = open(address)
		}
		return at, run, err
	}
	// With a slash at its end, it takes no request to open, so saves do not wait for a store
	// that does not answer.
	if run, err = open(blob.JoinAddress(above, "")); err == nil {
		at, err = blob.NewSub(run, name)
	}
	return at, run, err
}
