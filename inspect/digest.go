package inspect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Digest identifies the content of a name, independent of its chunks and files.
type Digest struct {
	Kind  string  `json:"kind"`
	DType string  `json:"dtype,omitempty"`
	Shape []int64 `json:"shape,omitzero"`
	// Type and Repr describe an object in Python's notation. Repr has the first
	// 400 characters. If the codec of an object is unknown, Type is that codec
	// and Repr is empty.
	Type string `json:"type,omitempty"`
	Repr string `json:"repr,omitempty"`
	// NumBytes and SHA256 describe a tensor's contiguous little-endian bytes,
	// the last dimension fastest, or an object's encoded bytes.
	NumBytes int64  `json:"bytes"`
	SHA256   string `json:"sha256"`
}

// Content is a checkpoint with readable bytes. *cairn.Checkpoint implements it.
type Content interface {
	ReadEntry(ctx context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error
	// ReadEntries reads whole tensors, tensor i into dst[i].
	ReadEntries(ctx context.Context, entries []*meta.Entry, dst []*tensor.Tensor) error
	ReadBytes(ctx context.Context, e *meta.Entry) (codec string, data []byte, err error)
}

// digestBytes bounds the memory that Digests uses for the bytes of tensors. Tests
// make it smaller.
var digestBytes int64 = 256 << 20

// Digests returns the digest of each entry by name. It holds at most 256 MiB of
// tensors. progress, if not nil, is called with the number of bytes that were read; it
// must be safe for concurrent use.
func Digests(ctx context.Context, src Content, entries []*meta.Entry, progress func(bytes int64)) (map[string]Digest, error) {
	d := &digester{src: src, progress: orIgnore(progress), budget: semaphore.NewWeighted(digestBytes)}
	out := make([]Digest, len(entries))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())

	for at := 0; at < len(entries); {
		n := max(1, smallTensors(entries[at:]))
		some, to := entries[at:at+n], out[at:at+n]
		g.Go(func() error { return d.entries(gctx, some, to) })
		at += n
	}

	if err := g.Wait(); err != nil {
		return nil, err
	}

	byName := make(map[string]Digest, len(entries))
	for i, e := range entries {
		byName[e.FQN] = out[i]
	}

	return byName, nil
}

// DigestsTogether is Digests by several ranks, which divide the entries by their bytes. If g
// is nil, this process is the only rank. All ranks of g call it, with the same entries. Rank 0 returns the digests of all entries, and
// the other ranks return nil. planned and progress, if not nil, receive the bytes of this
// rank only: planned all of them, before the first is read.
func DigestsTogether(ctx context.Context, g group.Group, src Content, entries []*meta.Entry, planned, progress func(bytes int64)) (map[string]Digest, error) {
	h, sizes := sha256.New(), make([]int64, len(entries))
	for i, e := range entries {
		sizes[i] = e.NumBytes()
		fmt.Fprintf(h, "%q %d\n", e.FQN, sizes[i])
		if e.Tensor != nil {
			fmt.Fprintln(h, e.Tensor.DType, e.Tensor.Shape)
		}
	}

	if g == nil || g.Size() == 1 {
		var all int64
		for _, n := range sizes {
			all += n
		}
		orIgnore(planned)(all)
		return Digests(ctx, src, entries, progress)
	}

	err := group.Agree(ctx, g, "compare", h.Sum(nil), func([]byte) error {
		return fmt.Errorf("%w: it sees other names, types or shapes than rank 0", group.ErrDiffers)
	})
	if err != nil {
		return nil, err
	}

	var mine []*meta.Entry
	var bytes int64
	for i, rank := range work.Divide(sizes, g.Size()) {
		if rank == g.Rank() {
			mine = append(mine, entries[i])
			bytes += sizes[i]
		}
	}

	orIgnore(planned)(bytes)
	var all map[string]Digest
	_, err = group.Decide(ctx, group.StopEarly(g), "digest", group.JSON[map[string]Digest](), group.Bytes{},
		func(ctx context.Context) (map[string]Digest, error) { return Digests(ctx, src, mine, progress) },
		func(_ context.Context, parts []map[string]Digest) ([]byte, error) {
			all = make(map[string]Digest, len(entries))
			for _, p := range parts {
				maps.Copy(all, p)
			}
			return nil, nil
		})
	return all, err
}

// Combine returns one digest for all: the SHA-256, in hexadecimal, of one line
// for each name in order, with name, kind, dtype, shape and digest. Equal states
// have equal digests, however they are sharded.
func Combine(digests map[string]Digest) string {
	h := sha256.New()
	var line []byte
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		d := digests[name]
		line = strconv.AppendQuote(line[:0], name)
		line = fmt.Appendf(line, " %s %s %v %s\n", d.Kind, d.DType, d.Shape, d.SHA256)
		h.Write(line)
	}
	return hex.EncodeToString(h.Sum(nil))
}

