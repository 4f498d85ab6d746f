package run

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// The errors of a remote place that a run must not change.
var (
	// ErrOtherRun reports a remote place with the id of another run.
	ErrOtherRun = errors.New("the remote place belongs to another run")
	// ErrUnconfirmed reports a remote place that only a file in the folder of the run names:
	// the file may have come from elsewhere, so a user or a program must name the place too.
	ErrUnconfirmed = errors.New("only " + SettingsFile + " names the remote place")
)

// newID returns the id of a new run.
func newID() string { return strings.ToLower(crand.Text()) }

var ids = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]{0,63}$`)

// CheckID returns an error that wraps storage.ErrOptions unless id can be the id of a run.
func CheckID(id string) error {
	if ids.MatchString(id) {
		return nil
	}
	return fmt.Errorf("%w: the id %.80q: want 1 to 64 letters, digits, dots, dashes and underscores", storage.ErrOptions, id)
}

// settings returns the settings of both places.
func (r *Run) settings(ctx context.Context) (local, remote Settings, err error) {
	if local, err = ReadSettings(ctx, r.Local.Store); err != nil {
		return local, remote, err
	}
	if remote, err = ReadSettings(ctx, r.Remote.Store); err != nil {
		return local, remote, fmt.Errorf("the run to which the remote place belongs is unknown: %w", err)
	}
	return local, remote, r.checkIDs(local.ID, remote.ID)
}

// ids returns the ids of both places. One without an id is empty.
func (r *Run) ids(ctx context.Context) (local, remote string, err error) {
	here, there, err := r.settings(ctx)
	return here.ID, there.ID, err
}

// checkIDs returns an error if both places have ids that are not equal.
func (r *Run) checkIDs(local, remote string) error {
	if local == "" || remote == "" || local == remote {
		return nil
	}
	return fmt.Errorf("%w: %s has the id %s, and %s has %s: choose another remote place or, if both hold the same run, 'cairn settings %s --id %s'",
		ErrOtherRun, r.Remote, remote, r.Local, local, r.Local, remote)
}

// unconfirmed returns the error of a remote place that only a file names.
func (r *Run) unconfirmed() error {
	return fmt.Errorf("%w, %s: if it is right, 'cairn settings %s --remote %s' confirms it once for this user, and --remote for one command",
		ErrUnconfirmed, r.Remote, r.Local, r.Remote)
}

// Join makes sure that checkpoints may be uploaded to the remote place. It gives the place the id of
// the run if it has none, and the last rewind of the run. The error wraps ErrOtherRun if it has the id of another run. It wraps
// ErrUnconfirmed if only a file names the place, it does not have the id of the run, and this user
// has not confirmed it; see Confirm.
func (r *Run) Join(ctx context.Context) error {
	local, remote, err := r.settings(ctx)
	switch {
	case err != nil:
		return err
	case !r.owns(ctx, local.ID, remote.ID):
		return r.unconfirmed()
	case local.ID == "": // no job and no 'cairn settings' has made it a run with settings
		return nil
	case local.ID == remote.ID && !local.Rewound.after(remote.Rewound):
		return nil
	}
	return setID(ctx, r.Remote.Store, local.ID, local.Rewound)
}

// Adopt returns the id that the run gets with its remote place: id, the id of the place if id is
// empty, or a new one. If the place has checkpoints or settings, it gets the same id. Otherwise the
// first upload sets it. The error wraps ErrOtherRun if the place has another id.
func (r *Run) Adopt(ctx context.Context, id string) (string, error) {
	there, err := ReadSettings(ctx, r.Remote.Store)
	if err != nil {
		return id, err
	}
	if err := r.checkIDs(id, there.ID); err != nil {
		return id, err
	}
	if id = cmp.Or(id, there.ID, newID()); id == there.ID {
		return id, nil
	}
	if r.Remote.isEmpty(ctx) {
		return id, nil
	}
	return id, setID(ctx, r.Remote.Store, id, nil)
}

// setID gives the run in store an id, unless it has one, and the later one of rewound and its own
// rewind. The error wraps ErrOtherRun if it has another id.
func setID(ctx context.Context, store blob.Store, id string, rewound *Rewound) error {
	return changeSettings(ctx, store, func(s Settings) (Settings, error) {
		if s.ID != "" && s.ID != id {
			return s, fmt.Errorf("%w: %s has the id %s, not %s", ErrOtherRun, store, s.ID, id)
		}
		s.ID = id
		if rewound.after(s.Rewound) {
			s.Rewound = rewound
		}
		return s, nil
	})
}

// mayRemove returns an error if this run must not remove or replace checkpoints of the remote
// place: it has the id of another run or, if only a file names it, not the id of this run or not
// the confirmation of this user. said means that the user has just confirmed it.
func (r *Run) mayRemove(ctx context.Context, said bool) error {
	local, remote, err := r.ids(ctx)
	switch {
	case err != nil || !r.Stored:
		return err
	case r.Remote.isEmpty(ctx):
		return nil
	case !said && !r.confirmed(ctx, local):
		return r.unconfirmed()
	case local == "" || local != remote:
		return fmt.Errorf("%w: it does not have the id of the run, %q: 'cairn sync %s' or 'cairn settings %s --remote %s' sets it",
			r.unconfirmed(), local, r.Local, r.Local, r.Remote)
	}
	return nil
}

// mayNote returns an error if this run must not change the notes of checkpoints in a place: a
// checkpoint of another run may be kept for its tags.
func (r *Run) mayNote(ctx context.Context, p *Place) error {
	if !p.remote {
		return nil
	}
	local, remote, err := r.ids(ctx)
	if err == nil && !r.owns(ctx, local, remote) {
		err = r.unconfirmed()
	}
	return err
}

// OwnsRemote reports whether the remote place belongs to the run: the caller names it, it has the id
// of the run, or this user has confirmed it. OwnsRemote returns true if the place cannot be read.
func (r *Run) OwnsRemote(ctx context.Context) bool {
	local, remote, err := r.ids(ctx)
	if err != nil {
		return !errors.Is(err, ErrOtherRun)
	}
	return r.owns(ctx, local, remote)
}

// owns is OwnsRemote for places with these ids.
func (r *Run) owns(ctx context.Context, local, remote string) bool {
	return !r.Stored || local != "" && local == remote || r.confirmed(ctx, local)
}

// Claim writes the settings of a process that names them itself into the folder of the run, where
// settings stay that the process does not have. If they have a remote place, both places get
// the same id, and Claim notes that this user has named the place. The error wraps ErrOtherRun if
// they have different ids.
func (r *Run) Claim(ctx context.Context, s Settings) error {
	if r.Remote != nil {
		s.Remote = r.Remote.absolute()
		there, err := ReadSettings(ctx, r.Remote.Store)
		if err != nil {
			return err
		}
		s.ID = there.ID
	}
	err := changeSettings(ctx, r.Local.Store, func(stored Settings) (Settings, error) {
		if err := r.checkIDs(stored.ID, s.ID); r.Remote != nil && err != nil {
			return s, err
		}
		return s.or(stored), nil
	})
	if err != nil || r.Remote == nil {
		return err
	}
	if err := r.Join(ctx); err != nil {
		return err
	}
	_ = r.Confirm(ctx) // the process names the place in each call; commands say how to confirm it
	return nil
}
