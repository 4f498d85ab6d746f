package torchsave

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"reflect"
	"testing"

	"github.com/cairn-ckpt/cairn/value"
)

// parts are the parts of a stream.
type parts struct {
	magic, protocol, machine, root, keys any
	storages                             string
}

func defaultParts() parts {
	return parts{
		magic: legacyMagic, protocol: int64(legacyProtocol),
		machine: map[string]any{"protocol_version": int64(1001), "little_endian": true, "type_sizes": map[string]any{"int": int64(4)}},
		root:    old(nil), keys: []any{"k"}, storages: count(6) + "0123456789abcdef01234567",
	}
}

// old returns the call that makes a tensor of six floats in a stream.
func old(view any) any {
	return call("_rebuild_tensor_v2", id("storage", floats, "k", "cpu", int64(6), view), int64(0), ints(2), ints(1), false, hooks())
}

// count returns the number that stands before a storage.
func count(n int64) string { return string(binary.LittleEndian.AppendUint64(nil, uint64(n))) }

func (p parts) bytes(t testing.TB) []byte {
	t.Helper()
	return []byte(encode(t, p.magic) + encode(t, p.protocol) + encode(t, p.machine) + encode(t, p.root) + encode(t, p.keys) + p.storages)
}

func TestOpenLegacyStreams(t *testing.T) {
	for name, c := range map[string]struct {
		view any
		want string // the bytes of the tensor
	}{
		"all of a storage":  {nil, "01234567"},
		"a part of one":     {value.Tuple{"k2", int64(2), int64(3)}, "89abcdef"},
		"the last of one":   {value.Tuple{"k2", int64(4), int64(2)}, "01234567"},
		"all of it as part": {value.Tuple{"k2", int64(0), int64(6)}, "01234567"},
	} {
		p := defaultParts()
		p.root = old(c.view)
		b := p.bytes(t)
		f, err := Open(t.Context(), reader(b), int64(len(b)))
		if err != nil {
			t.Fatalf("%s: Open = %v", name, err)
		}
		x, ok := f.Root.(*Tensor)
		if !ok || string(b[x.Offset:x.Offset+x.NumBytes()]) != c.want {
			t.Errorf("%s: Open = %+v; want the bytes %q", name, f.Root, c.want)
		}
	}
}

func TestOpenRefusesForgedStreams(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(p *parts)
		want error
	}{
		"another magic number":            {func(p *parts) { p.magic = new(big.Int).Add(legacyMagic, big.NewInt(1)) }, ErrMalformed},
		"another protocol":                {func(p *parts) { p.protocol = int64(1002) }, ErrVersion},
		"a protocol that is text":         {func(p *parts) { p.protocol = "1001" }, ErrVersion},
		"big-endian":                      {func(p *parts) { p.machine = map[string]any{"little_endian": false} }, ErrByteOrder},
		"no machine":                      {func(p *parts) { p.machine = nil }, ErrByteOrder},
		"no keys":                         {func(p *parts) { p.keys = nil }, ErrMalformed},
		"a key too few":                   {func(p *parts) { p.keys, p.storages = []any{}, "" }, errStorage},
		"a key twice":                     {func(p *parts) { p.keys = []any{"k", "k"} }, errStorage},
		"a key without a storage":         {func(p *parts) { p.keys = []any{"k", "x"} }, errStorage},
		"a key that is a number":          {func(p *parts) { p.keys = []any{int64(1)} }, errStorage},
		"more elements than the id says":  {func(p *parts) { p.storages = count(7) + p.storages[8:] + "...." }, errStorage},
		"fewer elements than the id says": {func(p *parts) { p.storages = count(5) + p.storages[8:] }, errStorage},
		"a negative number of elements":   {func(p *parts) { p.storages = count(-6) + p.storages[8:] }, errStorage},
		"elements that overflow":          {func(p *parts) { p.storages = count(math.MaxInt64) + p.storages[8:] }, errStorage},
		"a storage cut short":             {func(p *parts) { p.storages = p.storages[:20] }, errBounds},
		"no storage":                      {func(p *parts) { p.storages = "" }, errBounds},
		"bytes after the last storage":    {func(p *parts) { p.storages += "x" }, ErrMalformed},
		"a part that is no tuple":         {func(p *parts) { p.root = old("x") }, errStorage},
		"a part of two":                   {func(p *parts) { p.root = old(value.Tuple{"x", int64(1)}) }, errStorage},
		"a part before the beginning":     {func(p *parts) { p.root = old(value.Tuple{"x", int64(-1), int64(3)}) }, errStorage},
		"a part behind the end":           {func(p *parts) { p.root = old(value.Tuple{"x", int64(4), int64(3)}) }, errStorage},
		"a part that overflows":           {func(p *parts) { p.root = old(value.Tuple{"x", int64(2), int64(math.MaxInt64)}) }, errStorage},
		"a tensor outside of its part":    {func(p *parts) { p.root = old(value.Tuple{"x", int64(1), int64(1)}) }, errView},
		"an id of today":                  {func(p *parts) { p.root = id("storage", floats, "k", "cpu", int64(6)) }, errStorage},
		"two sizes of one storage": {func(p *parts) {
			p.root = []any{old(nil), id("storage", floats, "k", "cpu", int64(5), nil)}
		}, errStorage},
	} {
		p := defaultParts()
		c.do(&p)
		b := p.bytes(t)
		if _, err := Open(t.Context(), reader(b), int64(len(b))); !errors.Is(err, c.want) || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: Open = %v; want %v", name, err, c.want)
		}
	}
}

// The pickle of a stream says nowhere how long it is.
func TestLongPickleInStream(t *testing.T) {
	long := make([]any, 3*firstWindow)
	for i := range long {
		long[i] = int64(i)
	}
	p := defaultParts()
	p.root = []any{long, old(nil)}
	b := p.bytes(t)
	f, err := Open(t.Context(), reader(b), int64(len(b)))
	if err != nil {
		t.Fatalf("Open = %v", err)
	}
	if l := f.Root.([]any); !reflect.DeepEqual(l[0], any(long)) {
		t.Error("Open = another list than was written")
	}
}
