// Package ocdbt reads the databases of TensorStore's OCDBT driver: keys with values, in a B-tree
// that lies in many small files. It does not know what the keys mean, and reads the newest
// version only. The contract is at Open and Database.
package ocdbt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// Manifest is the name of the file that makes a folder a database.
const Manifest = "manifest.ocdbt"

// numbered matches the names of manifests with a number.
var numbered = regexp.MustCompile(`^manifest\.[0-9a-f]{16}$`)

// Database is the newest version of a database.
type Database struct {
	// Values are the values in the order of their keys. No key is there twice.
	Values []Value
	// Records are the manifests and nodes that were read. All of them have checksums.
	Records []Record
}

// Value is a value of a database.
type Value struct {
	Key string
	// Inline is the value itself if it lies in a node. Otherwise it is nil, and the value is at
	// Offset of File, as it is and without a checksum.
	Inline         []byte
	File           string
	Offset, Length int64
	// Node is the node with the key.
	Node *Record
}

// Record is a range of a file with a checksum of its own.
type Record struct {
	File           string
	Offset, Length int64
}

const (
	// maxRecord bounds the size of a record, stored and decoded. Orbax asks for nodes of at most
	// 100,000,000 bytes.
	maxRecord = 128 << 20
	// maxWindow bounds the memory of the decompressor.
	maxWindow = maxRecord
	// maxHeight bounds the height of a tree.
	maxHeight = 32
	// The bounds of a tree: the number of keys and nodes, the total size of nodes, and the total
	// size of keys and inline values. A small hostile tree may refer to the same node many times.
	maxKeys      = 8 << 20
	maxNodes     = 1 << 20
	maxNodeBytes = 1 << 30
	maxBytes     = 256 << 20
)

// Open reads the database in the folder dir of store, which is empty or ends in a slash. Names of files in
// the result are relative to the store. The error is a *storage.FileError that wraps
// storage.ErrCorrupt if a record is malformed, missing, or differs from its checksum, and
// storage.ErrVersion if it is of an unknown version. It wraps fs.ErrNotExist if there is no manifest.
func Open(ctx context.Context, store blob.Store, dir string) (*Database, error) {
	o := &opener{store: store, dir: dir, db: &Database{}}
	defer o.close()

	m, err := o.manifest(ctx, dir+Manifest)
	if err == nil && m.numbered {
		m, err = o.newest(ctx)
	}
	if err != nil || m.root == nil {
		return o.db, err
	}
	return o.db, o.node(ctx, m.root, int(m.height), "", "")
}

// opener reads a database.
type opener struct {
	store blob.Store
	dir   string
	db    *Database
	nodes int64 // bytes of nodes, decompressed
	bytes int64 // of keys and inline values

	r    blob.Reader // the file that was read last; nil: none
	name string
}

func (o *opener) close() {
	if o.r != nil {
		o.r.Close()
		o.r = nil
	}
}

// damaged returns the error for a file with malformed content.
func damaged(file, format string, args ...any) error {
	return &storage.FileError{File: file, Err: fmt.Errorf("%w: %w", storage.ErrCorrupt, fmt.Errorf(format, args...))}
}

// named returns an error of a decoder as the error of a record in a file.
func named(r Record, what string, err error) error {
	kind := storage.ErrCorrupt
	if errors.Is(err, errVersion) {
		kind = storage.ErrVersion
	}
	return &storage.FileError{File: r.File, Err: fmt.Errorf("%w: the %s at %d+%d: %w", kind, what, r.Offset, r.Length, err)}
}

// manifest reads a manifest.
func (o *opener) manifest(ctx context.Context, file string) (*manifest, error) {
	b, err := blob.ReadAll(ctx, o.store, file, maxRecord)
	if errors.Is(err, blob.ErrTooLarge) {
		return nil, damaged(file, "%w", err)
	}
	if err != nil {
		return nil, err
	}

	r := Record{file, 0, int64(len(b))}
	body, err := decodeRecord(b, manifestMagic)
	if err != nil {
		return nil, named(r, "manifest", err)
	}
	m, err := decodeManifest(body)
	if err != nil {
		return nil, named(r, "manifest", err)
	}
	o.db.Records = append(o.db.Records, r)
	return m, nil
}

