package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// most bounds the objects that are read whole.
const most = 1 << 30

// put writes an object.
func (e *exam) put(ctx context.Context, name, data string, o *blob.CreateOptions) error {
	_, err := blob.WriteAll(ctx, e.s, name, []byte(data), o)
	return err
}

// want returns an error unless an object has these bytes.
func (e *exam) want(ctx context.Context, name, data string) error {
	got, err := blob.ReadAll(ctx, e.s, name, most)
	if err != nil {
		return err
	}
	if string(got) != data {
		return fmt.Errorf("%d bytes were written, and %d other bytes were read", len(data), len(got))
	}
	return nil
}

// listed reports whether List yields an object.
func (e *exam) listed(ctx context.Context, name string) (bool, error) {
	for info, err := range e.s.List(ctx, name) {
		if err != nil || info.Name == name {
			return err == nil, err
		}
	}
	return false, nil
}

// otherwise returns err, or if it is nil an error with the text: a call has succeeded that
// should not have. If it has failed for another reason than the expected one, that reason
// says more than the text.
func otherwise(err error, text string) error {
	if err == nil {
		return errors.New(text)
	}
	return err
}

var creating = check{
	name:    "create",
	follows: "Nothing can be saved here.",
	run: func(ctx context.Context, e *exam) (string, error) {
		return "objects can be created", e.put(ctx, "created", "x", nil)
	},
}

// contract has the checks for every store.
var contract = []check{
	{
		"read", "Checkpoints that are saved here cannot be loaded.",
		func(ctx context.Context, e *exam) (string, error) {
			return "objects can be read", e.want(ctx, "created", "x")
		},
	},
	{
		"list", "Loads of some formats, 'cairn latest' and 'cairn clean' do not find what is there.",
		func(ctx context.Context, e *exam) (string, error) {
			ok, err := e.listed(ctx, "created")
			if err == nil && !ok {
				err = errors.New("an object that exists is not listed")
			}
			return "objects can be listed", err
		},
	},
	{"read after write", "A load right after a save may fail, or read a checkpoint that was replaced.", readAfterWrite},
	{"list after write", "A checkpoint may seem to lack files right after it was saved.", listAfterWrite},
	{"remove", "Checkpoints that are replaced, and leftovers, take space for ever.", removing},
	{"ranges", "Loads fail or read wrong bytes, because they read parts of objects.", ranges},
	{"atomic replacement", "A load during a save may read a mixture of two checkpoints.", replacement},
	{"invisible until complete", "A load may take a save that is under way, or that has failed, for a complete checkpoint.", invisible},
	{"create if absent", "Two savers that commit at the same time may both believe that they have won, and one checkpoint is lost without an error.", ifAbsent},
	{"replace if unchanged", "Two savers that replace the same checkpoint may both believe that they have won, and one is lost without an error.", ifVersion},
	{"parts", "Large files cannot be saved, or are damaged.", parts},
	{"abandoned parts", "Parts of saves that were killed take space for ever. 'cairn clean' does not find them: set a lifecycle rule that removes incomplete uploads.", abandoned},
}

func readAfterWrite(ctx context.Context, e *exam) (string, error) {
	for i := range 10 {
		name, data := fmt.Sprint("fresh-", i), fmt.Sprint("first ", i)
		for _, data := range []string{data, data + ", replaced"} {
			if err := e.put(ctx, name, data, nil); err != nil {
				return "", err
			}
			if err := e.want(ctx, name, data); err != nil {
				return "", fmt.Errorf("right after an object was written: %w", err)
			}
			if info, err := e.s.Stat(ctx, name); err != nil || info.Size != int64(len(data)) {
				return "", otherwise(err, fmt.Sprintf("right after an object of %d bytes was written, it has %d bytes: its description is out of date", len(data), info.Size))
			}
		}
	}
	return "new objects, and replaced ones, can be read at once", nil
}

func listAfterWrite(ctx context.Context, e *exam) (string, error) {
	for i := range 10 {
		name := fmt.Sprint("listed-", i)
		if err := e.put(ctx, name, "x", nil); err != nil {
			return "", err
		}

		ok, err := e.listed(ctx, name)
		if err != nil {
			return "", err
		}
		if !ok {
			return "", errors.New("a new object is not listed at once")
		}
	}
	return "new objects are listed at once", nil
}

func removing(ctx context.Context, e *exam) (string, error) {
	if err := e.put(ctx, "removed", "x", nil); err != nil {
		return "", err
	}

	for range 2 { // the second time, it does not exist
		if err := e.s.Remove(ctx, "removed"); err != nil {
			return "", err
		}
	}

	if _, err := e.s.Stat(ctx, "removed"); !errors.Is(err, fs.ErrNotExist) {
		return "", otherwise(err, "an object that was removed is still there")
	}
	if ok, err := e.listed(ctx, "removed"); ok || err != nil {
		return "", otherwise(err, "an object that was removed is still listed")
	}
	return "objects can be removed, and are gone at once", nil
}

