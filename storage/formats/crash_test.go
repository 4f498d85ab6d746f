package formats_test

import (
	"context"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/safetensors"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

// crashes are all ways to publish a checkpoint, by name.
var crashes = map[string]*storagetest.Crash{
	"native":                crash(native.Format{}, native.Files(), storagetest.Options{}),
	"torchdcp":              crash(torchdcp.Format{}, torchdcp.Files(), storagetest.Options{}),
	"torchdcp, many files":  crash(torchdcp.Format{FilePerTensor: true}, torchdcp.Files(), storagetest.Options{}),
	"hyper":                 crash(hyper.Format{}, hyper.Files(), storagetest.Options{DTypes: safeDTypes()}),
	"hyper, old":            crash(hyper.Format{Old: true}, hyper.Files(), storagetest.Options{DTypes: safeDTypes()}),
	"hf, several ranks":     crash(hf.Format{}, hf.Files(), tensors()),
	"hf, one file":          byOneRank(crash(hf.Format{}, hf.Files(), tensors())),
	"hf, an index":          byOneRank(crash(hf.Format{MaxShardBytes: 40}, hf.Files(), tensors())),
	"hf, distributed":       byOneRank(crash(hf.Format{Distributed: true, MaxShardBytes: 40}, hf.Files(), tensors())),
	"torch":                 byOneRank(crash(torchfile.Format{File: "model.pt"}, nil, storagetest.Options{})),
	"torch, in a subfolder": byOneRank(crash(torchfile.Format{File: "a/model.pt"}, nil, storagetest.Options{})),
}

func crash(f storage.Format, files *commit.Format, o storagetest.Options) *storagetest.Crash {
	c := &storagetest.Crash{Setup: storagetest.Setup{Format: f}, Options: o}
	if files != nil {
		c.Sweep = func(ctx context.Context, s blob.Store) error {
			_, err := commit.Sweep(ctx, s, files, -1, nil)
			return err
		}
	}
	if f.Name() == "native" {
		c.Unlisted = []string{"cairn.json"}
	}
	return c
}

func byOneRank(c *storagetest.Crash) *storagetest.Crash {
	c.OneRank = true
	return c
}

// tensors are the options of a format that holds only the tensors of safetensors.
func tensors() storagetest.Options { return storagetest.Options{DTypes: safeDTypes(), NoValues: true} }

// safeDTypes returns the element types that every safetensors has: enough for crashes.
func safeDTypes() []tensor.DType {
	var out []tensor.DType
	for _, d := range tensor.DTypes() {
		if _, ok := safetensors.StockName(d); ok {
			out = append(out, d)
		}
	}
	return out
}

// crashesOver returns which saves replace the checkpoint of which others. A save into an
// empty folder replaces "".
func crashesOver() map[string][]string {
	out := map[string][]string{}
	forms := []string{"hf, one file", "hf, an index", "hf, distributed"}
	for name := range crashes {
		out[name] = []string{"", name}
	}
	for _, to := range forms {
		out[to] = append([]string{""}, forms...)
	}
	return out
}

func TestFaultAtEveryStepOfASave(t *testing.T) {
	for to, over := range crashesOver() {
		for _, from := range over {
			t.Run(to+" over "+from, func(t *testing.T) { storagetest.RunFaults(t, crashes[to], crashes[from]) })
		}
	}
}

func TestKillAtEveryStepOfASave(t *testing.T) {
	for to, over := range crashesOver() {
		if to == "torch, in a subfolder" { // the store finds the temporary files at its root only
			continue
		}
		for _, from := range over {
			t.Run(to+" over "+from, func(t *testing.T) {
				t.Parallel()
				storagetest.RunKills(t, crashes, to, from)
			})
		}
	}
}

func TestOneOfTwoSavesWins(t *testing.T) {
	for _, name := range []string{"native", "torchdcp", "hyper", "hf, several ranks", "hf, one file", "hf, an index", "torch"} {
		t.Run(name, func(t *testing.T) { storagetest.RunOneWins(t, crashes[name], deep.Rounds(20, 400)) })
	}
}

func TestRacingSavesLeaveOneCheckpoint(t *testing.T) {
	for _, name := range []string{"native", "torchdcp", "hyper", "hf, several ranks", "hf, one file", "hf, an index", "torch"} {
		t.Run(name, func(t *testing.T) { storagetest.RunRaces(t, crashes[name]) })
	}
}
