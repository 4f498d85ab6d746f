package view_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// optimizerFiles returns the files of testdata/megatron_optimizer.tar.gz by fixture and name.
var optimizerFiles = sync.OnceValues(func() (map[string]map[string][]byte, error) {
	return archived("testdata/megatron_optimizer.tar.gz")
})

// archived returns the files of an archive by fixture and name.
func archived(name string) (map[string]map[string][]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}

	out := map[string]map[string][]byte{}
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		parts := strings.SplitN(path.Clean(h.Name), "/", 3)
		if out[parts[1]] == nil {
			out[parts[1]] = map[string][]byte{}
		}
		if out[parts[1]][parts[2]], err = io.ReadAll(t); err != nil {
			return nil, err
		}
	}
}

// optimizerStore returns the checkpoint of a fixture.
func optimizerStore(t testing.TB, name string) *mem.Store {
	t.Helper()
	s := new(mem.Store)
	for file, b := range must.Get(optimizerFiles())(t)[name] {
		if rest, ok := strings.CutPrefix(file, "input/iter_0000002/"); ok {
			storagetest.Put(t, s, rest, b)
		}
	}
	return s
}

// openOptimizer opens the states of a checkpoint by the names of the weights.
func openOptimizer(t testing.TB, s *mem.Store, set map[string]any) (storage.Checkpoint, error) {
	t.Helper()
	src := must.Get(torchdcp.Format{}.Open(t.Context(), s))(t)
	return view.OpenAs(t.Context(), s, src, view.Options{Recipe: "megatron-optimizer", Set: set})
}

// expectedStates returns the tensors of a file of a fixture.
func expectedStates(t testing.TB, name, file string) plan.State {
	t.Helper()
	s := new(mem.Store)
	storagetest.Put(t, s, "model.safetensors", must.Get(optimizerFiles())(t)[name]["expected/"+file])
	return storagetest.LoadAll(t, must.Get(hf.Format{}.Open(t.Context(), s))(t))
}

// TestMegatronOptimizer compares the states of checkpoints that Megatron wrote with the states
// of the jobs that saved them, bit for bit.
func TestMegatronOptimizer(t *testing.T) {
	all := must.Get(optimizerFiles())(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			c := must.Get(openOptimizer(t, optimizerStore(t, name), nil))(t)
			defer c.Close()
			err := c.(*view.Checkpoint).Check(t.Context())
			if text := all[name]["expected/error.json"]; text != nil {
				checkRefused(t, err, text)
				return
			}
			must.Do(t, err)

			got := storagetest.LoadAll(t, c)
			for n, want := range expectedStates(t, name, "model.safetensors") {
				if !tensor.Equal(got[n].(*tensor.Tensor), want.(*tensor.Tensor)) {
					t.Errorf("the weight %s differs", n)
				}
			}
			states := 0
			for n, want := range expectedStates(t, name, "optimizer.safetensors") {
				at := strings.LastIndexByte(n, '.')
				own := "optimizer.state." + n[at+1:] + "." + n[:at]
				x, ok := got[own].(*tensor.Tensor)
				if !ok || !tensor.Equal(x, want.(*tensor.Tensor)) {
					t.Errorf("%s differs, or is missing", own)
				}
				states++
			}
			for n := range got {
				if strings.HasPrefix(n, "optimizer.state.") {
					states--
				}
				if strings.Contains(n, "optimizer.distributed.") {
					t.Errorf("the result has %q", n)
				}
			}
			if states != 0 {
				t.Errorf("the result has %d states more than expected", -states)
			}
			t.Log(c.Storage().Notes)
		})
	}
}

// checkRefused checks that the error names exactly the weights that have wrong states.
func checkRefused(t *testing.T, err error, text []byte) {
	t.Helper()
	var want struct {
		Names []string `json:"names_found_by_comparing_param_with_weight"`
	}
	must.Do(t, json.Unmarshal(text, &want))
	if !errors.Is(err, view.ErrCheck) {
		t.Fatalf("Check = %v; want %v", err, view.ErrCheck)
	}
	_, list, _ := strings.Cut(err.Error(), "wrong states of ")
	list, right, _ := strings.Cut(list, ", with their moments; right are the states of ")
	slices.Sort(want.Names)
	if got := strings.Split(list, ", "); !slices.Equal(got, want.Names) {
		t.Errorf("wrong states of %q; want %q", got, want.Names)
	}
	if !strings.HasPrefix(right, "embedding.word_embeddings.weight.") {
		t.Errorf("right states: %q", right)
	}
}

// unsummedOptimizer are the files of Megatron without checksums.
var unsummedOptimizer = []string{".metadata"}

