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

// Sum is the checksum of a record: a part of a file for which the format stores a
// checksum, such as a member of a zip archive.
type Sum struct {
	// Record is the name of the record in the format.
	Record string
	// Offset and End are the offsets in the file at which the record begins and ends.
	Offset, End int64
	// CRC is the CRC-32 of its bytes with the polynomial of zip (IEEE).
	CRC uint32
}

const (
	// maxSpans bounds the number of spans that are kept for all records, and
	// maxOfRecord the number for one record.
	maxSpans, maxOfRecord = 1 << 16, 1 << 14
	// leastRow is the smallest width of rows that are added to the checksum. Narrower
	// rows would need too many spans.
	leastRow = 1 << 10
)

// span is a part of a record that was read, with the checksum of its bytes.
type span struct {
	begin, end int64
	crc        uint32
}

// sums compares records with their checksums while they are read. The parts of a record
// may come in any order. sums keeps the checksums of the parts until it has the whole
// record. If it has too many parts, it forgets the record that was read least recently,
// which is then not compared.
type sums struct {
	limit, each int // bounds of the number of spans of all records, and of one record

	mu      sync.Mutex
	records map[recordID]*list.Element // of *partial; guarded by mu
	recent  list.List                  // the most recently read record first; guarded by mu
	spans   int                        // number of spans of all records; guarded by mu
}

type recordID struct {
	file string
	sum  Sum
}

// partial is a record that was read in part.
type partial struct {
	id    recordID
	spans []span // sorted, with a gap between each two of them
	bad   bool   // the whole record was read, and its checksum is wrong
}

func newSums() *sums {
	return &sums{limit: maxSpans, each: maxOfRecord, records: map[recordID]*list.Element{}}
}

// see adds bytes to the checksum of a record. p holds the bytes of the file from begin
// on. crc, if not nil, is their checksum. If p completes the record and the checksum is
// wrong, see returns an error that wraps storage.ErrCorrupt, and so does every later
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

// missing returns the first part between at and end that was not seen yet. It is empty
// if all of it was seen. missing also reports whether the record is known to be
// damaged.
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

// search returns the index of the span that contains at, and true. If no span contains
// at, it returns the index of the next span, and false.
func (p *partial) search(at int64) (int, bool) {
	i, _ := slices.BinarySearchFunc(p.spans, at, func(x span, at int64) int {
		if x.end <= at {
			return -1
		}
		return 1
	})
	return i, i < len(p.spans) && p.spans[i].begin <= at
}

// find returns the spans of a record, or nil, and marks the record as the most recently
// read one.
func (s *sums) find(id recordID) *partial {
	e := s.records[id]
	if e == nil {
		return nil
	}
	s.recent.MoveToFront(e)
	return e.Value.(*partial)
}

// add adds a span, and returns true. If another goroutine has added some of its bytes
// meanwhile, it adds nothing and returns false. The error means that the record is
// complete and its checksum is wrong.
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

// insert adds a span and joins it with its neighbours. It returns false if the span
// overlaps another one or the record is damaged.
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

// trim forgets p if it has too many spans, and the records that were read least
// recently if all records together have too many.
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
