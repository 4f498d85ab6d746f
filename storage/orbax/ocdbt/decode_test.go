package ocdbt

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// fixture returns the files of a database of TensorStore, by name.
func fixture(t testing.TB, name string) map[string][]byte {
	t.Helper()
	f := must.Get(os.Open("../testdata/fixtures.tar.gz"))(t)
	defer f.Close()
	out := map[string][]byte{}
	for r := tar.NewReader(must.Get(gzip.NewReader(f))(t)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.Do(t, err)
		if rest, ok := strings.CutPrefix(path.Clean(h.Name), "orbax/"+name+"/input/"); ok && h.Typeflag == tar.TypeReg {
			out[rest] = must.Get(io.ReadAll(r))(t)
		}
	}
	if len(out) == 0 {
		t.Fatalf("no fixture %s", name)
	}
	return out
}

// databases are fixtures with all kinds of records.
var databases = []string{"ts_deep_btree_zarr2", "ts_deep_btree_zarr3", "ts_numbered_manifest", "old053_zarr2_ocdbt", "prng_keys"}

func storeOf(t testing.TB, files map[string][]byte) *mem.Store {
	t.Helper()
	s := new(mem.Store)
	for name, b := range files {
		storagetest.Put(t, s, name, b)
	}
	return s
}

// records calls use with the content of every record in files.
func records(t testing.TB, files map[string][]byte, use func(magic uint32, body []byte)) {
	t.Helper()
	for _, b := range files {
		for at := 0; at+headBytes < len(b); at++ {
			magic := binary.BigEndian.Uint32(b[at:])
			if magic != manifestMagic && magic != nodeMagic {
				continue
			}
			if n := binary.LittleEndian.Uint64(b[at+4:]); n <= uint64(len(b)-at) {
				if body, err := decodeRecord(b[at:][:n], magic); err == nil {
					use(magic, body)
				}
			}
		}
	}
}

// Trees of several levels, uncompressed nodes and manifests with numbers have all of their keys, in order.
func TestOpen(t *testing.T) {
	for _, name := range databases {
		db, err := Open(t.Context(), storeOf(t, fixture(t, name)), "")
		if err != nil {
			t.Errorf("%s: Open = %v", name, err)
			continue
		}
		if len(db.Values) < 10 || len(db.Records) < 2 {
			t.Errorf("%s: %d values in %d records", name, len(db.Values), len(db.Records))
		}
		deep := strings.HasPrefix(name, "ts_deep")
		if deep && len(db.Records) < 10 {
			t.Errorf("%s: %d records; want a tree of several levels", name, len(db.Records))
		}
	}
}

// Every flipped bit of a record that is read is an error that names the file.
func TestFlippedBits(t *testing.T) {
	for _, name := range []string{"ts_deep_btree_zarr3", "ts_numbered_manifest"} {
		files := fixture(t, name)
		db := must.Get(Open(t.Context(), storeOf(t, files), ""))(t)
		for _, r := range db.Records {
			for _, at := range []int64{0, 5, r.Length / 2, r.Length - 1} {
				was := files[r.File]
				files[r.File] = bytes.Clone(was)
				files[r.File][r.Offset+at] ^= 4
				_, err := Open(t.Context(), storeOf(t, files), "")
				if f, ok := errors.AsType[*storage.FileError](err); !ok || f.File != r.File || !errors.Is(err, storage.ErrCorrupt) {
					t.Errorf("%s: byte %d of %s: Open = %v; want %v that names it", name, r.Offset+at, r.File, err, storage.ErrCorrupt)
				}
				files[r.File] = was
			}
		}
	}
}

// record returns a record with the right checksum.
func record(magic uint32, version, compression byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, magic)
	b = binary.LittleEndian.AppendUint64(b, uint64(headBytes+2+len(body)+sumBytes))
	b = append(append(b, version, compression), body...)
	return binary.LittleEndian.AppendUint32(b, crc32c.Checksum(b))
}

// manifestOf returns the content of a manifest with one version: a root of that height and length in a file.
func manifestOf(kind uint64, file string, height byte, length int) []byte {
	w := wire.Writer{B: make([]byte, 16)}
	w.Uvarint(kind)
	w.Uvarint(1024)
	w.Uvarint(1 << 20)
	w.Byte(4)
	w.Uvarint(0)
	if kind == 1 {
		return w.B
	}
	w.Uvarint(1)
	w.Uvarint(uint64(len(file)))
	w.Uvarint(0)
	w.B = append(w.B, file...)
	w.Uvarint(1)
	w.Uvarint(1)
	w.Byte(height)
	for _, n := range []uint64{0, 0, uint64(length), 1, 0, 0} {
		w.Uvarint(n)
	}
	w.U64(1)
	w.Uvarint(0)
	return w.B
}

// inner returns the content of an inner node with n entries that all refer to one node.
func inner(file string, height byte, n, length int) []byte {
	var w wire.Writer
	w.Byte(height)
	w.Uvarint(1)
	w.Uvarint(uint64(len(file)))
	w.Uvarint(0)
	w.B = append(w.B, file...)
	w.Uvarint(uint64(n))
	for range n - 1 {
		w.Uvarint(0)
	}
	for range n {
		w.Uvarint(1)
	}
	for range n {
		w.Uvarint(1)
	}
	for i := range n {
		w.B = append(w.B, byte('a'+i))
	}
	for _, v := range []uint64{0, 0, uint64(length), 1, 1, 1} {
		for range n {
			w.Uvarint(v)
		}
	}
	return w.B
}