// pattern returns n bytes in which every range is different.
func pattern(n int64) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(p) // it never fails
	return p
}

func ranges(ctx context.Context, e *exam) (string, error) {
	data := pattern(1<<20 + 12345)
	if err := e.put(ctx, "ranges", string(data), nil); err != nil {
		return "", err
	}

	r, err := e.s.Open(ctx, "ranges")
	if err != nil {
		return "", err
	}
	defer r.Close()

	size := int64(len(data))
	if r.Size() != size {
		return "", fmt.Errorf("an object of %d bytes has %d when it is opened", size, r.Size())
	}

	for _, at := range [][2]int64{{0, 1}, {size - 1, 1}, {100_000, 4096}, {65_535, 2}, {500_000, size - 500_000}, {0, size}} {
		p := make([]byte, at[1])
		if err := r.ReadAt(ctx, p, at[0]); err != nil {
			return "", err
		}
		if !bytes.Equal(p, data[at[0]:at[0]+at[1]]) {
			return "", fmt.Errorf("%d bytes from %d on differ from the bytes that were written", at[1], at[0])
		}
	}

	if err := r.ReadAt(ctx, make([]byte, 10), size-5); err == nil {
		return "", errors.New("a read beyond the end of an object returns bytes")
	}
	return "ranges of objects can be read", nil
}

func replacement(ctx context.Context, e *exam) (string, error) {
	const size, rounds = 200 << 10, 30
	content := func(i int) string { return string(bytes.Repeat([]byte{byte(i)}, size)) }
	if err := e.put(ctx, "replaced", content(0), nil); err != nil {
		return "", err
	}

	var ended atomic.Bool
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range 3 {
		wg.Go(func() {
			for !ended.Load() && errs[i] == nil {
				p, err := blob.ReadAll(ctx, e.s, "replaced", most)
				switch {
				case errors.Is(err, blob.ErrChanged):
				case errors.Is(err, fs.ErrNotExist):
					errs[i] = errors.New("an object is missing while it is replaced")
				case err != nil:
					errs[i] = err
				case len(p) != size || bytes.Count(p, p[:1]) != size:
					errs[i] = errors.New("a reader saw a part of the old object and a part of the new one")
				}
			}
		})
	}

	for i := range rounds {
		if errs[3] = e.put(ctx, "replaced", content(i), nil); errs[3] != nil {
			break
		}
	}

	ended.Store(true)
	wg.Wait()
	return "readers see an object before or after its replacement", errors.Join(errs...)
}

func invisible(ctx context.Context, e *exam) (string, error) {
	w, err := e.s.Create(ctx, "unfinished", &blob.CreateOptions{Size: 2 * partBytes, Piece: partBytes})
	if err != nil {
		return "", err
	}
	defer w.Abort()

	if err := w.WriteAt(ctx, pattern(partBytes), 0); err != nil {
		return "", err
	}

	seen := func(what string) error {
		if _, err := e.s.Stat(ctx, "unfinished"); !errors.Is(err, fs.ErrNotExist) {
			return otherwise(err, what+" is visible: it can be opened")
		}
		if ok, err := e.listed(ctx, "unfinished"); ok || err != nil {
			return otherwise(err, what+" is visible: it is listed")
		}
		return nil
	}
	if err := seen("an object that is being written"); err != nil {
		return "", err
	}

	if err := w.Abort(); err != nil {
		return "", err
	}
	if err := seen("an object whose writing was given up"); err != nil {
		return "", err
	}
	return "objects appear when they are complete", nil
}

// race has eight writers write an object at the same time, with the same options, and
// returns an error unless exactly one succeeds and the others fail with want.
func (e *exam) race(ctx context.Context, name string, o blob.CreateOptions, want error) error {
	var won atomic.Int64
	var winner atomic.Value
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			data := fmt.Sprint("writer ", i)
			err := e.put(ctx, name, data, &o)
			switch {
			case err == nil:
				won.Add(1)
				winner.Store(data)
			case !errors.Is(err, want):
				errs[i] = err
			}
		})
	}

	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}

	if n := won.Load(); n != 1 {
		return fmt.Errorf("of 8 writers with the same condition, %d have succeeded, not one", n)
	}
	return e.want(ctx, name, winner.Load().(string))
}

func ifAbsent(ctx context.Context, e *exam) (string, error) {
	o := blob.CreateOptions{IfAbsent: true}
	if err := e.put(ctx, "absent", "first", &o); err != nil {
		return "", err
	}
	if err := e.put(ctx, "absent", "second", &o); !errors.Is(err, fs.ErrExist) {
		return "", otherwise(err, "a second writer was not refused")
	}
	if err := e.want(ctx, "absent", "first"); err != nil {
		return "", err
	}

	for i := range 5 {
		if err := e.race(ctx, fmt.Sprint("race-", i), o, fs.ErrExist); err != nil {
			return "", err
		}
	}

	return "of several writers of a new object, one wins", nil
}

