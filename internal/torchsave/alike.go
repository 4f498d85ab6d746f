package torchsave

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/value"
)

// OpenFunc opens the file i for the time of a call of fn.
type OpenFunc func(ctx context.Context, i int, fn func(read ReadFunc, size int64) error) error

// OpenAlike opens n files of torch.save that the ranks of a job have saved. It is faster than Open
// and takes less memory if many pickles are alike: if they differ only in numbers and strings that
// their tensors do not depend on, such as the device of a tensor or the number of the rank. Such
// pickles are decoded once, and File.Root is the same for all of them: File.Own returns what
// a value in it is in a file.
//
// OpenAlike does not read the headers of records with tensors in files that PyTorch has written:
// it follows from the directory where their bytes begin. Callers must compare the bytes with the
// checksum in the directory. Check compares the headers.
//
// It returns an error for each file: see Open. parallel is the number of files that are read at
// the same time. Each takes memory for its directory or its pickle.
func OpenAlike(ctx context.Context, n, parallel int, open OpenFunc) ([]*File, []error) {
	o := &alikeOpener{open: open, parallel: parallel, files: make([]*File, n), errs: make([]error, n), pickles: make([]pickleRange, n)}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	o.each(ctx, all, o.directory)

	var quick []int
	for i, f := range o.files {
		if f != nil && f.quick != nil {
			quick = append(quick, i)
		}
	}
	rest := o.share(ctx, quick)
	if len(rest) < len(quick) {
		rest = o.share(ctx, rest) // they may be alike among themselves
	}
	o.each(ctx, rest, o.decode)

	for i, f := range o.files {
		if f != nil && f.quick != nil {
			f.quick.sizes = nil
		}
		if cause := context.Cause(ctx); cause != nil && o.errs[i] == nil {
			o.errs[i] = cause
		}
	}
	return o.files, o.errs
}

// alikeOpener opens files.
type alikeOpener struct {
	open     OpenFunc
	parallel int
	files    []*File
	errs     []error
	pickles  []pickleRange
}

// pickleRange is the record of a pickle.
type pickleRange struct {
	archive *archive
	record  *zipEntry
}

// each calls fn for files, in parallel, and notes its errors.
func (o *alikeOpener) each(ctx context.Context, files []int, fn func(ctx context.Context, i int, read ReadFunc, size int64) error) {
	var g errgroup.Group
	g.SetLimit(o.parallel)
	for _, i := range files {
		g.Go(func() error {
			o.errs[i] = o.open(ctx, i, func(read ReadFunc, size int64) error { return fn(ctx, i, read, size) })
			return nil
		})
	}
	_ = g.Wait()
}

// directory reads the directory of a file. If PyTorch has not written the file, it opens the file
// as Open does.
func (o *alikeOpener) directory(ctx context.Context, i int, read ReadFunc, size int64) (err error) {
	q, a, err := quickArchive(ctx, read, size)
	if err == nil && q != nil {
		r := a.byName[recordPickle]
		o.pickles[i] = pickleRange{a, r}
		o.files[i] = &File{PickleOffset: r.data, PickleEnd: r.end(), Folder: a.folder, quick: q}
		return nil
	}
	o.files[i], err = Open(ctx, read, size)
	return err
}

// content reads the pickle of a file.
func (o *alikeOpener) content(ctx context.Context, i int, read ReadFunc) ([]byte, error) {
	p := &o.pickles[i]
	a := *p.archive
	a.src = &source{read: read, size: a.src.size}
	return a.content(ctx, p.record, maxPickle)
}

// decode decodes the pickle of a file.
func (o *alikeOpener) decode(ctx context.Context, i int, read ReadFunc, _ int64) error {
	data, err := o.content(ctx, i, read)
	if err == nil {
		o.files[i].Root, err = decode(ctx, data, o.files[i].storage)
	}
	if err != nil {
		o.files[i] = nil
	}
	return err
}

