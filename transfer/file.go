package transfer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

const (
	// piece is the unit of a copy: a read and a write.
	piece = 8 << 20
	// buffer is the size of a buffer; see blob.ReadLarge.
	buffer = piece + 2*blob.Align
)

// copyAll copies the files that the target lacks, the record last.
func (j *job) copyAll(ctx context.Context) error {
	j.opts.Planned(j.rep.Bytes)
	todo, err := j.missing(ctx)
	if err != nil {
		return err
	}

	if todo, err = j.retract(ctx, todo); err != nil {
		return err
	}
	if err := j.copyData(ctx, todo); err != nil {
		return err
	}
	return j.publish(ctx, todo)
}

// copyData copies the data files, in parallel.
func (j *job) copyData(ctx context.Context, todo []item) error {
	data := slices.DeleteFunc(slices.Clone(todo), func(it item) bool { return it.stage > 0 })
	return work.Each(ctx, len(data), j.opts.Parallel, func(ctx context.Context, i int) error { return j.copyFile(ctx, &data[i]) })
}

// publish copies the files that are not data, the record last, and removes the files of the
// replaced checkpoint.
func (j *job) publish(ctx context.Context, todo []item) error {
	last := slices.DeleteFunc(slices.Clone(todo), func(it item) bool { return it.stage == 0 })
	if len(last) == 0 { // there is no record to write
		if err := j.check(ctx); err != nil {
			return err
		}
	}

	for i := range last {
		var err error
		if i == len(last)-1 {
			err = commit.Locked(ctx, j.dst, func() error { return j.commit(ctx, &last[i]) })
		} else {
			err = j.copyFile(ctx, &last[i])
		}
		if err != nil {
			return err
		}
	}

	j.rep.ByService = int(j.service.Load())
	return j.leftovers(ctx)
}

// missing returns the files that the target lacks. The record is one of them if any
// other is.
func (j *job) missing(ctx context.Context) ([]item, error) {
	kept := make([]bool, len(j.items))
	err := work.Each(ctx, len(j.items), j.opts.Parallel, func(ctx context.Context, i int) (err error) {
		kept[i], err = j.same(ctx, &j.items[i])
		return err
	})
	if err != nil {
		return nil, err
	}

	var todo []item
	for i, it := range j.items {
		if kept[i] {
			j.rep.KeptFiles++
			j.rep.KeptBytes += it.Size
			j.opts.Progress(it.Size)
		} else {
			todo = append(todo, it)
		}
	}

	return todo, nil
}

// same reports whether the target has the file, with the right size and checksum.
func (j *job) same(ctx context.Context, it *item) (bool, error) {
	have, ok := j.have[it.to]
	if !ok {
		return false, nil
	}
	return j.matches(ctx, it, have)
}

// matches reports whether a file of the target has the right size and checksum.
func (j *job) matches(ctx context.Context, it *item, have blob.Info) (bool, error) {
	if have.Size != it.Size {
		return false, nil
	}

	want := it.sum
	if !it.summed {
		var err error
		if want, err = j.sumOf(ctx, j.src, it.Name, it.Size); err != nil {
			return false, err
		}
	}

	got, err := j.sumOf(ctx, j.dst, it.to, it.Size)
	if err != nil && ctx.Err() == nil {
		return false, nil // it cannot be read: it is copied again
	}
	return got == want, err
}

// sumOf returns the checksum of an object: from the store, or computed from its bytes.
func (j *job) sumOf(ctx context.Context, s blob.Store, name string, size int64) (uint32, error) {
	if m, ok := blob.As[blob.Summer](s); ok {
		if sum, ok, err := m.Sum(ctx, name); ok || err != nil {
			return sum, err
		}
	}

	r, err := blob.OpenKnown(ctx, s, blob.Info{Name: name, Size: size})
	if err != nil {
		return 0, err
	}
	defer r.Close()
	return j.pieces(ctx, r, size, func([]byte, int64) error { return nil })
}

// copyFile copies a file that is not the record.
func (j *job) copyFile(ctx context.Context, it *item) error {
	if done, err := j.copyInService(ctx, it); done || err != nil {
		return err
	}

	w, err := j.write(ctx, it, j.unchanged(it))
	if err == nil {
		defer w.Abort() // does nothing once committed
		_, err = w.Commit(ctx)
	}
	if !errors.Is(err, fs.ErrExist) && !errors.Is(err, blob.ErrChanged) {
		return err
	}

	// Another process may have copied the same checkpoint.
	if now, statErr := j.dst.Stat(ctx, it.to); statErr == nil {
		if same, err := j.matches(ctx, it, now); same || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s of %s has changed while it was copied: %w", it.to, j.dst, errors.Join(blob.ErrChanged, err))
}

// unchanged returns the condition of a data file in a service: that the target is as it was. A
// service may carry out a request long after its sender has given up. Without the condition, a late
// request could replace a file of a later copy, which has the same name.
func (j *job) unchanged(it *item) *blob.CreateOptions {
	if _, service := blob.As[blob.GapReader](j.dst); !service || !blob.HasVersions(j.dst) {
		return &blob.CreateOptions{}
	}
	have, ok := j.have[it.to]
	return &blob.CreateOptions{IfAbsent: !ok, IfVersion: have.Version}
}

// commit copies the record, on the condition that the target is as it was and has all
// other files.
func (j *job) commit(ctx context.Context, it *item) error {
	opts := &blob.CreateOptions{}
	if have, ok := j.have[it.to]; ok {
		opts.IfVersion = have.Version
	} else {
		opts.IfAbsent = true
	}

	w, err := j.write(ctx, it, opts)
	if err != nil {
		return err
	}
	defer w.Abort() // does nothing once committed

	now, err := j.src.Stat(ctx, it.Name)
	if err != nil {
		return err
	}
	if now.Size != it.Size || now.Version != it.Version || !now.ModTime.Equal(it.ModTime) {
		return fmt.Errorf("%s was replaced while it was copied: %w", j.src, blob.ErrChanged)
	}

	if err := j.check(ctx); err != nil {
		return err
	}

	if j.opts.keepOld {
		if err := j.checkUnread(ctx); err != nil {
			return errors.Join(err, j.discard(ctx))
		}
	}

	_, err = w.Commit(ctx)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: another writer was faster: %w", storage.ErrExists, err)
	case errors.Is(err, blob.ErrUncertain):
		err = fmt.Errorf("%w: %w", storage.ErrUncertain, err)
		return errors.Join(err, j.lock.LeaveUncertain(context.WithoutCancel(ctx), it.to, opts.IfVersion))
	}

	return err
}

