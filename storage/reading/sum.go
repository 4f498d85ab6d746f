package reading

import (
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"sync"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/plan"
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

// sums compares records with their checksums. The bytes of a record may come in any
// order: sums keeps the checksums of the runs until it has the whole record. If a record
// has too many runs, sums drops them, and the batch reads the record again.
type sums struct {
	limit, each int // bounds of the number of runs of all records, and of one record

	mu      sync.Mutex
	records map[recordID]*partial  // records that were read in part, and damaged ones; guarded by mu
	good    map[recordID]bool      // records that were whole and had the right checksum; guarded by mu
	busy    map[recordID]chan bool // records that a batch is reading, closed at its end; guarded by mu
	runs    int                    // number of runs of all records; guarded by mu
}

type recordID struct {
	file string
	sum  Sum
}

func (id *recordID) damaged() error {
	return fmt.Errorf("%w: record %q at %d of %s has a wrong checksum", storage.ErrCorrupt, id.sum.Record, id.sum.Offset, id.file)
}

// partial is a record that was read in part.
type partial struct {
	runs []run // sorted, with gaps between them
	bad  bool  // the whole record was read, and its checksum is wrong
	over bool  // it had too many runs; more of them are not kept
}

func newSums() *sums {
	return &sums{limit: maxRuns, each: maxOfRecord, records: map[recordID]*partial{}, good: map[recordID]bool{}, busy: map[recordID]chan bool{}}
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

	id := recordID{file, *sum}
	r := s.records[id]
	if r == nil {
		r = &partial{}
		s.records[id] = r
	}

	if r.over {
		return nil
	}

	s.runs -= len(r.runs)
	r.add(x, p)
	s.runs += len(r.runs)

	if whole := r.runs[0]; whole.begin == sum.Offset && whole.end == sum.End {
		if !s.compare(id, whole) {
			return id.damaged()
		}
		return nil
	}

	if len(r.runs) > s.each || s.runs > s.limit {
		s.runs -= len(r.runs)
		r.runs, r.over = nil, true
	}
	return nil
}

// compare reports whether a whole record has the right checksum, and notes it. The
// caller holds mu.
func (s *sums) compare(id recordID, whole run) bool {
	if r := s.records[id]; r != nil {
		s.runs -= len(r.runs)
		delete(s.records, id)
	}

	if whole.crc == id.sum.CRC {
		s.good[id] = true
		return true
	}

	s.runs++
	s.records[id] = &partial{runs: []run{whole}, bad: true}
	return false
}

// add adds x, which has the bytes p, and joins it with its neighbours. It ignores the bytes
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

// rest is a record in which a batch reads the parts that no read has covered.
type rest struct {
	id   recordID
	runs []*run // the whole record, in order
	gaps []*run // the runs that must be read
}

// Take implements Sink: it receives the bytes of a gap.
func (x *run) Take(p []byte) error {
	x.crc = crc32.ChecksumIEEE(p)
	return nil
}

// newRest returns the rest of a record in which runs were read. No gap has more than most bytes.
func newRest(id recordID, runs []run, most int64) *rest {
	x := &rest{id: id}
	at := id.sum.Offset
	fill := func(to int64) {
		for ; at < to; at = min(at+most, to) {
			gap := &run{begin: at, end: min(at+most, to)}
			x.runs, x.gaps = append(x.runs, gap), append(x.gaps, gap)
		}
	}
	for _, r := range runs {
		fill(r.begin)
		x.runs, at = append(x.runs, &r), r.end
	}

	fill(id.sum.End)
	return x
}

// claim returns the records that the caller must read and pass to release, and channels of
// records that other batches are reading. Records that are known to be good are in neither.
// If a record is damaged, claim returns it and claims no record.
func (s *sums) claim(ids []recordID, most int64) (mine []*rest, others []chan bool, bad *recordID) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, id := range ids {
		if r := s.records[id]; r != nil && r.bad {
			return nil, nil, &id
		}
	}

	for _, id := range ids {
		if s.good[id] {
			continue
		}

		if c := s.busy[id]; c != nil {
			others = append(others, c)
			continue
		}

		s.busy[id] = make(chan bool)
		var runs []run
		if r := s.records[id]; r != nil {
			runs = r.runs
		}
		mine = append(mine, newRest(id, runs, most))
	}

	return mine, others, nil
}

// release ends the claim of records. If they were read, it compares them with their
// checksums and returns a damaged one, or nil.
func (s *sums) release(mine []*rest, read bool) (bad *recordID) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, x := range mine {
		close(s.busy[x.id])
		delete(s.busy, x.id)
		if !read {
			continue
		}

		var whole run
		for _, r := range x.runs {
			whole = join(whole, *r)
		}

		if !s.compare(x.id, whole) {
			bad = &x.id
		}
	}

	return bad
}

// compareRecords compares the records that the batch has used with their checksums. It
// reads the rest of each, unless an earlier read has shown that the record is good, or
// another batch reads it at the same time.
func (b *batch) compareRecords(ctx context.Context) error {
	ids := slices.Collect(maps.Keys(b.records))
	for {
		mine, others, bad := b.c.sums.claim(ids, b.limits.most)
		if len(mine) > 0 {
			err := b.readRests(ctx, mine)
			if bad = b.c.sums.release(mine, err == nil); err != nil {
				return err
			}
		}

		if bad != nil {
			return plan.Named(b.records[*bad], bad.damaged())
		}
		if len(others) == 0 {
			return nil
		}

		for _, c := range others {
			select {
			case <-c:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

// readRests reads the gaps of records, in parallel and within the budget. It reads
// through the operating system's cache, because the next reads of a record that is read
// in slices want the same bytes.
func (b *batch) readRests(ctx context.Context, of []*rest) error {
	var requests []Request
	for _, x := range of {
		for _, gap := range x.gaps {
			requests = append(requests, Request{File: x.id.file, Offset: gap.begin, Width: gap.end - gap.begin, To: gap})
		}
	}

	st, err := Fetch(ctx, requests, FetchOptions{Open: b.c.openFile, ReadOptions: b.opts, Gap: b.limits.gap, Cached: true, Slow: b.storeGap > 0})
	b.stats.Read += st.Bytes
	b.stats.Requests += st.Requests
	return err
}