// share decodes the pickle of the first file, and gives its value to the files that are alike. Files
// that differ in operands that the value depends on, such as sizes, get a value for each class of
// them. share returns the files that differ in more.
func (o *alikeOpener) share(ctx context.Context, files []int) (rest []int) {
	if len(files) < 2 {
		return files
	}

	first, others := files[0], files[1:]
	var data []byte
	o.each(ctx, files[:1], func(ctx context.Context, i int, read ReadFunc, _ int64) (err error) {
		data, err = o.content(ctx, i, read)
		return err
	})
	ops := pickle.NewOpcodes(data)
	if o.errs[first] != nil || ops == nil {
		return slices.Concat(others, files[:1]) // decode reports it
	}

	var mu sync.Mutex
	varying := make([]uint64, len(data)/64+1)
	own := make([]*operands, len(o.files))
	o.each(ctx, others, func(ctx context.Context, i int, read ReadFunc, _ int64) error {
		b, err := o.content(ctx, i, read)
		if err != nil {
			return nil // decode reports it
		}
		x := &operands{}
		if !ops.Differences(b, x.add) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		own[i] = x
		for _, at := range x.at {
			varying[at/64] |= 1 << (at % 64)
		}
		return nil
	})

	own[first] = &operands{}
	var alike []int
	for _, i := range files {
		if own[i] != nil {
			alike = append(alike, i)
		} else {
			rest = append(rest, i)
		}
	}
	vary := operandsAt(varying)
	fixed, left := o.decodeFor(ctx, data, vary, nil, own, alike)
	if len(left) == len(alike) {
		return slices.Concat(others, files[:1])
	}

	byClass := map[string][]int{}
	for _, i := range left {
		class := own[i].among(data, fixed)
		byClass[class] = append(byClass[class], i)
	}
	var g errgroup.Group
	g.SetLimit(o.parallel)
	for _, class := range byClass {
		g.Go(func() error {
			vary := slices.Clone(vary)
			for i := range vary {
				if _, ok := slices.BinarySearch(fixed, vary[i].At); ok {
					vary[i].Value = own[class[0]].operand(vary[i].At, pickle.IsText(data[vary[i].At]))
				}
			}
			_, left := o.decodeFor(ctx, data, vary, fixed, own, class)
			mu.Lock()
			defer mu.Unlock()
			rest = append(rest, left...)
			return nil
		})
	}
	_ = g.Wait()
	return rest
}

// decodeFor decodes a pickle for files that differ from it in operands, which are in own. The files
// agree in the operands at known, which are in vary. It returns the operands that the value
// depends on, and the files that differ in others of them.
func (o *alikeOpener) decodeFor(ctx context.Context, data []byte, vary []pickle.Operand, known []int, own []*operands, files []int) (fixed, left []int) {
	f := o.files[files[0]]
	var used []storageSize
	root, fixed, err := decodeVarying(ctx, data, vary, func(id any) (any, error) {
		s, err := f.storage(id)
		if s, ok := s.(*Storage); ok {
			n, _ := storageNumber(s.Key)
			used = append(used, storageSize{n, s.numBytes()})
		}
		return s, err
	})
	if err != nil {
		return nil, files // decode reports it
	}

	others := slices.DeleteFunc(slices.Clone(fixed), func(at int) bool { _, ok := slices.BinarySearch(known, at); return ok })
	for _, i := range files {
		if own[i].among(data, others) != "" || !o.files[i].quick.holds(used) {
			left = append(left, i)
		}
	}
	if slices.Contains(left, files[0]) {
		return fixed, files
	}
	for _, i := range files {
		if !slices.Contains(left, i) {
			o.files[i].Root, o.files[i].like, o.files[i].operands = root, f, own[i]
		}
	}
	return fixed, left
}

// operandsAt returns the operands at the positions of the bits that are set.
func operandsAt(set []uint64) []pickle.Operand {
	var out []pickle.Operand
	for i, w := range set {
		for at := 64 * i; w != 0; at, w = at+1, w>>1 {
			if w&1 != 0 {
				out = append(out, pickle.Operand{At: at})
			}
		}
	}
	return out
}