// write begins a file of the target and writes its bytes, which are the bytes that the
// checkpoint describes. The caller ends the writer.
func (j *job) write(ctx context.Context, it *item, opts *blob.CreateOptions) (blob.Writer, error) {
	r, err := blob.OpenKnown(ctx, j.src, it.Info)
	if err != nil {
		return nil, err
	}
	defer r.Close()

	if r.Size() != it.Size {
		return nil, fmt.Errorf("%s of %s: %w: it has %d bytes, and had %d", it.Name, j.src, blob.ErrChanged, r.Size(), it.Size)
	}

	opts.Size = it.Size
	opts.Piece = piece
	w, err := j.dst.Create(ctx, it.to, opts)
	if err != nil {
		return nil, err
	}

	sum, err := j.pieces(ctx, r, it.Size, func(p []byte, off int64) error {
		err := w.WriteAt(ctx, p, off)
		if err == nil {
			j.opts.Progress(int64(len(p)))
		}
		return err
	})
	if err == nil && it.summed && sum != it.sum {
		err = fmt.Errorf("%w: %s of %s has the checksum %08x, and %08x in the checkpoint", storage.ErrCorrupt, it.Name, j.src, sum, it.sum)
	}
	if err != nil {
		w.Abort() // its own error would hide this one
		return nil, err
	}
	return w, nil
}

// pieces reads an object of that size, in parallel, passes its bytes to fn, and returns
// their checksum.
func (j *job) pieces(ctx context.Context, r blob.Reader, size int64, fn func(p []byte, off int64) error) (uint32, error) {
	n := int((size + piece - 1) / piece)
	sums := make([]uint32, n)
	err := work.Each(ctx, n, j.opts.Parallel, func(ctx context.Context, i int) error {
		off := int64(i) * piece
		buf, err := j.pool.Get(ctx)
		if err != nil {
			return err
		}
		defer j.pool.Put(buf)

		p, err := blob.ReadLarge(ctx, r, buf, off, min(piece, size-off))
		if err != nil {
			return err
		}

		sums[i] = crc32c.Checksum(p)
		return fn(p, off)
	})

	var sum uint32
	for i, s := range sums {
		sum = crc32c.Join(sum, s, min(piece, size-int64(i)*piece))
	}

	return sum, err
}

// copyInService has the service copy a file. done is false if it cannot.
func (j *job) copyInService(ctx context.Context, it *item) (done bool, err error) {
	c, ok := blob.As[blob.Copier](j.dst)
	if !ok {
		return false, nil
	}

	info, err := c.CopyFrom(ctx, j.src, it.Info, it.to)
	if err != nil && (ctx.Err() != nil || errors.Is(err, blob.ErrChanged)) {
		return false, err
	}
	if err != nil {
		return false, nil // the other way may be allowed, and its error is clearer if not
	}
	if info.Size != it.Size {
		return false, fmt.Errorf("%w: the service says that %s of %s has %d bytes, not %d", storage.ErrCorrupt, it.to, j.dst, info.Size, it.Size)
	}

	j.service.Add(1)
	if err := j.checkCopied(ctx, it); err != nil {
		return false, err
	}

	j.opts.Progress(it.Size)
	return true, nil
}

// checkCopied compares the checksum of a file that the service has copied.
func (j *job) checkCopied(ctx context.Context, it *item) error {
	want := it.sum
	if !it.summed {
		m, ok := blob.As[blob.Summer](j.src)
		if !ok {
			return nil
		}
		var err error
		if want, ok, err = m.Sum(ctx, it.Name); err != nil || !ok {
			return err
		}
	}

	got, err := j.sumOf(ctx, j.dst, it.to, it.Size)
	if err == nil && got != want {
		err = fmt.Errorf("%w: the copy %s in %s has the checksum %08x, not %08x", storage.ErrCorrupt, it.to, j.dst, got, want)
	}
	if err != nil {
		return errors.Join(err, j.dst.Remove(context.WithoutCancel(ctx), it.to))
	}
	return nil
}

// check makes sure, right before the record is written, that the data files are there, and
// no files of another format.
func (j *job) check(ctx context.Context) error {
	if err := j.lock.Confirm(ctx); err != nil {
		return err
	}

	if len(j.have) > 0 && j.opts.As == "" {
		if err := commit.CheckNoRemoval(ctx, j.dst); err != nil {
			return err
		}
	}

	now, err := list(ctx, j.dst)
	if err != nil {
		return err
	}

	for _, it := range j.items {
		if have, ok := now[it.to]; it.stage == 0 && (!ok || have.Size != it.Size) {
			return fmt.Errorf("%s was removed from %s or replaced while the checkpoint was copied: %w", it.to, j.dst, blob.ErrChanged)
		}
	}

	return j.checkOthers(ctx, now)
}
