package protocol

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
)

// RankVerify is one rank's part in the verification of a checkpoint.
type RankVerify struct {
	// Group are the ranks that verify it together. Nil: this process verifies it alone.
	Group      group.Group
	Checkpoint storage.Checkpoint
	// Planned, if not nil, receives the bytes that this rank is going to read, before it
	// reads the first, and Progress the bytes that it has read since the last call.
	Planned, Progress func(bytes int64)
}

// Verify verifies a checkpoint. All ranks of the group call it. The ranks divide the files
// by their bytes, and every rank returns the same report. The error means that the check
// could not be made, as of storage.Checkpoint.Verify.
func Verify(ctx context.Context, v RankVerify) (*storage.VerifyReport, error) {
	c, parts := v.Checkpoint, storage.PartVerifier(nil)
	if v.Planned == nil {
		v.Planned = func(int64) {}
	}
	if p, ok := c.(storage.PartVerifier); ok && v.Group != nil && v.Group.Size() > 1 {
		parts = p
	}
	if parts == nil && (v.Group == nil || v.Group.Size() == 1) {
		v.Planned(c.TotalBytes())
		return c.Verify(ctx, v.Progress)
	}
	if err := SameCheckpoint(ctx, v.Group, c); err != nil {
		return nil, err
	}
	mine, bytes := v.divide(parts != nil)
	v.Planned(bytes)
	return group.Decide(ctx, group.StopEarly(v.Group), "verify", group.JSON[*storage.VerifyReport](), group.JSON[*storage.VerifyReport](),
		func(ctx context.Context) (*storage.VerifyReport, error) {
			first := v.Group.Rank() == 0
			switch {
			case parts != nil:
				return parts.VerifyPart(ctx, func(file string) bool { return mine[file] }, first, v.Progress)
			case first:
				return c.Verify(ctx, v.Progress)
			}
			return &storage.VerifyReport{}, nil
		},
		func(ctx context.Context, all []*storage.VerifyReport) (*storage.VerifyReport, error) {
			rep := storage.JoinReports(all)
			if parts == nil {
				return rep, nil
			}
			return rep, storage.VerifyCopies(ctx, c, rep)
		})
}

// divide returns the files that this rank verifies, and their bytes. Without parts, rank 0
// verifies all of them.
func (v *RankVerify) divide(parts bool) (mine map[string]bool, bytes int64) {
	files := v.Checkpoint.Files()
	sizes := make([]int64, len(files))
	for i, f := range files {
		sizes[i] = f.Size
	}
	ranks := 1
	if parts {
		ranks = v.Group.Size()
	}
	mine = map[string]bool{}
	for i, rank := range work.Divide(sizes, ranks) {
		if rank == v.Group.Rank() {
			mine[files[i].Name] = true
			bytes += sizes[i]
		}
	}
	return mine, bytes
}

// SameCheckpoint returns an error that wraps group.ErrDiffers, and names the ranks that see
// another checkpoint than rank 0. All ranks of g call it.
func SameCheckpoint(ctx context.Context, g group.Group, c storage.Checkpoint) error {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", c.Storage().SaveID)
	for _, f := range c.Files() {
		fmt.Fprintf(h, "%q %d %d\n", f.Name, f.Size, f.CRC32C)
	}
	return group.Agree(ctx, g, "compare", h.Sum(nil), func([]byte) error {
		return fmt.Errorf("%w: it sees another checkpoint than rank 0", group.ErrDiffers)
	})
}