// operands are the operands in which a pickle differs from another one, by the offsets of their
// opcodes there, in order. There may be some for each tensor.
type operands struct {
	at      []uint32
	values  []int64 // integers, and positions in strings
	strings []string
	known   map[string]int64
}

func (x *operands) add(at int, v any) {
	n, _ := v.(int64)
	if s, is := v.(string); is {
		var ok bool
		if n, ok = x.known[s]; !ok {
			if x.known == nil {
				x.known = map[string]int64{}
			}
			n = int64(len(x.strings))
			x.strings = append(x.strings, s)
			x.known[s] = n
		}
	}
	x.at, x.values = append(x.at, uint32(at)), append(x.values, n)
}

// operand returns the operand at an offset, which is a text or an integer, or nil if it does not
// differ.
func (x *operands) operand(at int, text bool) any {
	i, ok := slices.BinarySearch(x.at, uint32(at))
	switch {
	case !ok:
		return nil
	case text:
		return x.strings[x.values[i]]
	}
	return x.values[i]
}

// of returns the operand that varies.
func (x *operands) of(v *pickle.Varying) any {
	_, text := v.Value.(string)
	if own := x.operand(v.At, text); own != nil {
		return own
	}
	return v.Value
}

// among returns a text that describes the operands at some offsets of data. It is empty if there
// are none.
func (x *operands) among(data []byte, offsets []int) string {
	var out []byte
	i := 0
	for _, at := range offsets {
		for i < len(x.at) && int(x.at[i]) < at {
			i++
		}
		if i < len(x.at) && int(x.at[i]) == at {
			out = binary.AppendUvarint(out, uint64(at))
			if pickle.IsText(data[at]) {
				s := x.strings[x.values[i]]
				out = append(binary.AppendUvarint(out, uint64(len(s))), s...)
			} else {
				out = binary.AppendVarint(out, x.values[i])
			}
		}
	}
	return string(out)
}

// Forget drops Root, which is large. Own must not be called afterwards.
func (f *File) Forget() { f.Root, f.operands = nil, nil }

// Like returns the file that f shares its Root with, or nil.
func (f *File) Like() *File { return f.like }

// Own returns what v, a part of Root, is in f. v is not changed.
func (f *File) Own(v any) any {
	if f.like == nil || !Varies(v) {
		return v
	}
	made := map[any]any{}
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		switch v := v.(type) {
		case *pickle.Varying:
			return f.operands.of(v), true, nil
		case *Tensor:
			if made[v] == nil {
				made[v] = f.OwnTensor(v)
			}
			return made[v], true, nil
		case *Storage:
			if made[v] == nil {
				made[v] = f.ownStorage(v)
			}
			return made[v], true, nil
		}
		return nil, false, nil
	}}
	out, err := r.Replace(v)
	if err != nil {
		return v // it is nested deeper than a pickle can be
	}
	return out
}

// Varies reports whether a part of Root may differ between the files that share it.
func Varies(v any) bool {
	switch v := v.(type) {
	case *pickle.Varying, *Tensor, *Storage:
		return true
	case value.Tuple:
		return slices.ContainsFunc(v, Varies)
	case []any:
		return slices.ContainsFunc(v, Varies)
	case map[string]any:
		for _, e := range v {
			if Varies(e) {
				return true
			}
		}
	case *value.Object:
		return Varies(v.Args) || Varies(v.Kwargs) || Varies(v.State) || Varies(v.Items) || len(v.Pairs) > 0
	case *value.Dict, *value.Set:
		return true // rare: not looked into
	}
	return false
}

