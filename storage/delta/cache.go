package delta

import (
	"container/list"
	"runtime"
	"sync"
	"unique"

	"github.com/cairn-ckpt/cairn/blob"
)

// Cache keeps segments of files in memory, up to a number of bytes. If the cache has an
// earlier state of a segment, a reader of a delta file reads only the later changes of the
// segment, and a writer compares with the bytes in the cache instead of reading its base.
//
// The cache has one state of each segment. When a newer version of a file is read or
// written, its segments take the memory of the older ones. Bytes enter the cache without
// being verified: readers verify these bytes by the checksums of the checkpoint, and
// call Clear if the bytes are wrong.
// A nil *Cache stays empty. The methods are safe for concurrent use.
type Cache struct {
	mem *memory

	mu      sync.Mutex
	limit   int64           // guarded by mu
	entries map[slot]*entry // guarded by mu
	order   list.List       // of *entry, the one that was used last at the front; guarded by mu
	passed  int64           // bytes of all segments that were asked for; guarded by mu
	tables  map[unique.Handle[slotFile]]*keptTable
	stats   CacheStats // guarded by mu
}

// CacheStats has the size of a Cache and counts its uses.
type CacheStats struct {
	// Bytes is the size of the segments in the cache.
	Bytes int64
	// Hits counts the segments that were found in the cache, perhaps in an earlier state. Misses
	// counts the others.
	Hits, Misses int64
}

// slotFile is a file of a run, whatever the version.
type slotFile struct{ run, name string }

// slot is a segment of a file of a run, whatever the version.
type slot struct {
	file unique.Handle[slotFile]
	nth  int
}

// origin is a file with bodies.
type origin struct{ run, folder, name string }

// state identifies the bytes of a segment: the last body that makes them up. The zero state
// means that the bytes are unknown.
type state struct {
	file unique.Handle[origin]
	off  int64
	kind Kind
}

// entry is a segment in the cache. mu is held while the bytes are used.
type entry struct {
	slot slot
	at   *list.Element // in Cache.order; guarded by Cache.mu
	used int64         // Cache.passed at its last use; guarded by Cache.mu

	mu sync.Mutex
	block
	state state
	hash  Hash // of data, as the table says
	gone  bool // it is not in the cache any more
}

// keptTable is the table of a file that was opened last.
type keptTable struct {
	file unique.Handle[origin]
	size int64
	*Table
}

// NewCache returns a cache for that many bytes of segments. Tables of files come on top.
func NewCache(bytes int64) *Cache {
	c := &Cache{mem: new(memory), limit: bytes, entries: map[slot]*entry{}, tables: map[unique.Handle[slotFile]]*keptTable{}}
	runtime.AddCleanup(c, func(m *memory) { m.close() }, c.mem)
	return c
}

// SetLimit changes the number of bytes. Segments above a smaller one are removed when others
// enter.
func (c *Cache) SetLimit(bytes int64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = bytes
}

