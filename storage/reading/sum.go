package reading

import (
	"container/list"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage"
)

// Sum is the checksum of a record of a file.
type Sum struct {
	// Record is what the format calls the record.
	Record string
	// Offset and End are the begin and the end of its bytes in the file.
	Offset, End int64
	// CRC is their CRC-32 with the polynomial of zip.
	CRC uint32
}

const (
	// maxSpans bounds the parts of records that are remembered, and maxOfRecord
	// those of one record.
	maxSpans, maxOfRecord = 1 << 16, 1 << 14
	// leastRow is the width from which rows that are read one by one are compared:
	// there are too many smaller ones to keep.
	leastRow = 1 << 10
)

// span is a part of a record that was read, with the checksum of its bytes.
type span struct {
	begin, end int64
	crc        uint32
}

// sums compares records with their checksums while they are read, in any parts and
// order. It keeps the checksums of the parts until they are the whole record. If
// they take too much memory, it forgets the record that was read least recently,
// which is then not compared.
type sums struct {
	limit, each int // spans of all records, and of one

	mu      sync.Mutex
	records map[recordID]*list.Element // of *partial; guarded by mu
	recent  list.List                  // the last one read first; guarded by mu
	spans   int                        // of all records; guarded by mu
}

// recordID identifies a record.
type recordID struct {
	file string
	sum  Sum
}

// partial is a record that was read in part.
type partial struct {
	id    recordID
	spans []span // in order, no two of them neighbours
	bad   bool   // all of it was read, and its checksum is wrong
}

func newSums() *sums {
	return &sums{limit: maxSpans, each: maxOfRecord, records: map[recordID]*list.Element{}}
}

// see takes bytes of a record, those from begin on. crc, if not nil, is their
// checksum. Once all bytes of the record were seen it returns an error that
// wraps storage.ErrCorrupt unless their checksum is right, and so does every later
// call for the record.
func (s *sums) see(file string, sum *Sum, begin int64, p []byte, crc *uint32) error {
	id := recordID{file, *sum}
	end := min(begin+int64(len(p)), sum.End)
	for at := max(begin, sum.Offset); at < end; {
		gap, bad := s.missing(id, at, end)
		if bad {
			return id.damaged()
		}
		if gap.begin == gap.end {
			return nil
		}
		if crc != nil && gap.begin == begin && gap.end-gap.begin == int64(len(p)) {
			gap.crc = *crc
		} else {
			gap.crc = crc32.ChecksumIEEE(p[gap.begin-begin : gap.end-begin])
		}
		added, err := s.add(id, gap)
		if err != nil {
			return err
		}
		if added {
			at = gap.end
		}
	}
	return nil
}

func (id *recordID) damaged() error {
	return fmt.Errorf("%w: record %q at %d of %s does not have its checksum", storage.ErrCorrupt, id.sum.Record, id.sum.Offset, id.file)
}

// missing returns the first part from at to end that was not seen yet, an empty
// one if all was seen, and whether the record is known to be damaged.
func (s *sums) missing(id recordID, at, end int64) (span, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.find(id)
	if p == nil {
		return span{begin: at, end: end}, false
	}
	i, in := p.search(at)
	if in {
		at = min(p.spans[i].end, end)
		i++
	}
	if i < len(p.spans) {
		end = min(end, p.spans[i].begin)
	}
	return span{begin: at, end: max(at, end)}, p.bad
}

// search returns the index of the span that at lies in, or that of the one after
// it.
func (p *partial) search(at int64) (int, bool) {
	i, _ := slices.BinarySearchFunc(p.spans, at, func(x span, at int64) int {
		if x.end <= at {
			return -1
		}
		return 1
	})
	return i, i < len(p.spans) && p.spans[i].begin <= at
}

// find returns what is known of a record.
func (s *sums) find(id recordID) *partial {
	e := s.records[id]
	if e == nil {
		return nil
	}
	s.recent.MoveToFront(e)
	return e.Value.(*partial)
}

// add adds a span, unless another reader saw some of its bytes meanwhile.
func (s *sums) add(id recordID, x span) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.find(id)
	if p == nil {
		p = &partial{id: id}
		s.records[id] = s.recent.PushFront(p)
	}
	before := len(p.spans)
	if !p.insert(x) {
		return false, nil
	}
	s.spans += len(p.spans) - before
	if whole := p.spans[0]; whole.begin != id.sum.Offset || whole.end != id.sum.End {
		s.trim(p)
		return true, nil
	}
	if p.spans[0].crc != id.sum.CRC {
		p.bad = true
		return true, id.damaged()
	}
	s.forget(p)
	return true, nil
}

// insert puts a span into its place and joins it with its neighbours. It reports
// false if it overlaps another span.
func (p *partial) insert(x span) bool {
	i, in := p.search(x.begin)
	if in || p.bad || i < len(p.spans) && p.spans[i].begin < x.end {
		return false
	}
	from, to := i, i
	if i > 0 && p.spans[i-1].end == x.begin {
		x = join(p.spans[i-1], x)
		from--
	}
	if i < len(p.spans) && p.spans[i].begin == x.end {
		x = join(x, p.spans[i])
		to++
	}
	p.spans = slices.Replace(p.spans, from, to, x)
	return true
}

func join(a, b span) span {
	return span{a.begin, b.end, crc32c.JoinIEEE(a.crc, b.crc, b.end-b.begin)}
}

// trim forgets what is too much: a record in too many pieces, and the records
// that were read least recently.
func (s *sums) trim(p *partial) {
	if len(p.spans) > s.each {
		s.forget(p)
	}
	for s.spans > s.limit {
		s.forget(s.recent.Back().Value.(*partial))
	}
}

func (s *sums) forget(p *partial) {
	s.recent.Remove(s.records[p.id])
	delete(s.records, p.id)
	s.spans -= len(p.spans)
}
