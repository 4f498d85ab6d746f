package torchsave

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// good returns a file of two tensors.
func good(t testing.TB) []byte {
	t.Helper()
	b := must.Get(Marshal(map[string]any{"a": of[int32](t, []int64{2}, 1, 2), "b": of[int32](t, []int64{1}, 3), "c": "text"}))(t)
	return b
}

// forged is a file with fields that can be changed.
type forged struct{ b []byte }

// local and central return where the headers of a record are.
func (f forged) local(name string) []byte {
	return f.b[bytes.Index(f.b, []byte(name))-localBytes:]
}

func (f forged) central(name string) []byte {
	return f.b[bytes.LastIndex(f.b, []byte(name))-centralBytes:]
}

// end and end64 return the end records.
func (f forged) end() []byte   { return f.b[len(f.b)-endBytes32:] }
func (f forged) end64() []byte { return f.b[len(f.b)-endBytes32-locatorBytes-end64Bytes:] }

// rename gives a record a name of the same length, everywhere.
func (f forged) rename(from, to string) { copy(f.b, bytes.ReplaceAll(f.b, []byte(from), []byte(to))) }

func put16(p []byte, v uint16) { binary.LittleEndian.PutUint16(p, v) }
func put32(p []byte, v uint32) { binary.LittleEndian.PutUint32(p, v) }
func put64(p []byte, v uint64) { binary.LittleEndian.PutUint64(p, v) }

// sizes sets the sizes of a record in the directory.
func (f forged) sizes(name string, packed, size uint32) {
	c := f.central(name)
	put32(c[20:], packed)
	put32(c[24:], size)
}

const zero, one = "archive/data/0", "archive/data/1"

