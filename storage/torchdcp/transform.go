package torchdcp

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/storage"
)

// ErrTransform reports stored bytes that were transformed in a way that nobody
// here can undo.
var ErrTransform = fmt.Errorf("%w: unknown transformation", storage.ErrVersion)

// Transform undoes a transformation of stored bytes: it returns a reader of the
// bytes as they were before, given one of those that are stored. version is what
// follows the slash in the transformation's descriptor. A version that it does
// not know is an error that wraps ErrTransform.
type Transform func(version string, stored io.Reader) (io.ReadCloser, error)

// zstdName is the one transformation that PyTorch brings along.
const zstdName = "stream.zstd"

// maxWindow bounds what a compressed stream may make its reader keep in memory:
// the bound that the zstd program has itself.
const maxWindow = 128 << 20

// undoZstd decompresses. It uses no goroutines, so it may be left unfinished.
func undoZstd(version string, stored io.Reader) (io.ReadCloser, error) {
	if major, _, _ := strings.Cut(version, "."); major != "1" {
		return nil, fmt.Errorf("%w %s in version %q", ErrTransform, zstdName, version)
	}
	d, err := zstd.NewReader(stored, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", storage.ErrCorrupt, err)
	}
	return d.IOReadCloser(), nil
}

// undo returns a reader of the bytes behind all transformations of a record.
// PyTorch lists the one next to the data first, and the one next to the file
// last; though its own reader begins with the first, only the other way round
// leads back to what was written.
func (o *Options) undo(descriptors []string, stored io.Reader) (io.ReadCloser, error) {
	out := &chain{Reader: stored}
	for _, d := range slices.Backward(descriptors) {
		t, version, err := o.transform(d)
		if err != nil {
			return nil, errors.Join(err, out.Close())
		}
		r, err := t(version, out.Reader)
		if err != nil {
			return nil, errors.Join(err, out.Close())
		}
		out.Reader = r
		out.closers = append(out.closers, r)
	}
	return out, nil
}

// transform returns what undoes the transformation of that descriptor,
// "name[@domain]/version", and the version.
func (o *Options) transform(descriptor string) (Transform, string, error) {
	name, version, _ := strings.Cut(descriptor, "/")
	if o != nil && o.Transforms[name] != nil {
		return o.Transforms[name], version, nil
	}
	if name == zstdName {
		return undoZstd, version, nil
	}
	return nil, "", fmt.Errorf("%w %q", ErrTransform, descriptor)
}

// checkTransforms returns an error unless there is a way to undo each of the
// descriptors' transformations.
func (o *Options) checkTransforms(descriptors []string) error {
	for _, d := range descriptors {
		if _, _, err := o.transform(d); err != nil {
			return err
		}
	}
	return nil
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