// newest reads the manifest with the largest number.
func (o *opener) newest(ctx context.Context) (*manifest, error) {
	last := ""
	for info, err := range o.store.List(ctx, o.dir+"manifest.") {
		if err != nil {
			return nil, err
		}
		if numbered.MatchString(strings.TrimPrefix(info.Name, o.dir)) {
			last = info.Name // the names are in order
		}
	}
	if last == "" {
		return nil, damaged(o.dir+Manifest, "it refers to manifests with numbers, and there are none")
	}

	m, err := o.manifest(ctx, last)
	if err == nil && m.numbered {
		err = damaged(last, "it refers to another manifest")
	}
	return m, err
}

// node reads a node of the given height, and all below it. prefix is the beginning of its keys,
// and base the folder that its names of files are relative to.
func (o *opener) node(ctx context.Context, at *pointer, height int, prefix, base string) error {
	rec, err := o.place(at, base)
	if err != nil {
		return err
	}

	b, err := o.read(ctx, rec)
	if err != nil {
		return err
	}
	body, err := decodeRecord(b, nodeMagic)
	if err != nil {
		return named(rec, "node", err)
	}
	n, err := decodeNode(body)
	if err != nil {
		return named(rec, "node", err)
	}
	if int(n.height) != height || height > maxHeight {
		return named(rec, "node", fmt.Errorf("a node of height %d; want %d, at most %d", n.height, height, maxHeight))
	}
	o.nodes += int64(len(body))
	if o.db.Records = append(o.db.Records, rec); len(o.db.Records) > maxNodes || o.nodes > maxNodeBytes {
		return named(rec, "node", errTooMany)
	}

	base += at.file.path[:at.file.base]
	for i := range n.entries {
		e := &n.entries[i]
		if err := o.entry(ctx, n, e, &rec, prefix, base); err != nil {
			return err
		}
	}
	return nil
}

var errTooMany = errors.New("the tree has too many keys or nodes")

// entry adds the value of an entry of a leaf, or the values below an entry of an inner node.
func (o *opener) entry(ctx context.Context, n *node, e *entry, rec *Record, prefix, base string) error {
	if n.height > 0 {
		return o.node(ctx, &e.at, int(n.height)-1, prefix+e.key[:e.common], base)
	}

	v := Value{Key: prefix + e.key, Inline: e.inline, Node: rec}
	if k := len(o.db.Values); k > 0 && o.db.Values[k-1].Key >= v.Key {
		return named(*rec, "node", fmt.Errorf("key %.200q comes after %.200q", v.Key, o.db.Values[k-1].Key))
	}
	if o.bytes += int64(len(v.Key) + len(v.Inline)); o.bytes > maxBytes || len(o.db.Values) >= maxKeys {
		return named(*rec, "node", errTooMany)
	}

	if v.Inline == nil {
		at, err := o.place(&e.at, base)
		if err != nil {
			return named(*rec, "node", err)
		}
		v.File, v.Offset, v.Length = at.File, at.Offset, at.Length
	} else {
		v.Inline = bytes.Clone(v.Inline) // the node is large
	}

	o.db.Values = append(o.db.Values, v)
	return nil
}

// place returns the place of a pointer, with the name of its file relative to the store.
func (o *opener) place(p *pointer, base string) (Record, error) {
	name := o.dir + base + p.file.path
	if err := blob.CheckName(name); err != nil || path.Clean(name) != name {
		return Record{}, damaged(o.dir+Manifest, "it refers to the file %.200q, which cannot be", name)
	}
	return Record{name, p.offset, p.length}, nil
}

// read reads a record.
func (o *opener) read(ctx context.Context, at Record) ([]byte, error) {
	if o.r == nil || o.name != at.File {
		o.close()
		r, err := o.store.Open(ctx, at.File)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, damaged(at.File, "the file is missing: it has a node of the database")
		}
		if err != nil {
			return nil, err
		}
		o.r, o.name = r, at.File
	}

	if at.Length > maxRecord || at.Offset > o.r.Size() || at.Length > o.r.Size()-at.Offset {
		return nil, damaged(at.File, "a node of %d bytes at %d of %d", at.Length, at.Offset, o.r.Size())
	}
	b := make([]byte, at.Length)
	return b, o.r.ReadAt(ctx, b, at.Offset)
}

// Check returns an error if the bytes of a record differ from their checksum.
func Check(b []byte) error {
	_, err := checkRecord(b)
	return err
}

// inflate decompresses zstd, up to maxRecord bytes.
func inflate(b []byte) ([]byte, error) {
	d, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	defer d.Close()

	out, err := io.ReadAll(io.LimitReader(d, maxRecord+1))
	if err == nil && len(out) > maxRecord {
		err = fmt.Errorf("more than %d bytes", maxRecord)
	}
	return out, err
}
