package torchsave

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

// The stream that PyTorch wrote before 1.6 consists of pickles of legacyMagic, of
// legacyProtocol, of a description of the machine, of the value and of the
// storages' keys. The storages follow in the order of their keys: the number of
// elements in eight bytes, then the elements.
var legacyMagic = new(big.Int).SetBytes([]byte{0x19, 0x50, 0xa8, 0x6a, 0x20, 0xf9, 0x46, 0x9c, 0xfc, 0x6c})

const legacyProtocol = 1001

// isLegacy reports whether a file begins with the pickle of legacyMagic, in any
// protocol from 2 on.
func isLegacy(head []byte) bool {
	const magic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"
	if len(head) > 13 && head[0] == 0x80 && head[1] >= 4 && head[2] == 0x95 { // a frame
		head = head[9:]
	}
	return len(head) > 13 && bytes.HasPrefix(head[2:], []byte(magic))
}

// stream is the legacy form of a file.
type stream struct {
	src *source
	// ids are the storages in the pickle, and places their ranges of the file.
	ids    map[string]*storageID
	places map[string]fileRange
}

// fileRange is a range of a file.
type fileRange struct{ offset, end int64 }

// openLegacy reads a stream. It decodes the value twice, because the positions of
// the storages are known only after the first pass.
func openLegacy(ctx context.Context, s *source) (*File, error) {
	l := &stream{src: s, ids: map[string]*storageID{}, places: map[string]fileRange{}}
	at, err := l.checkStart(ctx)
	if err != nil {
		return nil, err
	}

	f := &File{Legacy: true, PickleOffset: at}
	if _, at, err = l.next(ctx, at, l.note); err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}

	f.PickleEnd = at
	data, err := s.bytes(ctx, f.PickleOffset, f.PickleEnd-f.PickleOffset)
	if err != nil {
		return nil, err
	}

	keys, at, err := l.next(ctx, at, nil)
	if err != nil {
		return nil, fmt.Errorf("keys of the storages: %w", err)
	}

	if err := l.locate(ctx, keys, at); err != nil {
		return nil, err
	}

	f.Unsummed = int64(len(data))
	for _, p := range l.places {
		f.Unsummed += p.end - p.offset
	}

	f.Root, err = decode(ctx, data, l.storage)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// checkStart reads the first three pickles, which identify the file, and returns
// the offset of the value.
func (l *stream) checkStart(ctx context.Context) (int64, error) {
	magic, at, err := l.next(ctx, 0, nil)
	if n, ok := magic.(*big.Int); err == nil && (!ok || n.Cmp(legacyMagic) != 0) {
		err = fmt.Errorf("%w: another magic number", ErrMalformed)
	}
	if err != nil {
		return 0, err
	}

	protocol, at, err := l.next(ctx, at, nil)
	if err != nil {
		return 0, err
	}
	if protocol != any(int64(legacyProtocol)) {
		return 0, fmt.Errorf("%w: protocol %v", ErrVersion, protocol)
	}

	machine, at, err := l.next(ctx, at, nil)
	if err != nil {
		return 0, err
	}

	m, ok := machine.(map[string]any)
	if little, isBool := m["little_endian"].(bool); !ok || isBool && !little {
		return 0, fmt.Errorf("%w: %v", ErrByteOrder, m["little_endian"])
	}
	return at, nil
}

// firstWindow is the size of the first read of a pickle of unknown length. It is doubled
// until it contains the pickle.
const firstWindow = 64 << 10

