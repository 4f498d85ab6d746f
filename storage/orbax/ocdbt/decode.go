package ocdbt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// The magic numbers of records.
const (
	manifestMagic = 0x0cdb3a2a
	nodeMagic     = 0x0cdb20de
)

// errVersion reports a record in a version that is not read.
var errVersion = errors.New("an unknown version")

// maxPaths bounds the total length of the paths in a table of data files: each path may repeat
// the one before it.
const maxPaths = 64 << 20

// missing is the offset and length of the root of an empty tree.
const missing = math.MaxUint64

// headBytes are the magic number and the length of a record, sumBytes its checksum.
const (
	headBytes = 12
	sumBytes  = 4
)

// checkRecord returns a record without its length and its checksum, or an error if its length or
// its checksum is wrong.
func checkRecord(b []byte) ([]byte, error) {
	if len(b) < headBytes+2+sumBytes {
		return nil, fmt.Errorf("%d bytes are no record", len(b))
	}
	if n := binary.LittleEndian.Uint64(b[4:]); n != uint64(len(b)) {
		return nil, fmt.Errorf("it has a length of %d in itself", n)
	}
	body, sum := b[:len(b)-sumBytes], binary.LittleEndian.Uint32(b[len(b)-sumBytes:])
	if crc32c.Checksum(body) != sum {
		return nil, errors.New("its bytes differ from the checksum")
	}
	return body, nil
}

// decodeRecord checks a record and returns its content, decompressed.
func decodeRecord(b []byte, magic uint32) ([]byte, error) {
	body, err := checkRecord(b)
	if err != nil {
		return nil, err
	}
	if m := binary.BigEndian.Uint32(b); m != magic {
		return nil, fmt.Errorf("magic number %#08x; want %#08x", m, magic)
	}

	r := wire.NewReader(body[headBytes:])
	version, compression := r.Uvarint(), r.Uvarint()
	switch {
	case r.Err() != nil:
		return nil, r.Err()
	case version != 0:
		return nil, fmt.Errorf("%w: %d", errVersion, version)
	case compression == 0:
		return r.Raw(r.Len()), nil
	case compression != 1:
		return nil, fmt.Errorf("%w: compression %d", errVersion, compression)
	}
	return inflate(r.Raw(r.Len()))
}

// dataFile is an entry of a table of data files. The first base bytes of the path are the folder
// to which the paths in the nodes of the file are relative.
type dataFile struct {
	path string
	base int
}

// pointer is a place in a data file.
type pointer struct {
	file           *dataFile
	offset, length int64
}

// manifest is the content of a manifest, as far as a reader of the newest version needs it.
type manifest struct {
	numbered bool // the versions are in files with numbers
	root     *pointer
	height   uint8
}

func decodeManifest(body []byte) (*manifest, error) {
	r := wire.NewReader(body)
	m := &manifest{}
	r.Raw(16) // uuid
	kind := r.Uvarint()
	r.Uvarint() // the limit of inline values
	r.Uvarint() // the limit of nodes
	r.Byte()    // the arity of the tree of versions
	switch compression := r.Uvarint(); {
	case r.Err() == nil && (compression > 1 || kind > 1):
		return nil, fmt.Errorf("%w: kind %d, compression %d", errVersion, kind, compression)
	case compression == 1:
		r.Raw(4) // the level
	}

	if kind == 1 {
		m.numbered = true
		if r.Len() == 0 { // in the file without a number
			return m, r.Err()
		}
	}

	files := decodeFiles(r)
	m.decodeVersions(r, files)
	decodeOlder(r, files)
	return m, r.Done()
}

// decodeVersions decodes the newest versions. The last one counts.
func (m *manifest) decodeVersions(r *wire.Reader, files []dataFile) {
	const least = 16 // bytes of a version
	n := r.Count(least)
	column(r, n) // generations
	heights := r.Raw(n)
	file, offset, length := column(r, n), column(r, n), column(r, n)
	for range 3 { // numbers of keys and bytes
		column(r, n)
	}
	r.Raw(8 * n) // times
	if r.Err() != nil || n == 0 {
		return
	}

	k := n - 1
	if offset[k] == missing && length[k] == missing {
		return
	}
	p := pointer{}
	p.set(r, files, file[k], offset[k], length[k])
	m.root, m.height = &p, heights[k]
}

// decodeOlder decodes the pointers to nodes of older versions, which are not used.
func decodeOlder(r *wire.Reader, files []dataFile) {
	const least = 14
	n := r.Count(least)
	for range 5 { // generation, file, offset, length, number of generations
		column(r, n)
	}
	r.Raw(9 * n) // times and heights
}

