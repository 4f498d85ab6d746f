package foreign

import (
	"context"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
)

// Join returns a source of what a and b hold. They have no name and no file in
// common. The checkpoint as a whole is described as a is.
func Join(a, b *Source) *Source {
	md := *a.Metadata
	md.Entries = slices.Concat(a.Metadata.Entries, b.Metadata.Entries)
	slices.SortFunc(md.Entries, func(x, y meta.Entry) int { return strings.Compare(x.FQN, y.FQN) })
	names, files := map[string]bool{}, map[string]bool{}
	for i := range b.Metadata.Entries {
		names[b.Metadata.Entries[i].FQN] = true
	}
	for _, f := range b.Files {
		files[f.Name] = true
	}
	of := func(e *meta.Entry) *Source {
		if names[e.FQN] {
			return b
		}
		return a
	}
	out := *a
	out.Metadata, out.Files = &md, slices.Concat(a.Files, b.Files)
	out.Chunk = func(ctx context.Context, e *meta.Entry, i int) (Chunk, error) { return of(e).Chunk(ctx, e, i) }
	out.Chunks = nil // a and b may have different ways
	out.Value = func(ctx context.Context, e *meta.Entry) (string, []byte, error) { return of(e).Value(ctx, e) }
	out.Check = func(ctx context.Context, file string, problem func(fqn, text string), found func(ChunkID, Chunk)) (int64, error) {
		if files[file] {
			return b.Check(ctx, file, problem, found)
		}
		return a.Check(ctx, file, problem, found)
	}
	return &out
}