// tricks are attacks by hostile files, with the rule that each breaks.
var tricks = map[string]struct {
	do   func(f forged)
	want error
}{
	"compressed":                           {func(f forged) { put16(f.central(zero)[10:], 8) }, errCompressed},
	"compressed by its header":             {func(f forged) { put16(f.local(zero)[8:], 8) }, errContradiction},
	"encrypted":                            {func(f forged) { f.central(zero)[8] |= 1 }, errEncrypted},
	"strongly encrypted":                   {func(f forged) { f.central(zero)[8] |= 1 << 6 }, errEncrypted},
	"masked":                               {func(f forged) { f.central(zero)[9] |= 1 << 5 }, errEncrypted},
	"undefined flags":                      {func(f forged) { f.central(zero)[8] |= 1 << 4 }, ErrMalformed},
	"encrypted by its header":              {func(f forged) { f.local(zero)[6] |= 1 }, errContradiction},
	"two sizes":                            {func(f forged) { f.sizes(zero, 8, 9) }, errContradiction},
	"a size too small":                     {func(f forged) { f.sizes(zero, 4, 4) }, errContradiction},
	"a size into the next record":          {func(f forged) { f.sizes(zero, 60, 60) }, errOverlap},
	"a size up to the next record":         {func(f forged) { f.sizes(zero, 9, 9) }, errOverlap},
	"a size beyond the file":               {func(f forged) { f.sizes(zero, 1<<30, 1<<30) }, errBounds},
	"a size of 64 bits that is not there":  {func(f forged) { f.sizes(zero, math.MaxUint32, math.MaxUint32) }, ErrMalformed},
	"a place beyond the file":              {func(f forged) { put32(f.central(zero)[42:], 1<<30) }, errBounds},
	"an offset without a header":           {func(f forged) { put32(f.central(zero)[42:], 7) }, errContradiction},
	"the place of another record":          {func(f forged) { copy(f.central(one)[42:46], f.central(zero)[42:46]) }, errContradiction},
	"another part of the archive":          {func(f forged) { put16(f.central(zero)[34:], 1) }, errBounds},
	"a name twice":                         {func(f forged) { f.rename(one, zero) }, errDuplicate},
	"a name twice, in another case":        {func(f forged) { f.rename(one, "archive/DATA/0") }, errDuplicate},
	"a name above the archive":             {func(f forged) { f.rename(one, "../../../etc/x") }, errName},
	"a name from the root":                 {func(f forged) { f.rename(one, "/etc/something") }, errName},
	"a name with a step back":              {func(f forged) { f.rename(one, "archive/../../") }, errName},
	"a name with backslashes":              {func(f forged) { f.rename(one, `archive\data\1`) }, errName},
	"a name with a NUL":                    {func(f forged) { f.rename(one, "archive/data/\x00") }, errName},
	"a name that is no text":               {func(f forged) { f.rename(one, "archive/data/\xff") }, errName},
	"a name in another folder":             {func(f forged) { f.rename(one, "brchive/data/1") }, errName},
	"a name that its header does not have": {func(f forged) { copy(f.central(one)[centralBytes:], "archive/data/7") }, errContradiction},
	"flags that its header does not have":  {func(f forged) { f.local(zero)[6] = 0 }, errContradiction},
	"a checksum in its header":             {func(f forged) { put32(f.local(zero)[14:], 77) }, errContradiction},
	"a size in its header":                 {func(f forged) { put32(f.local(zero)[22:], 77) }, errContradiction},
	"a checksum in the directory":          {func(f forged) { put32(f.central(zero)[16:], 77) }, errContradiction},
	"a header longer than the file":        {func(f forged) { put16(f.local(zero)[28:], 65535) }, errBounds},
	"a header that is a little longer":     {func(f forged) { put16(f.local(zero)[28:], binary.LittleEndian.Uint16(f.local(zero)[28:])+1) }, ErrMalformed},
	"another checksum in the descriptor":   {func(f forged) { f.b[bytes.Index(f.b, []byte(signDescriptor))+4] ^= 1 }, errContradiction},
	"another size in the descriptor":       {func(f forged) { f.b[bytes.Index(f.b, []byte(signDescriptor))+8] ^= 1 }, errContradiction},
	"a descriptor without its signature":   {func(f forged) { f.b[bytes.Index(f.b, []byte(signDescriptor))] ^= 1 }, errContradiction},
	"a name that leaves the directory":     {func(f forged) { put16(f.central(zero)[28:], 65535) }, errBounds},
	"extra fields that are none":           {func(f forged) { put16(f.central(zero)[30:], 4) }, ErrMalformed},
	"extra fields too short":               {func(f forged) { put16(f.central(zero)[30:], 3) }, ErrMalformed},
	"fewer records than there are":         {func(f forged) { f.count(7) }, errContradiction},
	"more records than there are":          {func(f forged) { f.count(9) }, ErrMalformed},
	"more records than fit":                {func(f forged) { f.count(60000) }, errContradiction},
	"endless records": {func(f forged) {
		f.count(math.MaxUint16)
		put64(f.end64()[24:], 1<<40)
		put64(f.end64()[32:], 1<<40)
	}, errLimit},
	"an endless directory": {func(f forged) {
		put32(f.end()[12:], math.MaxUint32)
		put64(f.end64()[40:], 1<<40)
	}, errLimit},
	"a negative directory": {func(f forged) {
		put32(f.end()[12:], math.MaxUint32)
		put64(f.end64()[40:], 1<<63)
	}, errBounds},
	"a directory elsewhere": {func(f forged) {
		put32(f.end()[16:], 64)
		put64(f.end64()[48:], 64)
	}, errContradiction},
	"two ends that differ":        {func(f forged) { put32(f.end()[16:], 64) }, errContradiction},
	"a locator to elsewhere":      {func(f forged) { put64(f.end64()[end64Bytes+8:], 0) }, ErrMalformed},
	"an archive of several parts": {func(f forged) { put16(f.end()[4:], 1) }, ErrMalformed},
	"a comment":                   {func(f forged) { put16(f.end()[20:], 1) }, ErrMalformed},
	"another pickle": {func(f forged) {
		f.b[bytes.Index(f.b, []byte("text"))] = 'n'
	}, errChecksum},
}