// next decodes the pickle at an offset of the stream and returns its end.
func (l *stream) next(ctx context.Context, at int64, persistent func(id any) (any, error)) (any, int64, error) {
	o := &pickle.DecodeOptions{Persistent: persistent, Limits: &pickle.Limits{Context: ctx}}
	for window := int64(firstWindow); ; window *= 2 {
		n := min(window, maxPickle, l.src.size-at)
		b, err := l.src.bytes(ctx, at, n)
		if err != nil {
			return nil, 0, err
		}

		v, used, err := pickle.DecodePrefix(b, o)
		switch {
		case err == nil:
			return v, at + int64(used), nil
		case errors.Is(err, ErrMalformed):
			return nil, 0, err
		case !errors.Is(err, pickle.ErrMalformed) || n == l.src.size-at:
			return nil, 0, malformed(ctx, err)
		case n == maxPickle:
			return nil, 0, fmt.Errorf("%w: a pickle of more than %d bytes: %w", errLimit, maxPickle, err)
		}
	}
}

// note records a persistent id. All ids of a storage must agree.
func (l *stream) note(id any) (any, error) {
	p, err := parseID(id, 6)
	if err != nil {
		return nil, err
	}
	if q := l.ids[p.key]; q != nil && (q.bytes != p.bytes || q.dtype != p.dtype) {
		return nil, fmt.Errorf("%w: storage %q has %d bytes of %v, and %d of %v", errStorage, p.key, q.bytes, q.dtype, p.bytes, p.dtype)
	}
	l.ids[p.key] = p
	return nil, nil
}

// locate finds the storages, which begin at an offset of the stream.
func (l *stream) locate(ctx context.Context, keys any, at int64) error {
	list, ok := keys.([]any)
	if !ok || len(list) > maxRecords {
		return fmt.Errorf("%w: keys of the storages", ErrMalformed)
	}

	for _, k := range list {
		key, _ := k.(string)
		id := l.ids[key]
		if _, twice := l.places[key]; id == nil || twice {
			return fmt.Errorf("%w: key %v", errStorage, k)
		}

		b, err := l.src.bytes(ctx, at, 8)
		if err != nil {
			return fmt.Errorf("storage %q: %w", key, err)
		}

		n := int64(binary.LittleEndian.Uint64(b))
		if n < 0 || n > math.MaxInt64/int64(id.dtype.Size()) || n*int64(id.dtype.Size()) != id.bytes {
			return fmt.Errorf("%w: storage %q should have %d bytes, but says it has %d elements of %v", errStorage, key, id.bytes, n, id.dtype)
		}

		at += 8
		if id.bytes > l.src.size-at {
			return fmt.Errorf("%w: storage %q has %d bytes at %d of %d", errBounds, key, id.bytes, at, l.src.size)
		}

		l.places[key] = fileRange{at, at + id.bytes}
		at += id.bytes
	}

	if at != l.src.size {
		return fmt.Errorf("%w: %d bytes after the last storage", ErrMalformed, l.src.size-at)
	}
	return nil
}

// storage returns the storage of a persistent id, or the part of it that the last
// item of the id describes: (key of the part, offset, elements).
func (l *stream) storage(id any) (any, error) {
	p, err := parseID(id, 6)
	if err != nil {
		return nil, err
	}

	at, ok := l.places[p.key]
	if !ok {
		return nil, fmt.Errorf("%w: no storage %q", errStorage, p.key)
	}

	s := &Storage{Key: p.key, DType: p.dtype, untyped: p.untyped, class: p.class, Offset: at.offset, End: at.end}
	if p.view[0] == nil {
		return s, nil
	}
	return s.part(p.view[0])
}

func (s *Storage) part(view any) (*Storage, error) {
	t, ok := view.(value.Tuple)
	if !ok || len(t) != 3 {
		return nil, fmt.Errorf("%w: part of storage %q", errStorage, s.Key)
	}

	from, ok1 := t[1].(int64)
	count, ok2 := t[2].(int64)
	size := int64(s.DType.Size())
	room := s.numBytes() / size
	if !ok1 || !ok2 || from < 0 || count < 0 || from > room || count > room-from {
		return nil, fmt.Errorf("%w: part %v of storage %q, which has %d elements", errStorage, t[1:], s.Key, room)
	}

	p := *s
	p.Offset = s.Offset + from*size
	p.End = p.Offset + count*size
	return &p, nil
}