// OwnTensor returns what t, a tensor in Root, is in f.
func (f *File) OwnTensor(t *Tensor) *Tensor {
	if f.like == nil || f.like == f {
		return t
	}
	out := *t
	moved := f.Place(t) - t.Offset
	out.Offset, out.End = t.Offset+moved, t.End+moved
	out.Sum = f.quick.sum(t.StorageKey, f.Folder, t.Sum.End-t.Sum.Offset)
	return &out
}

// CRC returns the checksum of the storage of t, a tensor in Root, in f. The tensor has a checksum.
func (f *File) CRC(t *Tensor) uint32 {
	if f.like == nil || f.like == f {
		return t.Sum.CRC
	}
	n, _ := storageNumber(t.StorageKey)
	return f.quick.crcs[n]
}

func (f *File) ownStorage(s *Storage) *Storage {
	out := *s
	out.Sum = f.quick.sum(s.Key, f.Folder, s.numBytes())
	out.Offset, out.End = out.Sum.Offset, out.Sum.End
	return &out
}

// Place returns the offset of t, a tensor in Root, in f.
func (f *File) Place(t *Tensor) int64 {
	if f.like == nil || f.like == f {
		return t.Offset
	}
	n, _ := storageNumber(t.StorageKey)
	return t.Offset - t.Sum.Offset + f.quick.places[n]
}

// quickDirectory has the places of storages, by their numbers.
type quickDirectory struct {
	places []int64 // zero: there is no such storage
	crcs   []uint32
	sizes  []int64 // nil after the opening
	size   int64   // of the file
}

// storageSize is the size of a storage with a number.
type storageSize struct {
	number int
	size   int64
}

// sum returns the checksum of a storage.
func (q *quickDirectory) sum(key, folder string, size int64) *Sum {
	n, _ := storageNumber(key)
	return &Sum{Record: folder + "/" + recordStorages + key, Offset: q.places[n], End: q.places[n] + size, CRC: q.crcs[n]}
}

// holds reports whether all storages have these sizes.
func (q *quickDirectory) holds(used []storageSize) bool {
	for _, s := range used {
		if s.number >= len(q.places) || q.places[s.number] == 0 || q.sizes[s.number] != s.size {
			return false
		}
	}
	return true
}

// storageNumber returns the number that the key of a storage is.
func storageNumber(key string) (int, bool) {
	if len(key) == 0 || len(key) > 9 || key[0] == '0' && len(key) > 1 {
		return 0, false
	}
	n := 0
	for i := range len(key) {
		if key[i] < '0' || key[i] > '9' {
			return 0, false
		}
		n = 10*n + int(key[i]-'0')
	}
	return n, true
}

// storage returns the storage of a persistent id.
func (f *File) storage(id any) (any, error) {
	p, err := parseID(id, 5)
	if err != nil {
		return nil, err
	}

	n, ok := storageNumber(p.key)
	if !ok || n >= len(f.quick.places) || f.quick.places[n] == 0 {
		return nil, noStorage(p)
	}
	if size := f.quick.sizes[n]; size != p.bytes {
		return nil, otherSize(p, size)
	}
	sum := f.quick.sum(p.key, f.Folder, p.bytes)
	return &Storage{Key: p.key, DType: p.dtype, untyped: p.untyped, class: p.class, Offset: sum.Offset, End: sum.End, Sum: sum}, nil
}

func noStorage(p *storageID) error {
	return fmt.Errorf("%w: no record %q", errStorage, recordStorages+p.key)
}

func otherSize(p *storageID, size int64) error {
	return fmt.Errorf("%w: storage %q should have %d bytes, its record has %d", errStorage, p.key, p.bytes, size)
}

