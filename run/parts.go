package run

import (
	"context"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/storage/formats"
)

// partsAt returns the names of the folders that hold files of a checkpoint in the folder of the
// run itself, as the folders of ranks in torch_checkpointing do. They look like checkpoints
// and are not. If that checkpoint cannot be opened, its parts are unknown.
func (p *Place) partsAt(ctx context.Context) map[string]bool {
	c, at, err := formats.OpenLocated(ctx, p.Store, nil)
	if err != nil {
		return nil
	}
	defer c.Close()
	if at.String() != p.Store.String() { // a file names the newest checkpoint of the run
		return nil
	}
	out := map[string]bool{}
	for _, f := range c.Files() {
		if dir, _, ok := strings.Cut(f.Name, "/"); ok {
			out[dir] = true
		}
	}
	return out
}

// dropParts forgets folders that are parts of another checkpoint, such as the rank folders
// of torch_checkpointing: it sets their results to nil. It looks only if a folder has a
// format in which a file alone can be a checkpoint.
func dropParts(ctx context.Context, places []*Place, dirs []folder, each []*found) {
	alone := func(f *found) bool { return f != nil && (f.format == formats.Torch || f.format == formats.HF) }
	for _, p := range places {
		if !slices.ContainsFunc(each, func(f *found) bool { return alone(f) && f.folder.place == p }) {
			continue
		}
		parts := p.partsAt(ctx)
		for i := range each {
			if dirs[i].place == p && parts[dirs[i].name] {
				each[i] = nil
			}
		}
	}
}
