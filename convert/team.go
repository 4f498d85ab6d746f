package convert

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
)

func init() {
	group.RegisterError("convert.ErrOption", ErrOption)
	group.RegisterError("convert.ErrEmpty", ErrEmpty)
	group.RegisterError("convert.ErrCollision", ErrCollision)
	group.RegisterError("convert.ErrOccupied", ErrOccupied)
	group.RegisterError("convert.ErrBusy", ErrBusy)
}

// helps reports whether another process coordinates the conversion.
func (r *run) helps() bool { return r.group != nil && r.group.Rank() != 0 }

// each runs a step on all processes of the conversion; see group.Each.
func (r *run) each(ctx context.Context, step string, fn func(context.Context) error) error {
	if r.group == nil {
		return fn(ctx)
	}
	return group.Each(ctx, r.group, step, fn)
}

// start is the coordinator's message to the other processes about the conversion.
type start struct {
	Record record `json:"record"`
	GoesOn bool   `json:"goes_on"`
}

// meet makes sure that all processes plan the same conversion of the same source. Then the
// coordinator opens the journal, and the other processes use it too.
func (r *run) meet(ctx context.Context) (*Report, error) {
	var mine []byte
	err := r.each(ctx, "compare", func(ctx context.Context) error {
		text, err := fingerprint(ctx, r.job, r.target, false)
		mine = []byte(text)
		return err
	})
	if err != nil {
		return nil, err
	}

	err = group.Agree(ctx, r.group, "compare", mine, func([]byte) error {
		return fmt.Errorf("%w: it plans another conversion than rank 0: it sees other files in the source, or has other options, or another version of cairn", group.ErrDiffers)
	})
	if err != nil {
		return nil, err
	}

	var rep *Report
	s, err := group.Broadcast(ctx, r.group, "start", 0, group.JSON[start](), func(ctx context.Context) (start, error) {
		var err error
		if rep, err = r.open(ctx); err != nil || r.journal == nil {
			return start{Record: r.identity}, err
		}
		return start{r.journal.rec, r.journal.goesOn}, nil
	})
	if err != nil {
		return nil, err
	}
	if s.Record.Report != nil {
		return s.Record.Report, nil
	}

	if r.helps() {
		r.identity = s.Record
		if store := r.target.store(); store != nil {
			r.journal = &journal{store: store, direct: r.target.Direct != nil, rec: s.Record, goesOn: s.GoesOn}
		}
	}
	return rep, nil
}

// visibleTime is how long a process waits until it sees the record that the coordinator
// has written. Network file systems show new files late.
var visibleTime = 40 * time.Second

// begun makes the coordinator write the record of the journal, which the other processes
// must see: otherwise their targets are different ones.
func (r *run) begun(ctx context.Context) error {
	if r.journal == nil {
		return nil
	}

	err := r.each(ctx, "begin", func(ctx context.Context) error {
		if r.helps() {
			return nil
		}
		return r.journal.start(ctx)
	})
	if err != nil || r.group == nil {
		return err
	}

	return r.each(ctx, "begin", func(ctx context.Context) error {
		if !r.helps() {
			return nil
		}
		return r.journal.see(ctx)
	})
}

