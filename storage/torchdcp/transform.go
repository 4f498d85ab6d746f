package torchdcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/storage"
)

// ErrTransform reports stored bytes whose transformations are unknown or too
// many.
var ErrTransform = fmt.Errorf("%w: unsupported transformation", storage.ErrVersion)

// Transform undoes a transformation of stored bytes: it returns a reader of the
// bytes as they were before, given one of those that are stored. version is what
// follows the slash in the transformation's descriptor. A version that it does
// not know is an error that wraps ErrTransform.
type Transform func(version string, stored io.Reader) (io.ReadCloser, error)

// zstdName is the one transformation that PyTorch brings along.
const zstdName = "stream.zstd"

// maxWindow bounds the memory that the compressed streams of one record may make
// their readers keep, in sum: the bound that the zstd program has for one stream.
const maxWindow = 128 << 20

// maxTransforms bounds the transformations of one record. PyTorch writes one.
const maxTransforms = 8

// undoZstd decompresses streams whose window is at most window bytes. It uses no
// goroutines, so it may be left unfinished.
func undoZstd(window uint64) Transform {
	return func(version string, stored io.Reader) (io.ReadCloser, error) {
		if major, _, _ := strings.Cut(version, "."); major != "1" {
			return nil, fmt.Errorf("%w %s in version %q", ErrTransform, zstdName, version)
		}
		d, err := zstd.NewReader(stored, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(window))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
		}
		return d.IOReadCloser(), nil
	}
}

// undo returns a reader of the bytes behind all transformations of a record.
// PyTorch lists the one next to the data first, and the one next to the file
// last; though its own reader begins with the first, only the other way round
// leads back to what was written. No step may make more than most bytes.
func (a *archive) undo(ctx context.Context, descriptors []string, stored io.Reader, most int64) (io.ReadCloser, error) {
	steps, err := a.steps(descriptors)
	if err != nil {
		return nil, err
	}
	out := &chain{Reader: stored}
	for _, s := range slices.Backward(steps) {
		r, err := s.undo(s.version, out.Reader)
		if err != nil {
			return nil, errors.Join(err, out.Close())
		}
		out.Reader = &bounded{ctx: ctx, r: r, most: most}
		out.closers = append(out.closers, r)
	}
	return out, nil
}

// bounded reads the output of one step of a chain. Each step has its own bound and
// looks at the context, because the next step may make no output of its input.
type bounded struct {
	ctx        context.Context // of the whole reading: io.Reader has none
	r          io.Reader
	made, most int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if err := context.Cause(b.ctx); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	if b.made += int64(n); b.made > b.most {
		return 0, fmt.Errorf("%w: transformed bytes are more than %d", storage.ErrCorrupt, b.most)
	}
	return n, err
}

// step is one transformation of a record.
type step struct {
	undo    Transform
	version string
}

// steps returns how to undo the transformations with these descriptors,
// "name[@domain]/version", or an error that wraps ErrTransform.
func (a *archive) steps(descriptors []string) ([]step, error) {
	if len(descriptors) > maxTransforms {
		return nil, fmt.Errorf("%w: a chain of %d, at most %d are undone", ErrTransform, len(descriptors), maxTransforms)
	}
	out := make([]step, len(descriptors))
	for i, d := range descriptors {
		name, version, _ := strings.Cut(d, "/")
		out[i] = step{version: version}
		switch {
		case a.transforms[name] != nil:
			out[i].undo = a.transforms[name]
		case name == zstdName:
			out[i].undo = undoZstd(maxWindow / uint64(len(descriptors)))
		default:
			return nil, fmt.Errorf("%w %q", ErrTransform, d)
		}
	}
	return out, nil
}

// chain is the reader at the end of several, which are closed with it.
type chain struct {
	io.Reader
	closers []io.Closer
}

func (c *chain) Close() error {
	var errs []error
	for _, r := range slices.Backward(c.closers) {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}
