package reading

import (
	"cmp"
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
	// maxRuns bounds the number of runs that are kept for all records, and maxOfRecord
	// the number for one record.
	maxRuns, maxOfRecord = 1 << 16, 1 << 14
	// leastRow is the smallest width of rows that are added to the checksum. Narrower
	// rows would need too many runs.
	leastRow = 1 << 10
)

// run is a contiguous part of a record that was read, with the checksum of its bytes.
type run struct {
	begin, end int64
	crc        uint32
}

// sums compares records with their checksums while they are read. The bytes of a record
// may come in any order. sums keeps the checksums of the runs until it has the whole
// record. If it has too many runs, it forgets the record that was read least recently,
// which is then not compared.
type sums struct {
	limit, each int // bounds of the number of runs of all records, and of one record

	mu      sync.Mutex
	records map[recordID]*list.Element // of *partial; guarded by mu
	recent  list.List                  // the most recently read record first; guarded by mu
	runs    int                        // number of runs of all records; guarded by mu
}

type recordID struct {
	file string
	sum  Sum
}

// partial is a record that was read in part.
type partial struct {
	id   recordID
	runs []run // sorted, with gaps between them
	bad  bool  // the whole record was read, and its checksum is wrong
}

func newSums() *sums {
	return &sums{limit: maxRuns, each: maxOfRecord, records: map[recordID]*list.Element{}}
}

// add adds bytes to the checksum of a record. p holds the bytes of the file from begin
// on. crc, if not nil, is their checksum. If p completes the record and the checksum is
// wrong, add returns an error that wraps storage.ErrCorrupt, and so does every later
// call for the record.
func (s *sums) add(file string, sum *Sum, begin int64, p []byte, crc *uint32) error {
	x := run{begin: max(begin, sum.Offset), end: min(begin+int64(len(p)), sum.End)}
	if x.begin >= x.end {
		return nil
	}
	p = p[x.begin-begin : x.end-begin]
	if crc != nil && x.begin == begin && x.end == begin+int64(len(p)) {
		x.crc = *crc
	} else {
		x.crc = crc32.ChecksumIEEE(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.find(recordID{file, *sum})
	s.runs -= len(r.runs)
	r.add(x, p)
	s.runs += len(r.runs)
	if whole := r.runs[0]; whole.begin != sum.Offset || whole.end != sum.End {
		s.trim(r)
		return nil
	}
	if r.bad = r.runs[0].crc != sum.CRC; r.bad {
		return fmt.Errorf("%w: record %q at %d of %s has a wrong checksum", storage.ErrCorrupt, sum.Record, sum.Offset, file)
	}
	s.forget(r)
	return nil
}

// find returns a record and marks it as the most recently read one.
func (s *sums) find(id recordID) *partial {
	e := s.records[id]
	if e == nil {
		e = s.recent.PushFront(&partial{id: id})
		s.records[id] = e
	}
	s.recent.MoveToFront(e)
	return e.Value.(*partial)
}

// add adds x, whose bytes are p, and joins it with its neighbours. It ignores the bytes
// of x that were added before.
func (r *partial) add(x run, p []byte) {
	from, _ := slices.BinarySearchFunc(r.runs, x.begin, func(y run, at int64) int { return cmp.Compare(y.end, at) })
	to, _ := slices.BinarySearchFunc(r.runs, x.end+1, func(y run, at int64) int { return cmp.Compare(y.begin, at) })
	var all run // x, the runs that it touches, and the gaps between them
	for i := from; i <= to; i++ {
		begin, end := max(x.begin, all.end), x.end
		if i < to {
			end = min(end, r.runs[i].begin)
		}
		if begin == x.begin && end == x.end {
			all = join(all, x)
		} else if begin < end {
			all = join(all, run{begin, end, crc32.ChecksumIEEE(p[begin-x.begin : end-x.begin])})
		}
		if i < to {
			all = join(all, r.runs[i])
		}
	}
	r.runs = slices.Replace(r.runs, from, to, all)
}

// join returns the run of a and b. If a is empty, it returns b.
func join(a, b run) run {
	if a.begin == a.end {
		return b
	}
	return run{a.begin, b.end, crc32c.JoinIEEE(a.crc, b.crc, b.end-b.begin)}
}

// trim forgets r if it has too many runs, and the records that were read least
// recently if all records together have too many runs.
func (s *sums) trim(r *partial) {
	if len(r.runs) > s.each {
		s.forget(r)
	}
	for s.runs > s.limit {
		s.forget(s.recent.Back().Value.(*partial))
	}
}

func (s *sums) forget(r *partial) {
	s.recent.Remove(s.records[r.id])
	delete(s.records, r.id)
	s.runs -= len(r.runs)
}