// column reads n numbers. It returns nil after an error.
func column(r *wire.Reader, n int) []uint64 {
	if n > r.Len() {
		r.Fail("a column of %d numbers in %d bytes", n, r.Len())
		return nil
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = r.Uvarint()
	}
	if r.Err() != nil {
		return nil
	}
	return out
}

// texts reads the lengths of n texts, each relative to the one before it, then between, and then
// the bytes of the texts. They have at most most bytes in total.
func texts(r *wire.Reader, n int, most int64, between func()) []string {
	prefixes := column(r, max(0, n-1))
	suffixes := column(r, n)
	between()
	if r.Err() != nil {
		return nil
	}

	out := make([]string, n)
	total, last := int64(0), ""
	for i := range out {
		k := uint64(0)
		if i > 0 {
			k = prefixes[i-1]
		}
		if k > uint64(len(last)) || suffixes[i] > uint64(r.Len()) {
			r.Fail("text %d has %d bytes of the one before it, which has %d, and %d bytes of its own", i, k, len(last), suffixes[i])
			return nil
		}
		if total += int64(k + suffixes[i]); total > most {
			r.Fail("texts of more than %d bytes", most)
			return nil
		}
		last = last[:k] + string(r.Raw(int(suffixes[i])))
		out[i] = last
	}
	return out
}

// decodeFiles decodes a table of data files.
func decodeFiles(r *wire.Reader) []dataFile {
	n := r.Count(2)
	var bases []uint64
	paths := texts(r, n, maxPaths, func() { bases = column(r, n) })
	if r.Err() != nil {
		return nil
	}

	out := make([]dataFile, n)
	for i, p := range paths {
		if bases[i] > uint64(len(p)) {
			r.Fail("a path of %d bytes with a base of %d", len(p), bases[i])
			return nil
		}
		out[i] = dataFile{p, int(bases[i])}
	}
	return out
}

// set checks the numbers of a pointer.
func (p *pointer) set(r *wire.Reader, files []dataFile, file, offset, length uint64) {
	if file >= uint64(len(files)) || offset > math.MaxInt64 || length > math.MaxInt64-offset {
		r.Fail("%d bytes at %d of file %d of %d", length, offset, file, len(files))
		return
	}
	*p = pointer{&files[file], int64(offset), int64(length)}
}

// node is a node of a B-tree.
type node struct {
	height  uint8 // 0: a leaf
	entries []entry
}

// entry is an entry of a node. Its key is relative to the prefix of the node.
type entry struct {
	key    string
	common int    // of an inner node: the bytes of the key that all keys below begin with
	inline []byte // nil: the value or the node is at at
	at     pointer
}

// decodeNode decodes the content of a node. Inline values are parts of body.
func decodeNode(body []byte) (*node, error) {
	r := wire.NewReader(body)
	n := &node{height: r.Byte()}
	files := decodeFiles(r)
	if n.height == 0 {
		n.decodeLeaf(r, files)
	} else {
		n.decodeInner(r, files)
	}
	return n, r.Done()
}

func (n *node) decodeLeaf(r *wire.Reader, files []dataFile) {
	const least = 3 // bytes of an entry
	k := r.Count(least)
	keys := texts(r, k, maxBytes, func() {})
	lengths, kinds := column(r, k), r.Raw(k)
	if r.Err() != nil {
		return
	}

	apart := 0
	for _, kind := range kinds {
		if kind > 1 {
			r.Fail("a value of kind %d", kind)
			return
		}
		apart += int(kind)
	}

	file, offset := column(r, apart), column(r, apart)
	n.entries = make([]entry, k)
	for i := range n.entries {
		if r.Err() != nil {
			return
		}

		e := &n.entries[i]
		e.key = keys[i]
		switch {
		case kinds[i] == 1:
			e.at.set(r, files, file[0], offset[0], lengths[i])
			file, offset = file[1:], offset[1:]
		case lengths[i] > uint64(r.Len()):
			r.Fail("a value of %d bytes", lengths[i])
		default:
			e.inline = r.Raw(int(lengths[i]))
		}
	}
}

func (n *node) decodeInner(r *wire.Reader, files []dataFile) {
	const least = 9
	k := r.Count(least)
	var common []uint64
	keys := texts(r, k, maxBytes, func() { common = column(r, k) })
	file, offset, length := column(r, k), column(r, k), column(r, k)
	for range 3 { // numbers of keys and bytes
		column(r, k)
	}
	if r.Err() != nil {
		return
	}

	n.entries = make([]entry, k)
	for i := range n.entries {
		e := &n.entries[i]
		if common[i] > uint64(len(keys[i])) {
			r.Fail("a key of %d bytes with a common prefix of %d", len(keys[i]), common[i])
			return
		}
		e.key, e.common = keys[i], int(common[i])
		e.at.set(r, files, file[i], offset[i], length[i])
	}
}
