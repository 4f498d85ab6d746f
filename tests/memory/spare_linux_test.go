package memory

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// inodes returns the files of a step on a host whose names end with .safetensors.
func inodes(t *testing.T, root ram.Root, step int64) map[uint64]string {
	t.Helper()
	out := map[uint64]string{}
	dir := filepath.Join(must.Get(root.Folder("llama"))(t), run.FolderName(step))
	for _, e := range must.Get(os.ReadDir(dir))(t) {
		if strings.HasSuffix(e.Name(), ".safetensors") {
			out[must.Get(e.Info())(t).Sys().(*syscall.Stat_t).Ino] = e.Name()
		}
	}
	return out
}

// From its third save on, a job writes its files and the copies of other hosts' files into the
// memory of the checkpoint that it has removed last. A job that ends keeps no memory but the
// checkpoint.
func TestMemoryIsUsedAgain(t *testing.T) {
	hosts := job{newHost(t), newHost(t), newHost(t)}
	s := jobtest.NewTrained(t, 1)
	first := make([]map[uint64]string, len(hosts))
	hosts.run(t, func(ctx context.Context, g group.Group, m *memory.Job, store blob.Store) error {
		for step := int64(1); step <= 3; step++ {
			if _, err := saveStep(ctx, t, g, m, store, s, step); err != nil {
				return err
			}
			host := g.Rank()
			switch step {
			case 1:
				if first[host] = inodes(t, hosts[host], 1); len(first[host]) == 0 {
					t.Errorf("host %d has no files of the first step", host)
				}
			case 3:
				for inode, name := range inodes(t, hosts[host], 3) {
					if first[host][inode] == "" {
						t.Errorf("host %d: %s is a new file; want a file of the first step", host, name)
					}
				}
			}
			err := group.Each(ctx, g, "remove", func(ctx context.Context) error {
				if g.Rank() != 0 || step == 1 {
					return nil
				}
				for o, err := range store.List(ctx, run.FolderName(step-1)+"/") {
					if err != nil {
						return err
					}
					if err := store.Remove(ctx, o.Name); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	for i, root := range hosts {
		folder := must.Get(root.Folder("llama"))(t)
		must.Do(t, filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if in := filepath.Dir(path); err == nil && !d.IsDir() && in != filepath.Join(folder, run.FolderName(3)) {
				t.Errorf("host %d has %s after the job; want files of the last step only", i, path)
			}
			return err
		}))
	}
	hosts.load(t, s, 3)
}