// see waits until the store has the record of this conversion.
func (j *journal) see(ctx context.Context) error {
	for end := time.Now().Add(visibleTime); ; {
		rec, err := readRecord(ctx, j.store)
		if err != nil || rec != nil && rec.SaveID == j.rec.SaveID {
			return err
		}

		if time.Now().After(end) {
			return fmt.Errorf("%w: %s does not have what rank 0 has written there: all ranks need the same target, such as a path in a shared file system or a bucket", group.ErrDiffers, j.store)
		}

		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// division is which process writes which data files.
type division struct {
	mu    sync.Mutex
	files [][]storage.File // of each rank of the target; guarded by mu
	of    [][]int          // the process of each file; nil: no process writes any file
	me    int
}

// mine implements storage.Session.Divide.
func (d *division) mine(rank int, files []storage.File, held bool) []bool {
	out := make([]bool, len(files))
	if d.of == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !held {
			d.files[rank] = files
		}
		return out
	}

	for i := range files {
		out[i] = held && d.me == 0 || !held && d.of[rank][i] == d.me
	}

	return out
}

// divide divides the data files among the processes, by the bytes that are not finished.
// Neighbours stay together: they read neighbours of the source.
func (r *run) divide(ctx context.Context) error {
	if r.group == nil {
		r.planned(nil)
		return nil
	}

	d := r.division
	err := r.each(ctx, "divide", func(ctx context.Context) error {
		r.ctx = ctx
		return r.save.Write(ctx) // only lays the files out
	})
	if err != nil {
		return err
	}

	if err := group.Agree(ctx, r.group, "divide", d.digest(), func([]byte) error {
		return fmt.Errorf("%w: it would write other files than rank 0", group.ErrDiffers)
	}); err != nil {
		return err
	}

	finished, err := group.Broadcast(ctx, r.group, "divide", 0, group.JSON[map[string]bool](), func(ctx context.Context) (map[string]bool, error) {
		if r.journal == nil || !r.journal.goesOn {
			return nil, nil
		}
		return r.journal.names(ctx)
	})
	if err != nil {
		return err
	}

	parts := d.assign(finished, r.group.Size())
	if n := d.count(); n == 0 && !r.helps() {
		r.job.opts.Warn(fmt.Errorf("one file has all data, so rank 0 of %d ranks writes it alone; smaller files would give the other ranks work", r.group.Size()))
	} else if n < r.group.Size() && !r.helps() {
		r.job.opts.Warn(fmt.Errorf("more ranks than data files, %[2]d and %[1]d: some have nothing to write; smaller files would give them work", n, r.group.Size()))
	}

	r.planned(parts)
	return nil
}

// planned reports the bytes that this process is going to write, the parts of the bytes
// of each rank of the target. Nil: all of them.
func (r *run) planned(parts []float64) {
	if r.job.opts.Planned == nil {
		return
	}

	var all float64
	for rank, p := range r.save.Plans {
		part := 1.0
		if parts != nil {
			part = parts[rank]
		}
		all += part * float64(p.NumBytes())
	}

	r.job.opts.Planned(int64(all))
}

// count returns the number of files.
func (d *division) count() (n int) {
	for _, files := range d.files {
		n += len(files)
	}
	return n
}

// digest returns a digest of the names and sizes of all files.
func (d *division) digest() []byte {
	h := sha256.New()
	for rank, files := range d.files {
		for _, f := range files {
			fmt.Fprintf(h, "%d %q %d\n", rank, f.Name, f.Size)
		}
	}
	return h.Sum(nil)
}

// assign assigns the files to processes. It returns for each rank of the target the part
// of its bytes that this process writes.
func (d *division) assign(finished map[string]bool, processes int) []float64 {
	var sizes []int64
	for _, files := range d.files {
		for _, f := range files {
			n := f.Size
			if finished[f.Name] {
				n = 0
			}
			sizes = append(sizes, n)
		}
	}

	of := work.Divide(sizes, processes)
	parts := make([]float64, len(d.files))
	d.of = make([][]int, len(d.files))
	for rank, files := range d.files {
		d.of[rank], of = of[:len(files)], of[len(files):]
		var mine, total int64
		for i, f := range files {
			total += f.Size
			if d.of[rank][i] == d.me {
				mine += f.Size
			}
		}

		switch {
		case total > 0:
			parts[rank] = float64(mine) / float64(total)
		case d.me == 0: // a single file, or values that are in no file
			parts[rank] = 1
		}
	}

	return parts
}

// together writes the data of all processes. The coordinator receives the results.
func (r *run) together(ctx context.Context, write func(context.Context) error) error {
	_, err := group.Decide(ctx, group.StopEarly(r.group), "write", writtenCodec, group.Bytes{},
		func(ctx context.Context) (*written, error) {
			if err := write(ctx); err != nil {
				return nil, err
			}
			r.wrote = true
			return r.written(), nil
		},
		func(_ context.Context, all []*written) ([]byte, error) {
			r.save.Results = nil
			for _, p := range all {
				r.save.Results = append(r.save.Results, p.results)
				r.kept += p.kept
				r.compared += p.compared
			}
			return nil, nil
		})
	return err
}

// written is the result of one process of a conversion.
type written struct {
	results *storage.WriteResults // of all ranks of the target
	kept    int                   // files that an earlier run had finished
	// compared is the number of elements that were compared with the source by sums.
	compared int64
}

// written returns the result of this process. Every process has the values that are in no file;
// only the coordinator returns them.
func (r *run) written() *written {
	p := &written{results: &storage.WriteResults{}}
	for _, res := range r.save.Results {
		p.results.Files = append(p.results.Files, res.Files...)
		for _, it := range res.Items {
			if it.Inline == nil || !r.helps() {
				p.results.Items = append(p.results.Items, it)
			}
		}
	}

	if r.journal != nil {
		p.kept = int(r.journal.kept.Load())
	}
	if r.proof != nil {
		p.compared = r.proof.compared.Load()
	}
	return p
}

// writtenCodec encodes parts.
var writtenCodec = group.Func[*written]{
	EncodeFunc: func(p *written) ([]byte, error) {
		b, err := storage.ResultCodec{}.Encode(p.results)
		if err != nil {
			return nil, err
		}
		var w wire.Writer
		w.Uvarint(uint64(p.kept))
		w.Uvarint(uint64(p.compared))
		return append(w.B, b...), nil
	},
	DecodeFunc: func(b []byte) (*written, error) {
		r := wire.NewReader(b)
		p := &written{kept: int(r.Uvarint()), compared: int64(r.Uvarint())}
		if err := r.Err(); err != nil {
			return nil, err
		}
		var err error
		p.results, err = storage.ResultCodec{}.Decode(b[len(b)-r.Len():])
		return p, err
	},
}

// errNotCommitted marks the failures of the coordinator after which the checkpoint is
// known not to exist.
var errNotCommitted = errors.New("nothing was committed")

func init() {
	group.RegisterError("convert.errNotCommitted", errNotCommitted)
	group.RegisterError("convert.errBeside", errBeside)
}

// commit lets the coordinator commit and sends its report to all processes. From here
// on a context that ends interrupts only the coordinator's own work: a process that left
// without the outcome would not know whether its files are part of a checkpoint.
func (r *run) commit(ctx context.Context, finish func(context.Context) (*Report, error)) (*Report, error) {
	if r.group == nil {
		return finish(ctx)
	}

	rep, err := group.Broadcast(context.WithoutCancel(ctx), r.group, "commit", 0, group.JSON[*Report](), func(context.Context) (*Report, error) {
		if err := group.ContextError(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", errNotCommitted, err)
		}
		rep, err := finish(ctx)
		if err != nil && !r.visible && !errors.Is(err, storage.ErrUncertain) {
			err = fmt.Errorf("%w: %w", errNotCommitted, err)
		}
		return rep, err
	})
	if err != nil && r.helps() && !errors.Is(err, errNotCommitted) && !errors.Is(err, errBeside) && !errors.Is(err, storage.ErrUncertain) {
		err = fmt.Errorf("%w: %w", storage.ErrUncertain, err)
	}
	return rep, err
}

// lost reports whether this process has sent its results and then lost the coordinator,
// which may have committed since.
func (r *run) lost(err error) bool {
	return r.helps() && r.wrote && errors.Is(err, group.ErrGone) && !errors.Is(err, storage.ErrUncertain)
}
