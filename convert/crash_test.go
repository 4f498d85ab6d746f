package convert_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

// crashes are ways to publish a checkpoint through a Place, by name.
var crashes = map[string]*storagetest.Crash{
	"native":                    staged(native.Format{}, "", "cairn.json"),
	"torchdcp":                  staged(torchdcp.Format{}, ""),
	"native, added to a folder": staged(native.Format{}, "notes", "cairn.json", "notes"),
}

// staged returns a way to save through a Place. If other is not empty, the folder of
// the checkpoint has a file of that name.
func staged(f storage.Format, other string, unlisted ...string) *storagetest.Crash {
	c := &storagetest.Crash{Setup: storagetest.Setup{Format: anyFormat{f}}, Unlisted: unlisted}
	c.Stage = func(dir string, step func(), save func(blob.Store) error) error {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		if other != "" {
			if err := os.WriteFile(filepath.Join(dir, other), []byte("mine"), 0o666); err != nil {
				return err
			}
		}
		p := placeAt(dir)
		p.Record = func(name string) bool { return name == "cairn.json" }
		p.SetStep(func(string) error { step(); return nil })
		if err := p.Lock(); err != nil {
			return err
		}
		defer p.Unlock()
		if err := p.Prepare(); err != nil {
			return err
		}
		s, err := file.Open(p.Staging(), &file.Options{NoSync: true})
		if err != nil {
			return err
		}
		if err := save(s); err != nil {
			return err
		}
		return p.Publish()
	}
	return c
}

// anyFormat writes one format and opens all.
type anyFormat struct{ storage.Format }

func (anyFormat) Open(ctx context.Context, s blob.Store) (storage.Checkpoint, error) {
	return formats.Open(ctx, s, nil)
}

func TestKillAtEveryStepOfAPublication(t *testing.T) {
	for _, c := range []struct{ to, from string }{
		{"native", ""}, {"native", "native"}, {"torchdcp", "native"}, {"native", "torchdcp"},
		{"native, added to a folder", ""}, {"native, added to a folder", "native, added to a folder"},
	} {
		t.Run(c.to+" over "+c.from, func(t *testing.T) {
			t.Parallel()
			storagetest.RunKills(t, crashes, c.to, c.from)
		})
	}
}