// count sets the number of records.
func (f forged) count(n uint16) {
	put16(f.end()[8:], n)
	put16(f.end()[10:], n)
	put64(f.end64()[24:], uint64(n))
	put64(f.end64()[32:], uint64(n))
}

func TestOpenRefusesZipTricks(t *testing.T) {
	for name, c := range tricks {
		t.Run(name, func(t *testing.T) {
			b := good(t)
			c.do(forged{b})
			if _, err := Open(t.Context(), reader(b), int64(len(b))); !errors.Is(err, c.want) || !errors.Is(err, ErrMalformed) {
				t.Errorf("Open = %v; want %v", err, c.want)
			}
		})
	}
}

// archiveOf returns an archive of the records: names and contents by turns.
func archiveOf(t testing.TB, records ...string) []byte {
	t.Helper()
	z := &zipLayout{}
	for i := 0; i < len(records); i += 2 {
		z.known(records[i], []byte(records[i+1]))
	}
	z.finish()
	return fill(t, &Layout{Parts: z.parts, Size: z.at}, nil)
}

const emptyDict = "\x80\x02}."

func TestOpenRefusesForeignArchives(t *testing.T) {
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"nothing":                   {nil, errTruncated},
		"text":                      {[]byte("hello, this is a file of something else"), ErrMalformed},
		"an archive of PyTorch 0.1": {slicesOf(257, "ustar", 300), ErrTar},
		"only an end":               {good(t)[len(good(t))-endBytes32:], ErrMalformed},
		"big-endian":                {archiveOf(t, "data.pkl", emptyDict, "byteorder", "big", "version", "3\n"), ErrByteOrder},
		"no version":                {archiveOf(t, "data.pkl", emptyDict), ErrVersion},
		"version 0":                 {archiveOf(t, "data.pkl", emptyDict, "version", "0\n"), ErrVersion},
		"version 11":                {archiveOf(t, "data.pkl", emptyDict, "version", "11\n"), ErrVersion},
		"a version of words":        {archiveOf(t, "data.pkl", emptyDict, "version", "three"), ErrVersion},
		"a long version":            {archiveOf(t, "data.pkl", emptyDict, "version", strings.Repeat("1", 100)), errLimit},
		"another format":            {archiveOf(t, "data.pkl", emptyDict, "version", "3\n", ".format_version", "2"), ErrVersion},
		"no pickle":                 {archiveOf(t, "version", "3\n"), ErrMalformed},
		"an empty pickle":           {archiveOf(t, "data.pkl", "", "version", "3\n"), ErrMalformed},
		"two pickles":               {archiveOf(t, "data.pkl", emptyDict+emptyDict, "version", "3\n"), ErrMalformed},
	} {
		if _, err := Open(t.Context(), reader(c.b), int64(len(c.b))); !errors.Is(err, c.want) || !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: Open = %v; want %v", name, err, c.want)
		}
	}
	old := archiveOf(t, "data.pkl", emptyDict, ".data/version", "2\n")
	if _, err := Open(t.Context(), reader(old), int64(len(old))); err != nil {
		t.Errorf("the version where PyTorch 1.5 kept it: Open = %v", err)
	}
	if _, err := Open(t.Context(), reader(nil), -1); !errors.Is(err, errBounds) {
		t.Errorf("Open of -1 bytes = %v; want %v", err, errBounds)
	}
}

// slicesOf returns n bytes that hold text at a place.
func slicesOf(at int, text string, n int) []byte {
	b := make([]byte, n)
	copy(b[at:], text)
	return b
}

// A pickle too large is refused before it is read.
func TestLargePickle(t *testing.T) {
	z := &zipLayout{}
	z.storage("data.pkl", content{slot: &Slot{}, bytes: maxPickle + 1})
	z.known("version", []byte("3\n"))
	z.finish()
	v := newVirtual(t, &Layout{Parts: z.parts, Size: z.at})
	if _, err := Open(t.Context(), v.read, v.size); !errors.Is(err, errLimit) || v.bytes > 1<<20 {
		t.Errorf("Open = %v after %d bytes; want %v", err, v.bytes, errLimit)
	}
}

