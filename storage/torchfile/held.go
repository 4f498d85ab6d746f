package torchfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// held is the file that was written and waits for its commit: it is the
// checkpoint, and must not appear before the save is finished.
type held struct {
	store  blob.Store
	name   string
	size   int64
	writer blob.Writer
	// end are the last bytes, which hold the checksums of all others.
	end []byte
}

// hold takes the writer.
func (h *held) hold(_ string, w blob.Writer) { h.writer = w }

// abort gives the file up.
func (h *held) abort() {
	if h.writer != nil {
		h.writer.Abort()
	}
}

// commit makes the file appear. Where the store reports an error, what is there
// afterwards tells: if it ends as ours does, then it is visible, but nobody
// knows whether it would survive the loss of power.
func (h *held) commit(ctx context.Context) error {
	defer h.abort() // does nothing once committed
	if err := context.Cause(ctx); err != nil {
		return err
	}
	_, err := h.writer.Commit(ctx)
	if err == nil {
		return nil
	}
	ours, readErr := h.isThere(context.WithoutCancel(ctx))
	switch {
	case readErr == nil && !ours && errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: %w", storage.ErrExists, err)
	case readErr == nil && !ours:
		return err
	}
	return fmt.Errorf("%w: %w", storage.ErrUncertain, err)
}

// isThere reports whether a file that ends as ours does is there.
func (h *held) isThere(ctx context.Context) (bool, error) {
	r, err := h.store.Open(ctx, h.name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer r.Close()
	if r.Size() != h.size {
		return false, nil
	}
	end := make([]byte, len(h.end))
	err = r.ReadAt(ctx, end, h.size-int64(len(end)))
	return bytes.Equal(end, h.end), err
}