// Stats returns the statistics of the cache.
func (c *Cache) Stats() CacheStats {
	if c == nil {
		return CacheStats{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Clear removes all segments. It waits for readers and writers that are using one.
func (c *Cache) Clear() {
	if c == nil {
		return
	}
	c.mu.Lock()
	var all []*entry
	for _, e := range c.entries {
		all = append(all, e)
	}
	clear(c.tables)
	c.mu.Unlock()
	for _, e := range all {
		e.mu.Lock()
		c.mu.Lock()
		c.drop(e)
		c.mu.Unlock()
		e.mu.Unlock()
	}
}

// drop removes an entry. The caller holds e.mu and c.mu.
func (c *Cache) drop(e *entry) {
	if e.gone {
		return
	}
	e.gone, e.state = true, state{}
	delete(c.entries, e.slot)
	c.order.Remove(e.at)
	c.stats.Bytes -= int64(len(e.data))
	c.mem.put(e.block)
	e.block = block{}
}

// staleAfter is how many times the size of the cache must have been asked for before a
// segment that was not used meanwhile makes room for another one. A file that is larger
// than the cache and is read again and again would otherwise remove its own segments, each
// before it is used.
const staleAfter = 2

// room makes room for n more bytes. The caller holds mu.
func (c *Cache) room(n int64) bool {
	for at := c.order.Back(); at != nil && c.stats.Bytes+n > c.limit; {
		e := at.Value.(*entry)
		if c.stats.Bytes <= c.limit && c.passed-e.used <= staleAfter*c.limit {
			break
		}
		at = at.Prev()
		if e.mu.TryLock() {
			c.drop(e)
			e.mu.Unlock()
		}
	}
	return c.stats.Bytes+n <= c.limit
}

// Segments are the segments of one file in a Cache. A nil *Segments stays empty.
type Segments struct {
	cache  *Cache
	run    string // the folder above store
	folder string // of store
	slots  unique.Handle[slotFile]
}

// Of returns the segments of a file of the checkpoint in store. name is the same for the
// file in all checkpoints of a run. Of returns nil if the cache is nil or the store has no
// known parent.
func (c *Cache) Of(store blob.Store, name string) *Segments {
	if c == nil {
		return nil
	}
	parent, folder, err := blob.Parent(store)
	if err != nil {
		return nil
	}
	run := parent.String()
	return &Segments{cache: c, run: run, folder: folder, slots: unique.Make(slotFile{run, name})}
}

// origin returns the identity of a file with bodies.
func (s *Segments) origin(f File) unique.Handle[origin] {
	if f.Folder == "" {
		f.Folder = s.folder
	}
	return unique.Make(origin{s.run, f.Folder, f.Name})
}

// lock returns the entry of segment nth, of n bytes, for use by the caller only, until
// unlock. It waits for others that use it. It returns nil if there is no room.
func (s *Segments) lock(nth, n int) *entry {
	if s == nil {
		return nil
	}
	c, at := s.cache, slot{s.slots, nth}
	for {
		c.mu.Lock()
		c.passed += int64(n)
		e := c.entries[at]
		if e == nil {
			if !c.room(int64(n)) {
				c.stats.Misses++
				c.mu.Unlock()
				return nil
			}
			e = &entry{slot: at, block: c.mem.get(n)}
			e.at = c.order.PushFront(e)
			c.entries[at] = e
			c.stats.Bytes += int64(n)
		}
		e.used = c.passed
		c.order.MoveToFront(e.at)
		c.mu.Unlock()
		e.mu.Lock()
		if !e.gone && len(e.data) == n {
			return e
		}
		if !e.gone { // the file has another layout
			c.mu.Lock()
			c.drop(e)
			c.mu.Unlock()
		}
		e.mu.Unlock()
	}
}

// set says that the bytes of an entry that the caller has locked are those of a state.
func (e *entry) set(s state, h Hash) { e.state, e.hash = s, h }

// unlock ends the use of an entry. hit says whether its bytes were of use.
func (s *Segments) unlock(e *entry, hit bool) {
	e.mu.Unlock()
	c := s.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if hit {
		c.stats.Hits++
	} else {
		c.stats.Misses++
	}
}

// put puts the bytes of segment nth into the cache.
func (s *Segments) put(nth int, p []byte, h Hash, st state) {
	e := s.lock(nth, len(p))
	if e == nil {
		return
	}
	copy(e.data, p)
	e.set(st, h)
	e.mu.Unlock()
}

// table returns the table and the size of the delta file name, if they were kept.
func (s *Segments) table(name string) (*Table, int64) {
	if s == nil {
		return nil, 0
	}
	file := s.origin(File{Name: name})
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	if t := s.cache.tables[s.slots]; t != nil && t.file == file {
		return t.Table, t.size
	}
	return nil, 0
}

// keepTable keeps the table of the delta file name instead of the table of another version.
func (s *Segments) keepTable(name string, t *Table, size int64) {
	if s == nil {
		return
	}
	file := s.origin(File{Name: name})
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	s.cache.tables[s.slots] = &keptTable{file, size, t}
}