func TestOpenRefusesTruncatedFiles(t *testing.T) {
	for _, b := range [][]byte{good(t), fromTorch(t, "views.pt"), fromTorch(t, "views_legacy.pt")} {
		for n := range b {
			if _, err := Open(t.Context(), reader(b[:n]), int64(n)); !errors.Is(err, ErrMalformed) {
				t.Fatalf("the first %d of %d bytes: Open = %v; want %v", n, len(b), err, ErrMalformed)
			}
		}
		if _, err := Open(t.Context(), reader(append(b, 0)), int64(len(b))+1); !errors.Is(err, ErrMalformed) {
			t.Errorf("one byte more: Open = %v; want %v", err, ErrMalformed)
		}
	}
}

// A changed byte is noticed or harmless: all but the tensors has a checksum or is stored
// twice.
func TestChangedBytesAreDetectedOrHarmless(t *testing.T) {
	b := good(t)
	f := must.Get(Open(t.Context(), reader(b), int64(len(b))))(t)
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 0x55
		g, err := Open(t.Context(), reader(bad), int64(len(bad)))
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("byte %d: Open = %v; want %v", i, err, ErrMalformed)
			}
			continue
		}
		if diff := cmp.Diff(f.Root, g.Root); diff != "" {
			t.Errorf("byte %d changes the file unnoticed:\n%s", i, diff)
		}
	}
}

// Archives that another program packed again have no descriptors and no padding,
// and they have sizes in the headers.
func TestOpenOrdinaryArchives(t *testing.T) {
	b := ordinary("archive/data.pkl", "\x80\x02K\x07.", "archive/version", "3\n", "archive/data/0", "unused")
	f, err := Open(t.Context(), reader(b), int64(len(b)))
	if err != nil || f.Root != any(int64(7)) {
		t.Errorf("Open = %+v, %v; want 7", f, err)
	}
}

// ordinary returns an archive as other programs write it.
func ordinary(records ...string) []byte {
	var b, dir []byte
	le := binary.LittleEndian
	for i := 0; i < len(records); i += 2 {
		name, data := records[i], records[i+1]
		crc := crc32.ChecksumIEEE([]byte(data))
		var h []byte
		h = le.AppendUint16(h, 20)
		h = append(h, make([]byte, 8)...)
		h = le.AppendUint32(h, crc)
		h = le.AppendUint32(le.AppendUint32(h, uint32(len(data))), uint32(len(data)))
		h = le.AppendUint32(h, uint32(len(name)))
		dir = append(le.AppendUint16(append(dir, signCentral...), 20), h...)
		dir = append(dir, make([]byte, 10)...)
		dir = append(le.AppendUint32(dir, uint32(len(b))), name...)
		b = append(append(append(append(b, signLocal...), h...), name...), data...)
	}
	at, n := len(b), uint16(len(records)/2)
	b = le.AppendUint32(append(append(b, dir...), signEnd...), 0)
	b = le.AppendUint16(le.AppendUint16(b, n), n)
	b = le.AppendUint32(le.AppendUint32(b, uint32(len(dir))), uint32(at))
	return le.AppendUint16(b, 0)
}

// A caller that gives up gets its own error, not one about the file.
func TestOpenStopsWithContext(t *testing.T) {
	for name, b := range map[string][]byte{"zip": good(t), "stream": fromTorch(t, "views_legacy.pt")} {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := Open(ctx, func(_ context.Context, p []byte, off int64) error {
			cancel() // after the last look at it before the pickle is decoded
			copy(p, b[off:])
			return nil
		}, int64(len(b)))
		if !errors.Is(err, context.Canceled) || errors.Is(err, ErrMalformed) {
			t.Errorf("%s: Open = %v; want %v", name, err, context.Canceled)
		}
	}
}