// Malformed databases are errors that name the file; none takes long.
func TestMalformed(t *testing.T) {
	leaf := record(nodeMagic, 0, 0, []byte{0, 0, 0}) // without entries
	self := record(nodeMagic, 0, 0, inner("n", 1, 20, 0))
	cycle := record(nodeMagic, 0, 0, inner("n", 9, 20, len(self)))
	for claim, c := range map[string]struct {
		manifest []byte
		node     []byte
		want     error
	}{
		"an empty leaf":                 {record(manifestMagic, 0, 0, manifestOf(0, "n", 0, len(leaf))), leaf, nil},
		"an empty manifest":             {nil, leaf, storage.ErrCorrupt},
		"another magic":                 {record(nodeMagic, 0, 0, manifestOf(0, "n", 0, len(leaf))), leaf, storage.ErrCorrupt},
		"another version":               {record(manifestMagic, 1, 0, manifestOf(0, "n", 0, len(leaf))), leaf, storage.ErrVersion},
		"another compression":           {record(manifestMagic, 0, 7, manifestOf(0, "n", 0, len(leaf))), leaf, storage.ErrVersion},
		"another kind":                  {record(manifestMagic, 0, 0, manifestOf(2, "n", 0, len(leaf))), leaf, storage.ErrVersion},
		"not zstd":                      {record(manifestMagic, 0, 1, []byte("zstd")), leaf, storage.ErrCorrupt},
		"bytes after the end":           {record(manifestMagic, 0, 0, append(manifestOf(0, "n", 0, len(leaf)), 1)), leaf, storage.ErrCorrupt},
		"no numbers":                    {record(manifestMagic, 0, 0, manifestOf(1, "", 0, 0)), leaf, storage.ErrCorrupt},
		"a file that is missing":        {record(manifestMagic, 0, 0, manifestOf(0, "x", 0, len(leaf))), leaf, storage.ErrCorrupt},
		"a path that leads out":         {record(manifestMagic, 0, 0, manifestOf(0, "../n", 0, len(leaf))), leaf, storage.ErrCorrupt},
		"a node that is too long":       {record(manifestMagic, 0, 0, manifestOf(0, "n", 0, 1<<20)), leaf, storage.ErrCorrupt},
		"another height":                {record(manifestMagic, 0, 0, manifestOf(0, "n", 1, len(leaf))), leaf, storage.ErrCorrupt},
		"a node that refers to itself":  {record(manifestMagic, 0, 0, manifestOf(0, "n", 9, len(cycle))), cycle, storage.ErrCorrupt},
		"a tree that is too high":       {record(manifestMagic, 0, 0, manifestOf(0, "n", 200, len(cycle))), record(nodeMagic, 0, 0, inner("n", 200, 1, len(cycle))), storage.ErrCorrupt},
		"a count without bounds":        {record(manifestMagic, 0, 0, manifestOf(0, "n", 0, 0x20)), record(nodeMagic, 0, 0, append([]byte{0, 0}, binary.AppendUvarint(nil, 1<<60)...)), storage.ErrCorrupt},
		"a table without bounds":        {record(manifestMagic, 0, 0, append(make([]byte, 21), binary.AppendUvarint(nil, 1<<60)...)), leaf, storage.ErrCorrupt},
		"a kind of value that is not 1": {record(manifestMagic, 0, 0, manifestOf(0, "n", 0, 26)), record(nodeMagic, 0, 0, []byte{0, 0, 1, 1, 'k', 0, 2, 0}), storage.ErrCorrupt},
	} {
		_, err := Open(t.Context(), storeOf(t, map[string][]byte{Manifest: c.manifest, "n": c.node}), "")
		if !errors.Is(err, c.want) {
			t.Errorf("%s: Open = %v; want %v", claim, err, c.want)
		}
		if _, ok := errors.AsType[*storage.FileError](err); err != nil && !ok {
			t.Errorf("%s: Open = %v; want an error that names the file", claim, err)
		}
	}
}

func FuzzManifest(f *testing.F) {
	for _, name := range databases {
		records(f, fixture(f, name), func(magic uint32, body []byte) {
			if magic == manifestMagic {
				f.Add(body)
			}
		})
	}
	f.Add(manifestOf(0, "n", 3, 7))
	f.Add(manifestOf(1, "n", 3, 7))
	f.Fuzz(func(t *testing.T, body []byte) {
		if m, err := decodeManifest(body); err == nil && m.root != nil && (m.root.file == nil || m.root.offset < 0 || m.root.length < 0) {
			t.Errorf("%+v", m.root)
		}
	})
}

func FuzzNode(f *testing.F) {
	for _, name := range databases {
		records(f, fixture(f, name), func(magic uint32, body []byte) {
			if magic == nodeMagic {
				f.Add(body)
			}
		})
	}
	f.Add(inner("n", 1, 20, 3))
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := decodeNode(body)
		if err != nil {
			return
		}
		for _, e := range n.entries {
			if e.common > len(e.key) || e.inline == nil && (e.at.file == nil || e.at.offset < 0 || e.at.length < 0) {
				t.Errorf("%+v", e)
			}
		}
	})
}

func FuzzRecord(f *testing.F) {
	for _, b := range fixture(f, "ts_numbered_manifest") {
		f.Add(b)
	}
	f.Add(record(nodeMagic, 0, 1, []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0x58, 0xff, 0xff}))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if len(b) > headBytes+sumBytes { // with the right length and the right checksum, whatever the rest is
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint64(b[4:], uint64(len(b)))
			binary.LittleEndian.PutUint32(b[len(b)-sumBytes:], crc32c.Checksum(b[:len(b)-sumBytes]))
		}
		decodeRecord(b, nodeMagic)
	})
}
