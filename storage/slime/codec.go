package slime

import (
	"bufio"
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/adler32"
	"io"
	"math"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
	"github.com/zeebo/xxh3"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// The encodings of differences.
const (
	// XOR stores the new bytes XOR the old bytes.
	XOR = "xor"
	// Overwrite stores the positions of the bytes that have changed, and the new bytes.
	Overwrite = "overwrite"
)

// The checksums of a tensor's new state.
const (
	XXH3    = "xxh3-128"
	BLAKE3  = "blake3"
	Adler32 = "adler32"
)

// compression is the only compression of differences.
const compression = "zstd"

var encodings = []string{XOR, Overwrite}

// sums are the functions of the checksums.
var sums = map[string]func(p []byte) string{
	XXH3: func(p []byte) string {
		b := xxh3.Hash128(p).Bytes()
		return hex.EncodeToString(b[:])
	},
	BLAKE3: func(p []byte) string {
		b := blake3.Sum256(p)
		return hex.EncodeToString(b[:])
	},
	Adler32: func(p []byte) string { return fmt.Sprintf("%08x", adler32.Checksum(p)) },
}

// sumDigits are the numbers of hexadecimal digits of the checksums.
var sumDigits = map[string]int{XXH3: 32, BLAKE3: 64, Adler32: 8}

// checkSum returns an error unless text is a checksum of that kind.
func checkSum(kind, text string) error {
	if len(text) != sumDigits[kind] {
		return fmt.Errorf("the checksum %.80q is not a %s", text, kind)
	}
	for _, c := range []byte(text) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("the checksum %q is not a %s in lower-case digits", text, kind)
		}
	}
	return nil
}

// errDelta reports a difference that cannot be applied to its tensor. It is also a
// storage.ErrCorrupt.
var errDelta = fmt.Errorf("%w: the difference cannot be applied", storage.ErrCorrupt)

const (
	// maxWindow bounds the memory that a frame may make its reader keep: the bound of the
	// zstd program.
	maxWindow = 128 << 20
	// stepBytes is the number of bytes that are decompressed at once.
	stepBytes = 64 << 10
	// MaxOverwrite bounds the bytes of a tensor in the encoding Overwrite: its positions have 32
	// bits.
	MaxOverwrite = math.MaxUint32
)

// source returns a new reader of the same compressed bytes at each call.
type source func() io.Reader

// apply changes p from the old state of a tensor to the new one. The error wraps errDelta
// if the difference does not fit the tensor, and p is then undefined.
func apply(encoding string, p []byte, frame source) error {
	if encoding == XOR {
		return applyXOR(p, frame)
	}
	return applyOverwrite(int64(len(p)), frame, func(at uint32, v byte) { p[at] = v })
}

// check returns an error that wraps errDelta if a difference is malformed, for a tensor of
// unknown size. It decompresses the whole frame.
func check(encoding string, frame source) error {
	if encoding == Overwrite {
		return applyOverwrite(MaxOverwrite, frame, func(uint32, byte) {})
	}

	r, err := newFrame(frame, -1)
	if err != nil {
		return err
	}
	defer r.close()

	if r.size < 0 {
		return fmt.Errorf("%w: the frame does not declare its size", errDelta)
	}
	if _, err := io.CopyN(io.Discard, r, r.size); err != nil {
		return malformed(err)
	}
	return r.end()
}

func applyXOR(p []byte, frame source) error {
	r, err := newFrame(frame, int64(len(p)))
	if err != nil {
		return err
	}
	defer r.close()

	buf := make([]byte, min(stepBytes, len(p)))
	for step := range slices.Chunk(p, max(1, len(buf))) {
		b := buf[:len(step)]
		if _, err := io.ReadFull(r, b); err != nil {
			return malformed(err)
		}
		subtle.XORBytes(step, step, b)
	}

	return r.end()
}

// applyOverwrite calls set for each byte that has changed in a tensor of n bytes. It
// decompresses the frame twice, so that it needs no memory for the positions.
func applyOverwrite(n int64, frame source, set func(at uint32, v byte)) error {
	positions, err := newFrame(frame, -1)
	if err != nil {
		return err
	}
	defer positions.close()

	count, err := positions.uint32()
	if err != nil {
		return err
	}

	size := 4 + 5*int64(count)
	switch {
	case int64(count) > n:
		return fmt.Errorf("%w: it changes %d bytes of a tensor of %d", errDelta, count, n)
	case positions.size >= 0 && positions.size != size:
		return fmt.Errorf("%w: the frame has %d bytes, %d changes have %d", errDelta, positions.size, count, size)
	}

	values, err := newFrame(frame, -1)
	if err != nil {
		return err
	}
	defer values.close()

	if _, err := io.CopyN(io.Discard, values, 4+4*int64(count)); err != nil {
		return malformed(err)
	}

	last := int64(-1)
	for range count {
		at, err := positions.uint32()
		if err != nil {
			return err
		}
		if int64(at) <= last || int64(at) >= n {
			return fmt.Errorf("%w: the position %d after %d, in a tensor of %d bytes", errDelta, at, last, n)
		}

		last = int64(at)
		v, err := values.ReadByte()
		if err != nil {
			return malformed(err)
		}
		set(at, v)
	}

	return values.end()
}

