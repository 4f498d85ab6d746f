package torchdcp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/torchsave"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// chained returns a checkpoint of one tensor of 1000 bytes, "long", after pack has changed
// its record, and the entry of the tensor.
func chained(t *testing.T, transforms []string, pack func(record []byte) []byte) (*mem.Store, *meta.Entry) {
	t.Helper()
	x := must.Get(tensor.New(tensor.Uint8, []int64{1000}))(t)
	b := must.Get(torchsave.Marshal(x))(t)
	record := pack(b)
	e := meta.Entry{FQN: "long", Tensor: &meta.Tensor{
		Properties: meta.Properties{DType: tensor.Uint8}, Shape: []int64{1000}, Chunks: []tensor.Box{tensor.Whole([]int64{1000})},
		Locs: []meta.Location{{File: "__0_0.distcp", Length: int64(len(record)), Detail: &meta.Detail{Transforms: transforms}}},
	}}
	md := must.Get(dcpfiles.Encode(&dcpfiles.Document{Meta: &meta.Metadata{Entries: []meta.Entry{e}}, Version: "1.0.0"}))(t)
	s := new(mem.Store)
	storagetest.Put(t, s, ".metadata", md)
	storagetest.Put(t, s, "__0_0.distcp", record)
	return s, &e
}

// compress compresses p in a stream of that window.
func compress(t *testing.T, p []byte, window int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := must.Get(zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true)))(t)
	w.Write(p[:len(p)/2])
	w.Flush() // so that the writer cannot know the size and choose a smaller window
	w.Write(p[len(p)/2:])
	must.Do(t, w.Close())
	return b.Bytes()
}

// The transformations of a record share one bound on their windows, and there
// are only a few.
func TestTransformChainsAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		length, window int
		want           error
	}{
		"three of 16 MiB":             {3, 16 << 20, nil},
		"three of 64 MiB":             {3, 64 << 20, storage.ErrCorrupt},
		"more than there can be":      {9, 1 << 20, torchdcp.ErrTransform},
		"many more than there can be": {300, 0, torchdcp.ErrTransform},
	} {
		t.Run(name, func(t *testing.T) {
			s, e := chained(t, slices.Repeat([]string{"stream.zstd/1"}, c.length), func(p []byte) []byte {
				for range c.length {
					if c.window > 0 {
						p = compress(t, p, c.window)
					}
				}
				return p
			})
			if err := loadLong(t, s, e); !errors.Is(err, c.want) {
				t.Errorf("Load = %v; want %v", err, c.want)
			}
			ck := must.Get(torchdcp.Format{}.Open(t.Context(), s))(t)
			rep, err := ck.Verify(t.Context(), nil)
			if c.want == storage.ErrCorrupt {
				if err != nil || len(rep.Problems) == 0 {
					t.Errorf("Verify = %+v, %v; want a problem", rep, err)
				}
			} else if !errors.Is(err, c.want) {
				t.Errorf("Verify = %v; want %v", err, c.want)
			}
		})
	}
}

// endless is a transformation that makes bytes for ever.
type endless struct{ stop func() }

func (e endless) Read(p []byte) (int, error) {
	e.stop()
	clear(p)
	return len(p), nil
}

// A step is bounded too if the next one drops its bytes, and stops when the caller does.
func TestTransformStepsAreBounded(t *testing.T) {
	run := func(ctx context.Context, stop func()) error {
		s, e := chained(t, []string{"nothing/1", "endless/1"}, func(p []byte) []byte { return p })
		ck := must.Get(torchdcp.Format{Transforms: map[string]torchdcp.Transform{
			"endless": func(string, io.Reader) (io.ReadCloser, error) { return io.NopCloser(endless{stop}), nil },
			"nothing": func(_ string, r io.Reader) (io.ReadCloser, error) {
				pr, pw := io.Pipe()
				go func() {
					_, err := io.Copy(io.Discard, r)
					pw.CloseWithError(err)
				}()
				return pr, nil
			},
		}}.Open(t.Context(), s))(t)
		return ck.CheckHeld(ctx, e)
	}
	if err := run(t.Context(), func() {}); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("CheckHeld = %v; want ErrCorrupt", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := run(ctx, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("CheckHeld of a caller that gives up = %v; want %v", err, context.Canceled)
	}
}
