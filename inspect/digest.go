package inspect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

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
	// NumBytes and SHA256 are those of a tensor's contiguous little-endian bytes,
	// the last dimension fastest, or of an object's encoded bytes.
	NumBytes int64  `json:"nbytes"`
	SHA256   string `json:"sha256"`
}

// Content is a checkpoint whose bytes can be read. *cairn.Checkpoint implements
// it.
type Content interface {
	ReadEntry(ctx context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error
	// ReadEntries reads whole tensors, tensor i into dst[i].
	ReadEntries(ctx context.Context, entries []*meta.Entry, dst []*tensor.Tensor) error
	ReadBytes(ctx context.Context, e *meta.Entry) (codec string, data []byte, err error)
}

// DigestOptions are the options of Digests. Nil means the defaults.
type DigestOptions struct {
	// BufferBytes bounds the memory for the bytes of tensors, except that one
	// element always fits. Zero: 256 MiB.
	BufferBytes int64
	// Parallel is the number of names that are read at the same time. Zero: 2,
	// or one for each processor if there are more.
	Parallel int
	// Progress, if not nil, is called with the number of bytes that were read. It
	// must be safe for concurrent use.
	Progress func(bytes int64)
}

func (o *DigestOptions) withDefaults() DigestOptions {
	var out DigestOptions
	if o != nil {
		out = *o
	}
	if out.BufferBytes <= 0 {
		out.BufferBytes = 256 << 20
	}
	out.BufferBytes = max(out.BufferBytes, int64(tensor.Complex128.Size()))
	if out.Parallel <= 0 {
		out.Parallel = max(2, runtime.GOMAXPROCS(0))
	}
	if out.Progress == nil {
		out.Progress = func(int64) {}
	}
	return out
}

// Digests returns the digest of each entry by name. It never holds a whole large
// tensor in memory.
func Digests(ctx context.Context, src Content, entries []*meta.Entry, opts *DigestOptions) (map[string]Digest, error) {
	o := opts.withDefaults()
	d := &digester{src: src, opts: o, budget: semaphore.NewWeighted(o.BufferBytes)}
	out := make([]Digest, len(entries))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(o.Parallel)
	for at := 0; at < len(entries); {
		n := max(1, d.small(entries[at:]))
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
	src    Content
	opts   DigestOptions
	budget *semaphore.Weighted // bytes of slabs
}

const (
	// smallBytes is the size up to which tensors are read together, because a
	// read of its own would cost more than the bytes.
	smallBytes = 64 << 10
	// maxTogether is the largest number of tensors that are read together.
	maxTogether = 4096
)

// small returns how many of the first entries are small tensors.
func (d *digester) small(entries []*meta.Entry) int {
	room := min(minSlab, d.opts.BufferBytes)
	for i, e := range entries {
		if i == maxTogether || e.Tensor == nil {
			return i
		}
		n, err := tensor.NumBytes(e.Tensor.DType, e.Tensor.Shape)
		if err != nil || n > smallBytes || n > room {
			return i
		}
		room -= n
	}
	return len(entries)
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

// together computes the digests of small tensors from one read.
func (d *digester) together(ctx context.Context, entries []*meta.Entry, out []Digest) error {
	var total int64
	for _, e := range entries {
		total += e.NumBytes()
	}
	if err := d.budget.Acquire(ctx, total); err != nil {
		return err
	}
	defer d.budget.Release(total)
	buf, dst := make([]byte, total), make([]*tensor.Tensor, len(entries))
	for i, at := 0, int64(0); i < len(entries); i++ {
		t, n := entries[i].Tensor, entries[i].NumBytes()
		var err error
		if dst[i], err = tensor.FromBytes(t.DType, t.Shape, buf[at:at+n]); err != nil {
			return fmt.Errorf("%q: %w", entries[i].FQN, err)
		}
		at += n
	}
	if err := d.src.ReadEntries(ctx, entries, dst); err != nil {
		return err
	}
	for i, e := range entries {
		n := e.NumBytes()
		out[i] = newDigest(e.Tensor, n, sha256.Sum256(buf[:n]))
		buf = buf[n:]
	}
	d.opts.Progress(total)
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
	d.opts.Progress(int64(len(data)))
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
	slab := min(d.slabBytes(t)/size, elements) // elements
	if err := d.budget.Acquire(ctx, slab*size); err != nil {
		return Digest{}, err
	}
	defer d.budget.Release(slab * size)
	buf := make([]byte, slab*size)
	h := sha256.New()
	for lo := int64(0); lo < elements; lo += slab {
		hi := min(lo+slab, elements)
		if err := d.slab(ctx, e, lo, hi, buf, h); err != nil {
			return Digest{}, err
		}
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

// slabBytes returns the number of bytes of a tensor that are read at once, at
// least one element.
func (d *digester) slabBytes(t *meta.Tensor) int64 {
	want := min(max(minSlab, chunkSlab*int64(len(t.Chunks))), maxSlab)
	return max(min(want, d.opts.BufferBytes), int64(t.DType.Size()))
}

// slab reads the elements [lo, hi) of the flattened tensor into buf and adds
// them to h.
func (d *digester) slab(ctx context.Context, e *meta.Entry, lo, hi int64, buf []byte, h io.Writer) error {
	boxes, err := tensor.FlatBoxes(e.Tensor.Shape, lo, hi)
	if err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	for _, box := range boxes {
		p := buf[:box.Volume()*int64(e.Tensor.DType.Size())]
		dst, err := tensor.FromBytes(e.Tensor.DType, box.Sizes, p)
		if err != nil {
			return fmt.Errorf("%q: %w", e.FQN, err)
		}
		if err := d.src.ReadEntry(ctx, e, box, dst); err != nil {
			return err
		}
		h.Write(p)
		d.opts.Progress(int64(len(p)))
	}
	return nil
}
