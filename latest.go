package cairn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/run"
)

// LatestOptions change how Latest works. Nil means the defaults.
type LatestOptions struct {
	// Group has the ranks that call Latest. Rank 0 looks, and all ranks return its
	// result. Nil: a single rank.
	Group Group
	// Wait makes Latest wait until no save is under way in the folders. ctx bounds
	// how long it waits.
	Wait bool
	// Waiting, if not nil, is called on rank 0 while Latest waits: after a few seconds, and
	// then in intervals. Its argument wraps ErrUnderWay and names a save.
	Waiting func(err error)
	// Remote is the address of the same run in another store, to which its saves are
	// uploaded; see AsyncOptions.Remote. Latest looks in both. If both have the newest
	// checkpoint, it returns the first one. Empty: there is no such run.
	Remote string
}

// Found is the result of Latest.
type Found = run.Found

// Skipped is a folder that Latest has not chosen.
type Skipped = run.Skipped

// Latest returns the complete checkpoint with the highest step in the folder of a run or in a
// folder directly below it, in any format that Open opens. address is that of the run, as for
// OpenStore. Of checkpoints with equal steps, it returns the one that was saved last. A
// checkpoint is complete if Open opens it and all of its files exist. Latest does not read
// their contents.
//
// The error wraps ErrNotFound if there is no checkpoint and no save is under way: a job
// can then start from the beginning. It wraps ErrUnderWay if there is no complete
// checkpoint yet, ErrUncertain if the only save got no answer to its commit, and ErrCorrupt
// if there are only damaged ones. If ctx ends while Latest
// waits, the error wraps the cause and, on rank 0, ErrUnderWay.
//
// Saves that are under way are recognised by their locks, and in object storage, where they
// take a lock after ten seconds, by the last time at which they wrote it. On file systems
// without locks, Latest does not wait for them.
func Latest(ctx context.Context, address string, opts *LatestOptions) (*Found, error) {
	var o LatestOptions
	if opts != nil {
		o = *opts
	}
	if o.Group == nil {
		o.Group = group.Solo()
	}
	var waitErr error
	f, err := group.Broadcast(ctx, o.Group, "latest", 0, group.Func[*Found]{EncodeFunc: encodeFound, DecodeFunc: decodeFound}, func(ctx context.Context) (*Found, error) {
		r, err := run.Open(ctx, address, o.Remote)
		if err != nil {
			return nil, err
		}
		if o.Wait {
			if waitErr = waitIdle(ctx, r, &o); waitErr != nil {
				return nil, waitErr
			}
		}
		return r.Latest(ctx)
	})
	if err != nil && errors.Is(waitErr, ErrUnderWay) {
		err = waitErr // the step returns the cause of ctx alone
	}
	if err != nil {
		return nil, &Error{Op: "latest", Where: blob.Redact(address), Err: err}
	}
	return f, nil
}

// sentFound is the message of rank 0. Paths may have bytes that are not UTF-8, which JSON
// replaces, so Path and the paths in Skipped are sent as bytes too.
type sentFound struct {
	Found *Found
	Paths [][]byte
}

func encodeFound(f *Found) ([]byte, error) {
	v := sentFound{f, [][]byte{[]byte(f.Path)}}
	for _, s := range f.Skipped {
		v.Paths = append(v.Paths, []byte(s.Path))
	}
	return json.Marshal(v)
}

func decodeFound(b []byte) (*Found, error) {
	var v sentFound
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, err
	}
	if v.Found == nil || len(v.Paths) != 1+len(v.Found.Skipped) {
		return nil, errors.New("rank 0 has sent a malformed result")
	}
	v.Found.Path = string(v.Paths[0])
	for i := range v.Found.Skipped {
		v.Found.Skipped[i].Path = string(v.Paths[1+i])
	}
	return v.Found, nil
}

const (
	// quietWait is how long Latest waits before it calls LatestOptions.Waiting, and
	// waitPause the time between two calls.
	quietWait = 3 * time.Second
	waitPause = 10 * time.Second
)

// waitIdle waits until no save is under way in the folders of a run.
func waitIdle(ctx context.Context, r *run.Run, o *LatestOptions) error {
	next := time.Now().Add(quietWait)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := r.CheckIdle(context.WithoutCancel(ctx)) // so that its error names the save
		if !errors.Is(err, ErrUnderWay) {
			return err
		}
		if now := time.Now(); o.Waiting != nil && now.After(next) {
			o.Waiting(err)
			next = now.Add(waitPause)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// OpenNearest returns the store of a checkpoint that is at several addresses, such as a
// local folder and a URL to which it was uploaded, for Load and Open. The nearest address
// comes first. OpenNearest returns the first one at which the checkpoint is complete, as
// for Latest, unless a later one holds a newer save: one with a higher step or, if the
// steps are equal, a later time. An address that cannot be read is passed over if another
// one has a complete checkpoint.
//
// If no address has a complete checkpoint, the error wraps ErrNotFound, ErrUnderWay,
// ErrCorrupt or the reason why an address cannot be read. Ranks on several hosts may get
// different stores.
func OpenNearest(ctx context.Context, addresses ...string) (blob.Store, error) {
	stores, errs := make([]blob.Store, len(addresses)), make([]error, len(addresses))
	err := work.Each(ctx, len(addresses), parallelOpens, func(ctx context.Context, i int) error {
		stores[i], errs[i] = openAddress(ctx, addresses[i])
		return nil
	})
	if err != nil {
		return nil, err
	}
	at, err := run.Nearest(ctx, stores, errs)
	switch {
	case err == nil:
		return stores[at], nil
	case at >= 0:
		return nil, &Error{Op: "open", Where: blob.Redact(addresses[at]), Err: err}
	case len(addresses) == 0:
		return nil, wrap("open", nil, errNoStore)
	}
	return nil, err
}

// parallelOpens is how many addresses OpenNearest opens at the same time.
const parallelOpens = 8