type digester struct {
	src      Content
	progress func(bytes int64)
	budget   *semaphore.Weighted // bytes of slabs
}

// smallTensors returns how many of the first entries are small tensors.
func smallTensors(entries []*meta.Entry) int {
	return small(len(entries), min(minSlab, digestBytes), func(i int) (int64, bool) {
		e := entries[i]
		if e.Tensor == nil {
			return 0, false
		}
		n, err := tensor.NumBytes(e.Tensor.DType, e.Tensor.Shape)
		return n, err == nil
	})
}

// entries computes the digests of a single entry or of several small tensors.
func (d *digester) entries(ctx context.Context, entries []*meta.Entry, out []Digest) (err error) {
	e := entries[0]
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case len(entries) > 1:
		return d.together(ctx, entries, out)
	case e.Tensor != nil:
		out[0], err = d.tensor(ctx, e)
	default:
		out[0], err = d.object(ctx, e)
	}

	return err
}

func (d *digester) together(ctx context.Context, entries []*meta.Entry, out []Digest) error {
	var total int64
	for _, e := range entries {
		total += e.NumBytes()
	}

	if err := d.budget.Acquire(ctx, total); err != nil {
		return err
	}
	defer d.budget.Release(total)

	parts, _, err := readTogether(ctx, d.src, entries, nil)
	if err != nil {
		return err
	}

	for i, e := range entries {
		out[i] = newDigest(e.Tensor, int64(len(parts[i])), sha256.Sum256(parts[i]))
	}

	d.progress(total)
	return nil
}

func newDigest(t *meta.Tensor, bytes int64, sum [sha256.Size]byte) Digest {
	return Digest{
		Kind: KindTensor, DType: t.DType.String(), Shape: append([]int64{}, t.Shape...),
		NumBytes: bytes, SHA256: hex.EncodeToString(sum[:]),
	}
}

func (d *digester) object(ctx context.Context, e *meta.Entry) (Digest, error) {
	codec, data, err := d.src.ReadBytes(ctx, e)
	if err != nil {
		return Digest{}, err
	}

	d.progress(int64(len(data)))
	sum := sha256.Sum256(data)
	out := Digest{Kind: KindObject, NumBytes: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
	v, err := value.Decode(codec, data)
	switch {
	case errors.Is(err, value.ErrCodec):
		out.Type = codec
	case err != nil:
		return Digest{}, fmt.Errorf("%q: %w", e.FQN, err)
	default:
		out.Type, out.Repr = TypeName(v), reprHead(v)
	}

	return out, nil
}

// digestRepr is the length of the repr in a digest, in characters.
const digestRepr = 400

// reprHead returns the beginning of an object's repr, without an ellipsis: the
// SHA-256 identifies long objects.
func reprHead(v any) string {
	r := []rune(Repr(v, digestRepr*utf8.UTFMax))
	return string(r[:min(len(r), digestRepr)])
}

func (d *digester) tensor(ctx context.Context, e *meta.Entry) (Digest, error) {
	t := e.Tensor
	elements, err := tensor.NumElements(t.Shape)
	if err != nil {
		return Digest{}, fmt.Errorf("%q: %w", e.FQN, err)
	}

	size := int64(t.DType.Size())
	slab := min(max(1, digestSlab(t)/size), elements) // elements
	if err := d.budget.Acquire(ctx, min(slab*size, digestBytes)); err != nil {
		return Digest{}, err
	}
	defer d.budget.Release(min(slab*size, digestBytes))

	buf := make([]byte, slab*size)
	h := sha256.New()
	for lo := int64(0); lo < elements; lo += slab {
		hi := min(lo+slab, elements)
		p := buf[:(hi-lo)*size]
		if err := readFlat(ctx, d.src.ReadEntry, e, lo, hi, p); err != nil {
			return Digest{}, err
		}
		h.Write(p)
		d.progress(int64(len(p)))
	}

	return newDigest(t, elements*size, [sha256.Size]byte(h.Sum(nil))), nil
}

const (
	minSlab = 4 << 20
	maxSlab = 64 << 20
	// chunkSlab is the part of a slab for each chunk of the tensor. If chunks cut
	// across the rows, each contributes only a few bytes to a slab but is read in
	// whole checksummed blocks of about a quarter of this size.
	chunkSlab = 4 << 20
)

// digestSlab returns the number of bytes of a tensor that are read at once.
func digestSlab(t *meta.Tensor) int64 {
	return min(max(minSlab, chunkSlab*int64(len(t.Chunks))), maxSlab, digestBytes)
}