// TestDamagedOptimizer flips a bit in files of a checkpoint, cuts them in half and removes them. The states are
// refused, or are the same.
func TestDamagedOptimizer(t *testing.T) {
	for _, fixture := range []string{"dp_moe_tp1pp1ep2", "dp_tp1pp2dp1_tied", "full_tp2pp1dp2", "model_tp2pp1dp2"} {
		t.Run(fixture, func(t *testing.T) {
			t.Parallel()
			s := optimizerStore(t, fixture)
			n, unnoticed := storagetest.RunDamage(t, s, deep.Rounds(60, 100_000), func(ctx context.Context) (storage.Checkpoint, error) {
				src, err := torchdcp.Format{}.Open(ctx, s)
				if err != nil {
					return nil, err
				}
				c, err := view.OpenAs(ctx, s, src, view.Options{Recipe: "megatron-optimizer"})
				if err != nil {
					return nil, err
				}
				return c, c.(*view.Checkpoint).Check(ctx)
			})
			if n < 20 {
				t.Errorf("%d damages; want more", n)
			}
			for _, d := range unnoticed {
				if !slices.Contains(unsummedOptimizer, d.File) {
					t.Errorf("%+v changes the states without an error", d)
				}
			}
		})
	}
}

// spoil changes the last byte of an element of a tensor, and the checksum of its record with it.
func spoil(t *testing.T, s *mem.Store, name string, element int) {
	t.Helper()
	src := must.Get(torchdcp.Format{}.Open(t.Context(), s))(t)
	defer src.Close()
	md := must.Get(src.Metadata(t.Context()))(t)
	e, ok := md.Find(name)
	if !ok {
		t.Fatalf("no %q", name)
	}
	at := e.Tensor.Locs[0]
	file := must.Get(blob.ReadAll(t.Context(), s, at.File, 1<<20))(t)
	archive := file[at.Offset:][:at.Length]
	z := must.Get(zip.NewReader(bytes.NewReader(archive), int64(len(archive))))(t)
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, "/data/0") {
			continue
		}
		begin := must.Get(f.DataOffset())(t)
		data := archive[begin:][:f.UncompressedSize64]
		was := binary.LittleEndian.AppendUint32(nil, f.CRC32)
		data[(element+1)*e.Tensor.DType.Size()-1] ^= 0x40
		now := binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(data))
		storagetest.Put(t, s, at.File, slices.Concat(file[:at.Offset], bytes.ReplaceAll(archive, was, now), file[at.Offset+at.Length:]))
		return
	}
	t.Fatalf("%q has no record of elements", name)
}

// TestWrongByte changes an element of a weight or of a master weight, with a checksum that is right. The
// error names the weight, and the weights with right states.
func TestWrongByte(t *testing.T) {
	const bucket = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.float32, torch.float32).bucket_idx_0.param"
	const norm, output = "decoder.final_layernorm.weight", "output_layer.weight"
	for _, c := range []struct {
		fixture, name, wrong string
		element              int
	}{
		{"dp_tp1pp1dp1", norm, norm, 3},
		{"dp_tp1pp1dp1", bucket, output, 0},
		{"full_tp2pp1dp2", norm, norm, 0},
		{"full_tp2pp1dp2", "optimizer.state.param." + norm, norm, 0},
		{"model_tp2pp1dp2", "optimizer.state.fp32_param." + norm, norm, 0},
	} {
		s := optimizerStore(t, c.fixture)
		spoil(t, s, c.name, c.element)
		o := must.Get(openOptimizer(t, s, nil))(t)
		err := o.(*view.Checkpoint).Check(t.Context())
		if !errors.Is(err, view.ErrCheck) || !strings.Contains(err.Error(), "wrong states of "+c.wrong+", with") || !strings.Contains(err.Error(), "right are the states of ") {
			t.Errorf("%s with a wrong %s: Check = %v; want %v that names %s and the right ones", c.fixture, c.name, err, view.ErrCheck, c.wrong)
		}
	}
}

// TestWithheldFile opens checkpoints without the files of a rank. The error names a file.
func TestWithheldFile(t *testing.T) {
	for _, fixture := range []string{"dp_tp1pp1dp2_buckets", "full_tp2pp1dp2", "model_tp2pp1dp2"} {
		s := optimizerStore(t, fixture)
		for _, name := range storagetest.Names(t, s) {
			if strings.HasPrefix(name, "__1_") {
				storagetest.Remove(t, s, name)
			}
		}
		c, err := openOptimizer(t, s, nil)
		if err == nil {
			err = c.(*view.Checkpoint).Check(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), "__1_0.distcp") {
			t.Errorf("%s: %v; want an error that names __1_0.distcp", fixture, err)
		}
	}
}
