package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/hosts"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/storage"
)

// Report describes the copies of a checkpoint.
type Report struct {
	SaveID string `json:"save_id"`
	// Bytes and Files count the copies of data files on all hosts, RankBytes what this rank has
	// copied to its host.
	Bytes     int64         `json:"bytes"`
	RankBytes int64         `json:"local_bytes"`
	Files     int           `json:"files"`
	Time      time.Duration `json:"copy_ns"`
	// RankHeld is how many of RankBytes this rank has not received, because its own state has them.
	RankHeld int64 `json:"local_held_bytes,omitempty"`
	// Alone means that there is only one host, so that there is no copy.
	Alone bool `json:"alone,omitempty"`
}

// Saved is what a rank has saved.
type Saved struct {
	SaveID string
	// Files are the data files of the rank. Last are the names of the files that rank 0 has
	// written after the data files of all ranks, the record last.
	Files []storage.File
	Last  []string
	// Copies is how many other hosts keep a copy of each file. The value of rank 0 counts. Zero:
	// DefaultCopies.
	Copies int
	// Rate bounds the bytes per second that each host receives. Zero: no bound.
	Rate int64
	// Of are the ranks whose files this rank copies from its own state, see Job.Replicas. Parts returns what it has
	// of a file.
	Of    []int
	Parts func(ctx context.Context, store blob.Store, name string) ([]hosts.Part, error)
}

// file is a file that other hosts copy.
type file struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	CRC32C uint32 `json:"crc32c"`

	held bool // this rank holds parts of it
}

// offer is what a rank has for other hosts.
type offer struct {
	Host   string `json:"host"`
	Copies int    `json:"copies"`
	Of     []int  `json:"of,omitempty"` // as in Saved
	Data   []file `json:"data,omitempty"`
	Last   []file `json:"last,omitempty"`
}

// Copy brings copies of a checkpoint that the ranks have just saved to other hosts. All ranks of g
// call it, and it fails on all of them or on no rank. folder is the folder of the checkpoint in the
// run. saved is the error of the save on this rank.
//
// Each host receives the index and the record, and the data files of the hosts that it is a partner
// of. A copy is compared with the checksum that the saver of the file has computed while it wrote
// it from the staged bytes, and is not kept if it differs.
func (j *Job) Copy(ctx context.Context, g group.Group, folder string, s Saved, saved error) (*Report, error) {
	start := time.Now()
	all, err := j.offers(ctx, g, folder, s, saved)
	if err != nil {
		return nil, err
	}
	rep := &Report{SaveID: s.SaveID, Alone: len(j.Hosts) == 1}
	copies := all[0].Copies
	mine, count, bytes := j.assign(g.Rank(), all, copies)
	rep.Files, rep.Bytes = count, bytes
	rate := j.rate(s.Rate)
	err = group.Each(ctx, group.StopEarly(g), "copy", func(ctx context.Context) (err error) {
		if j.receives(g.Rank()) {
			if err := j.drop(ctx, folder, all[0].Last); err != nil {
				return err
			}
		}
		if rep.RankBytes, rep.RankHeld, err = j.fetch(ctx, folder, mine, rate, s.Parts); blob.IsFull(err) {
			err = errors.Join(err, j.discard(ctx, folder, mine))
		}
		return err
	})
	if err != nil {
		return nil, err
	}

	// The record comes last: where it is, all data files have their copies.
	err = group.Each(ctx, group.StopEarly(g), "copy the record", func(ctx context.Context) error {
		if !j.receives(g.Rank()) {
			return nil
		}
		_, _, err := j.fetch(ctx, folder, map[string][]file{all[0].Host: all[0].Last}, rate, nil)
		return err
	})
	if err == nil && j.ranks[j.Host][0] == g.Rank() {
		if err := j.noteSums(ctx, folder, all, copies); err != nil && j.logger != nil { // no repairs
			j.logger.Warn("memory: the checksums of files are not kept", "run", j.Run, "error", err)
		}
	}
	if err != nil {
		return nil, err
	}
	if j.confirmed != copies { // on all ranks
		if err := group.Each(ctx, g, "leave out hosts that have left", func(context.Context) error { return j.confirm(copies) }); err != nil {
			return nil, err
		}
		j.confirmed = copies
		j.tellPartners(j.place(copies, keepersOf(all)))
		if rep.RankHeld > 0 {
			j.inform("memory: this rank copies files of other ranks from its own state", "ranks", s.Of, "bytes", rep.RankBytes, "held", rep.RankHeld)
		}
	}
	rep.Time = time.Since(start)
	return rep, nil
}

// offers returns the files of all ranks.
func (j *Job) offers(ctx context.Context, g group.Group, folder string, s Saved, saved error) ([]offer, error) {
	return group.Decide(ctx, g, "offer copies", group.JSON[offer](), group.JSON[[]offer](),
		func(ctx context.Context) (offer, error) {
			if saved != nil {
				return offer{}, fmt.Errorf("there is nothing to copy: %w", saved)
			}
			if err := j.Check(); err != nil {
				return offer{}, err
			}
			store, err := j.Root.OpenLocal(j.Run)
			if err != nil {
				return offer{}, err
			}
			// The generation before is removed next. Without its memory, the next save only takes longer.
			_ = store.KeepSpares()
			return j.offer(ctx, store, folder, s)
		},
		func(_ context.Context, all []offer) ([]offer, error) { return all, nil })
}

// receives reports whether a rank receives the index and the record for this host: its first rank does,
// unless rank 0 has written them here.
func (j *Job) receives(rank int) bool {
	here := j.ranks[j.Host]
	return here[0] == rank && here[0] != 0
}