func ifVersion(ctx context.Context, e *exam) (string, error) {
	first, err := blob.WriteAll(ctx, e.s, "version", []byte("first"), nil)
	if err != nil {
		return "", err
	}

	if info, err := e.s.Stat(ctx, "version"); err != nil {
		return "", err
	} else if info.Version == "" {
		return "", skip("the store has no versions; saves to folders take locks")
	} else if info.Version != first.Version {
		return "", errors.New("the version of an object differs from the one that its writer received")
	}

	stale := blob.CreateOptions{IfVersion: first.Version}
	second, err := blob.WriteAll(ctx, e.s, "version", []byte("second"), &stale)
	if err != nil {
		return "", err
	}

	if err := e.put(ctx, "version", "third", &stale); !errors.Is(err, blob.ErrChanged) {
		return "", otherwise(err, "a writer with an old version was not refused")
	}
	if err := e.want(ctx, "version", "second"); err != nil {
		return "", err
	}
	if err := e.race(ctx, "version", blob.CreateOptions{IfVersion: second.Version}, blob.ErrChanged); err != nil {
		return "", err
	}
	return "of several writers that replace an object, one wins", nil
}

// partBytes is the size of the parts of a large object. S3 refuses parts smaller than
// 5 MiB; tests with stores in memory have smaller ones.
var partBytes int64 = 8 << 20

func parts(ctx context.Context, e *exam) (string, error) {
	piece := int(partBytes)
	data := pattern(3*partBytes + 4321)
	w, err := e.s.Create(ctx, "large", &blob.CreateOptions{Size: int64(len(data)), Piece: partBytes})
	if err != nil {
		return "", err
	}
	defer w.Abort()

	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			errs[i] = w.WriteAt(ctx, data[i*piece:min((i+1)*piece, len(data))], int64(i*piece))
		})
	}

	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}

	if _, err := w.Commit(ctx); err != nil {
		return "", err
	}

	got, err := blob.ReadAll(ctx, e.s, "large", most)
	if err == nil && !bytes.Equal(got, data) {
		err = errors.New("an object of several parts is not what was written")
	}
	return "large objects can be written in parts, at the same time", err
}

func abandoned(ctx context.Context, e *exam) (string, error) {
	sweeper, _ := blob.As[blob.Sweeper](e.s)
	if _, ok := blob.As[blob.Sweeper](e.root); !ok || sweeper == nil {
		return "", skip("the store keeps nothing of writers that end early")
	}

	w, err := e.s.Create(ctx, "abandoned", &blob.CreateOptions{Size: 2 * partBytes, Piece: partBytes})
	if err != nil {
		return "", err
	}
	defer w.Abort()

	if err := w.WriteAt(ctx, pattern(partBytes), 0); err != nil {
		return "", err
	}

	temps, err := sweeper.Temps(ctx, "")
	if errors.Is(err, fs.ErrPermission) {
		return "", warn("unfinished uploads cannot be listed: %v", err)
	}
	if err != nil {
		return "", err
	}
	if len(temps) == 0 {
		return "", warn("an upload that is under way is not found")
	}

	if err := w.Abort(); err != nil {
		return "", warn("the parts of a writer that gives up are not removed: %v", err)
	}
	if temps, err = sweeper.Temps(ctx, ""); err != nil || len(temps) > 0 {
		return "", warn("%v", otherwise(err, "the parts of a writer that gives up stay"))
	}
	return "parts of unfinished objects are found and can be removed", nil
}

const (
	// smallSkew covers the difference of machine clocks and the time of a request.
	smallSkew = 10 * time.Second
	// largeSkew is from where services refuse requests.
	largeSkew = 5 * time.Minute
)

var clock = check{
	name:    "clock",
	follows: "Leftovers of saves seem to be older or younger than they are, so --older-than of 'cairn clean' may remove too much or too little. Services refuse requests of clients whose clock is minutes off. Set the clock of this machine.",
	run: func(ctx context.Context, e *exam) (string, error) {
		before := time.Now()
		if err := e.put(ctx, "clock", "x", nil); err != nil {
			return "", err
		}
		after := time.Now()
		info, err := e.s.Stat(ctx, "clock")
		if err != nil {
			return "", err
		}
		var skew time.Duration
		switch {
		case info.ModTime.Before(before.Truncate(time.Second)):
			skew = info.ModTime.Sub(before)
		case info.ModTime.After(after):
			skew = info.ModTime.Sub(after)
		}
		switch abs := skew.Abs(); {
		case abs > largeSkew:
			return "", fmt.Errorf("the clock of the store is %v off", skew.Round(time.Second))
		case abs > smallSkew:
			return "", warn("the clock of the store is %v off", skew.Round(time.Second))
		}
		return "the clocks of this machine and of the store agree", nil
	},
}