// quickArchive reads the directory of an archive of PyTorch. The archive has the records that are
// not storages. It returns nil if the archive differs from the archives of PyTorch.
func quickArchive(ctx context.Context, read ReadFunc, size int64) (*quickDirectory, *archive, error) {
	s, err := newSource(ctx, read, size)
	if err != nil {
		return nil, nil, err
	}
	if !strings.HasPrefix(string(s.head[:min(len(s.head), 4)]), signLocal) {
		return nil, nil, nil
	}
	d, err := findDirectory(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	b, err := s.bytes(ctx, d.offset, d.size)
	if err != nil {
		return nil, nil, err
	}

	q := &quickDirectory{places: make([]int64, d.count), crcs: make([]uint32, d.count), sizes: make([]int64, d.count), size: size}
	a := &archive{src: s}
	next := make([]int64, 0, 8) // where the record after each of a.records begins
	last := -1                  // the storage before
	var before zipEntry
	for i := range d.count {
		r, n, err := parseCentral(b, d.offset)
		if err != nil {
			return nil, nil, err
		}
		b = b[n:]
		if i > 0 && r.header <= before.header {
			return nil, nil, nil
		}
		if last >= 0 {
			if q.places[last] = placeOf(&before, r.header); q.places[last] == 0 {
				return nil, nil, nil
			}
		} else if i > 0 {
			next = append(next, r.header)
		}
		before, last = r, -1

		folder, rest, ok := strings.Cut(r.name, "/")
		if i == 0 {
			a.folder = folder
		}
		if !ok || folder != a.folder {
			return nil, nil, nil
		}
		if key, ok := strings.CutPrefix(rest, recordStorages); ok {
			k, ok := storageNumber(key)
			if !ok || int64(k) >= d.count || q.places[k] != 0 {
				return nil, nil, nil
			}
			q.places[k], q.crcs[k], q.sizes[k] = -1, r.crc, r.size
			last = k
			continue
		}
		if a.records = append(a.records, r); len(a.records) > maxOther {
			return nil, nil, nil
		}
	}
	if len(b) != 0 {
		return nil, nil, nil
	}
	if last >= 0 {
		if q.places[last] = placeOf(&before, d.offset); q.places[last] == 0 {
			return nil, nil, nil
		}
	} else {
		next = append(next, d.offset)
	}

	a.byName = make(map[string]*zipEntry, len(a.records))
	if err := a.name(); err != nil {
		return nil, nil, err
	}
	for i := range a.records {
		r := &a.records[i]
		if err := readHeader(ctx, s, r, d.offset); err != nil {
			return nil, nil, err
		}
		if err := checkDescriptor(ctx, s, r, next[i], nil); err != nil {
			return nil, nil, err
		}
	}
	if a.byName[recordPickle] == nil {
		return nil, nil, nil
	}
	return q, a, a.checkKind(ctx)
}

// maxOther bounds the records of an archive that are not storages. PyTorch writes seven.
const maxOther = 64

// recordAligned is what the offset of a record is a multiple of.
const recordAligned = 64

// placeOf returns where the bytes of a record begin, if they do as PyTorch writes them: their end is
// followed by a descriptor and by the next record. It returns zero if they do not.
func placeOf(r *zipEntry, next int64) int64 {
	ends := []int64{next}
	if r.flags&flagDescriptor != 0 {
		ends = []int64{next - descriptorBytes, next - descriptorBytes64}
	}
	for _, end := range ends {
		at := end - r.size
		least := r.header + localBytes + int64(len(r.name))
		if at%recordAligned == 0 && at >= least && at <= least+usualExtra {
			return at
		}
	}
	return 0
}

// checkQuick compares what the directory and the headers of a file say.
func (f *File) checkQuick(ctx context.Context, read ReadFunc) (records []zipEntry, err error) {
	s, err := newSource(ctx, read, f.quick.size)
	if err != nil {
		return nil, err
	}
	a, err := openArchive(ctx, s)
	if err != nil {
		return nil, err
	}
	for i := range a.records {
		r := &a.records[i]
		key := f.keyOf(r)
		if n, ok := storageNumber(key); ok && n < len(f.quick.places) && f.quick.places[n] != r.data {
			return nil, fmt.Errorf("%w: %q begins at %d, and %d follows from the directory", errContradiction, r.name, r.data, f.quick.places[n])
		}
	}
	return a.records, nil
}