// drop removes this host's copies of the files that a save has just replaced, such as the record, because the
// step was saved before. If the new copy then fails, no host has the record of a save that is gone.
func (j *Job) drop(ctx context.Context, folder string, replaced []file) error {
	store, err := j.Root.OpenLocal(j.Run)
	if err != nil {
		return err
	}
	for _, f := range replaced {
		if err := store.Remove(ctx, folder+"/"+f.Name); err != nil && !errors.Is(err, blob.ErrRemoved) {
			return err
		}
	}
	return nil
}

// fetch copies files to this host, each from the host that has saved it. No other host is asked: a
// host that has left the job may be silent, and in a large job there are many. rate bounds the bytes per
// second, unless it is zero. parts returns what this rank holds of a file, and held counts its bytes.
func (j *Job) fetch(ctx context.Context, folder string, files map[string][]file, rate int64,
	parts func(ctx context.Context, store blob.Store, name string) ([]hosts.Part, error)) (bytes, held int64, err error) {
	for _, host := range slices.Sorted(maps.Keys(files)) {
		opened, err := j.Root.OpenWith(ctx, j.Run, &ram.OpenOptions{Stall: j.stall, Hosts: []string{host}, Rate: rate})
		if err != nil {
			return bytes, held, err
		}
		store, ok := opened.(*hosts.Store)
		if !ok {
			return bytes, held, fmt.Errorf("%w: %s", ErrReplaced, j.Run)
		}
		defer store.Close()
		for _, f := range files[host] {
			name := folder + "/" + f.Name
			var has []hosts.Part
			if f.held && parts != nil {
				if has, err = parts(ctx, store, name); err != nil {
					has = nil // the file is not of the native format, or FetchHeld finds what is wrong
				}
			}
			n, err := store.FetchHeld(ctx, name, f.Size, f.CRC32C, has)
			if err != nil {
				return bytes, held, err
			}
			if n == 0 && len(has) > 0 && j.logger != nil {
				j.logger.Warn("memory: this rank's state has other bytes than a file of another rank, so the file was received", "run", j.Run, "object", name)
			}
			bytes, held = bytes+f.Size, held+n
		}
	}
	return bytes, held, nil
}

// discard removes the copies that this rank has fetched, because there is no room for all of them: later
// saves need the room.
func (j *Job) discard(ctx context.Context, folder string, files map[string][]file) error {
	store, err := j.Root.OpenLocal(j.Run)
	if err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // other ranks fail too
	var errs []error
	for _, some := range files {
		for _, f := range some {
			if err := store.Remove(ctx, folder+"/"+f.Name); err != nil && !errors.Is(err, blob.ErrRemoved) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// offer describes the files of this rank.
func (j *Job) offer(ctx context.Context, store blob.Store, folder string, s Saved) (offer, error) {
	o := offer{Host: j.Host, Copies: cmp.Or(s.Copies, DefaultCopies), Of: s.Of}
	if o.Copies < 0 || s.Rate < 0 {
		return o, fmt.Errorf("%w: %d copies, at %d bytes per second", storage.ErrOptions, s.Copies, s.Rate)
	}
	for _, f := range s.Files {
		if f.Unsummed {
			return o, fmt.Errorf("%w: %s has no checksum, so a copy could not be compared with it", storage.ErrOptions, f.Name)
		}
		if !slices.Contains(s.Last, f.Name) {
			o.Data = append(o.Data, file{Name: f.Name, Size: f.Size, CRC32C: f.CRC32C})
		}
	}
	for _, name := range s.Last {
		data, err := blob.ReadAll(ctx, store, folder+"/"+name, maxLast)
		if err != nil {
			return o, err
		}
		o.Last = append(o.Last, file{Name: name, Size: int64(len(data)), CRC32C: crc32c.Checksum(data)})
	}
	return o, nil
}

// maxLast bounds the size of the index and of the record.
const maxLast = 1 << 30

// assign returns the data files that this rank fetches, by the host that has them, and how many files and
// bytes all ranks fetch. The ranks of a host divide its files.
func (j *Job) assign(rank int, all []offer, copies int) (mine map[string][]file, count int, bytes int64) {
	mine = map[string][]file{}
	at := j.place(copies, keepersOf(all))
	turn := map[string]int{}
	for i, o := range all {
		for _, f := range o.Data {
			for _, host := range at.of(i) {
				taker, holds := at.keeper(i, host)
				if !holds {
					ranks := j.ranks[host]
					taker = ranks[turn[host]%len(ranks)]
					turn[host]++
				}
				if taker == rank {
					f.held = holds
					mine[o.Host] = append(mine[o.Host], f)
				}
				count, bytes = count+1, bytes+f.Size
			}
		}
	}
	return mine, count, bytes
}

// keepersOf returns for each rank the ranks that copy its files from their own state.
func keepersOf(all []offer) map[int][]int {
	out := map[int][]int{}
	for rank, o := range all {
		for _, of := range o.Of {
			out[of] = append(out[of], rank)
		}
	}
	return out
}

// rate returns the bytes per second that this rank may receive, if its host may receive n.
func (j *Job) rate(n int64) int64 {
	if n == 0 {
		return 0
	}
	return max(1, n/int64(len(j.ranks[j.Host])))
}

// DefaultCopies is how many other hosts have a copy of each file.
const DefaultCopies = 1

// Ranks returns the ranks of a host.
func (j *Job) Ranks(host string) []int { return j.ranks[host] }