// frames are readers that are not in use, with their buffers, which are larger than most
// differences. Their decompressors run in the goroutine of their caller, so one that is
// dropped leaves no goroutine behind.
var frames = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		panic(err) // the options are constants
	}
	return &frame{Reader: bufio.NewReaderSize(nil, stepBytes), in: bufio.NewReaderSize(nil, stepBytes), d: d}
}}

// frame is a reader of a decompressed frame.
type frame struct {
	*bufio.Reader
	in   *bufio.Reader // of the compressed bytes
	d    *zstd.Decoder
	size int64 // that the frame declares, or -1
}

// newFrame begins to decompress a frame. If want is not negative, a frame that declares
// another size is refused.
func newFrame(from source, want int64) (*frame, error) {
	f := frames.Get().(*frame)
	if err := f.begin(from(), want); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *frame) begin(from io.Reader, want int64) error {
	f.in.Reset(from)
	head, err := f.in.Peek(zstd.HeaderMaxSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}

	var h zstd.Header
	if err := h.Decode(head); err != nil {
		return malformed(err)
	}

	f.size = -1
	if h.HasFCS {
		f.size = int64(min(h.FrameContentSize, math.MaxInt64))
	}

	if h.Skippable || want >= 0 && f.size >= 0 && f.size != want {
		return fmt.Errorf("%w: the frame has %d bytes, the tensor %d", errDelta, f.size, want)
	}
	if err := f.d.Reset(f.in); err != nil {
		return malformed(err)
	}

	f.Reset(f.d)
	return nil
}

// close hands f back. It drops the bytes that f reads from.
func (f *frame) close() {
	_ = f.d.Reset(nil) // its only error is that there is no reader now
	f.in.Reset(nil)
	f.Reset(nil)
	frames.Put(f)
}

// uint32 reads a number.
func (f *frame) uint32() (uint32, error) {
	var b [4]byte
	if _, err := io.ReadFull(f, b[:]); err != nil {
		return 0, malformed(err)
	}
	return binary.LittleEndian.Uint32(b[:]), nil
}

// end returns an error if the frame has more bytes.
func (f *frame) end() error {
	switch _, err := f.ReadByte(); {
	case err == nil:
		return fmt.Errorf("%w: the frame has more bytes than the tensor needs", errDelta)
	case !errors.Is(err, io.EOF):
		return malformed(err)
	}
	return nil
}

// storeError is an error of a store, which does not mean that a frame is malformed.
type storeError struct{ error }

func (e storeError) Unwrap() error { return e.error }

// malformed returns err as an error about a frame, unless it is an error of the store.
func malformed(err error) error {
	if e, ok := errors.AsType[storeError](err); ok {
		return e.error
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", errDelta, err)
}

// section returns the source of a range of a file.
func section(ctx context.Context, r blob.Reader, off, n int64) source {
	return func() io.Reader { return io.NewSectionReader(readerAt{ctx, r}, off, n) }
}

// readerAt is a blob.Reader as an io.ReaderAt.
type readerAt struct {
	ctx context.Context // of the whole reading: io.ReaderAt has no context
	r   blob.Reader
}

func (a readerAt) ReadAt(p []byte, off int64) (int, error) {
	if err := a.r.ReadAt(a.ctx, p, off); err != nil {
		return 0, storeError{err}
	}
	return len(p), nil
}

// encoder compresses differences. It is for one goroutine.
type encoder struct {
	encoding     string
	small, large *zstd.Encoder
	buf          []byte
	was, is      []byte // the states of a tensor, for the caller
}

// smallBytes is the size up to which a frame is a single segment. A frame of less than 256
// bytes cannot declare its size otherwise, and receivers need that.
const smallBytes = 128 << 10

func newEncoder(encoding string) (*encoder, error) {
	// Level 1 of the zstd program, as slime has it.
	o := []zstd.EOption{zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false)}
	large, err := zstd.NewWriter(nil, o...)
	if err != nil {
		return nil, err
	}
	small, err := zstd.NewWriter(nil, append(o, zstd.WithSingleSegment(true))...)
	return &encoder{encoding: encoding, small: small, large: large}, err
}

// compress returns p as one frame that declares its size.
func (e *encoder) compress(p []byte) []byte {
	if len(p) <= smallBytes {
		return e.small.EncodeAll(p, nil)
	}
	return e.large.EncodeAll(p, nil)
}

// encode returns the difference between two states of a tensor, which have the same
// length, compressed. It overwrites old. Nil: they are equal.
func (e *encoder) encode(old, p []byte) []byte {
	if bytes.Equal(old, p) {
		return nil
	}
	if e.encoding == XOR {
		subtle.XORBytes(old, old, p)
		return e.compress(old)
	}

	count := 0
	for i, b := range p {
		if b != old[i] {
			count++
		}
	}

	e.buf = binary.LittleEndian.AppendUint32(slices.Grow(e.buf[:0], 4+5*count), uint32(count))
	for i, b := range p {
		if b != old[i] {
			e.buf = binary.LittleEndian.AppendUint32(e.buf, uint32(i))
		}
	}

	for i, b := range p {
		if b != old[i] {
			e.buf = append(e.buf, b)
		}
	}

	return e.compress(e.buf)
}
