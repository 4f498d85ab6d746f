package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

// SettingsFile is the name of the file in the folder of a run that holds its Settings.
const SettingsFile = "cairn-run.json"

// Settings are stored with a run, so that commands need no flags for them.
type Settings struct {
	// ID identifies the run: its folder and its remote place have the same. Empty: the run has
	// no id yet. WriteSettings makes one.
	ID string
	// Remote is the address of the run in another store, to which its checkpoints are
	// uploaded. Empty: there is none.
	Remote string
	// Keep and KeepRemote are the policies of the run and of the remote one.
	Keep, KeepRemote Policy
	// Rewound is set if the run goes on from an older checkpoint; see Run.Rewind.
	Rewound *Rewound
}

// settingsDocument is the file.
type settingsDocument struct {
	Version    int      `json:"version"`
	CRC        string   `json:"crc32c,omitempty"` // of the document without it
	ID         string   `json:"id,omitempty"`
	Remote     string   `json:"remote,omitempty"`
	Keep       string   `json:"keep,omitempty"`
	KeepRemote string   `json:"keep_remote,omitempty"`
	Rewound    *Rewound `json:"rewound,omitempty"`
}

// harmless are the keys of the query of an address that hold no secrets. Other keys, such as
// those of a token, are not stored.
var harmless = []string{"endpoint", "region", "path_style", "unconditional", "account"}

// withoutSecrets returns an address without its user, and without the parts of its query
// that may hold a secret.
func withoutSecrets(address string) string {
	bare := blob.Redact(address)
	u, err := url.Parse(address)
	if bare == address || err != nil || !strings.Contains(address, "://") {
		return bare
	}
	query := u.Query()
	for key := range query {
		if !slices.Contains(harmless, key) {
			query.Del(key)
		}
	}
	if e, err := url.Parse(query.Get("endpoint")); err != nil || e.User != nil || e.RawQuery != "" {
		query.Del("endpoint")
	}
	if len(query) == 0 {
		return bare
	}
	return bare + "?" + query.Encode()
}

func (s *Settings) encode() ([]byte, error) {
	d := settingsDocument{Version: documentVersion, ID: s.ID, Remote: withoutSecrets(s.Remote), Rewound: s.Rewound}
	for _, p := range []struct {
		from *Policy
		to   *string
	}{{&s.Keep, &d.Keep}, {&s.KeepRemote, &d.KeepRemote}} {
		text, err := p.from.MarshalText()
		if err != nil {
			return nil, err
		}
		*p.to = string(text)
	}
	crc, err := seal(&d)
	if err != nil {
		return nil, err
	}
	d.CRC = crc
	b, err := json.MarshalIndent(&d, "", "  ")
	return append(b, '\n'), err
}

func decodeSettings(data []byte) (Settings, error) {
	var d settingsDocument
	var s Settings
	if err := decodeDocument(data, documentVersion, &d); err != nil {
		return s, err
	}
	crc := d.CRC
	d.CRC = ""
	if err := checkSeal(&d, crc); err != nil {
		return s, fmt.Errorf("%w; it was changed without 'cairn settings'", err)
	}
	if d.ID != "" && CheckID(d.ID) != nil {
		return s, fmt.Errorf("%w: the id is %.40q", storage.ErrCorrupt, d.ID)
	}
	keep, err := ParsePolicy(d.Keep)
	if err != nil {
		return s, fmt.Errorf("keep: %w", err)
	}
	keepRemote, err := ParsePolicy(d.KeepRemote)
	if err != nil {
		return s, fmt.Errorf("keep_remote: %w", err)
	}
	if r := d.Rewound; r != nil && (r.To == "" || r.Commit < 1) {
		return s, fmt.Errorf("%w: rewound to %q at commit %d", storage.ErrCorrupt, r.To, r.Commit)
	}
	return Settings{ID: d.ID, Remote: d.Remote, Keep: keep, KeepRemote: keepRemote, Rewound: d.Rewound}, nil
}

// ReadSettings returns the settings of the run in store. They are empty if it has none.
func ReadSettings(ctx context.Context, store blob.Store) (Settings, error) {
	data, _, err := readDocument(ctx, store, SettingsFile)
	if err != nil || data == nil {
		return Settings{}, err
	}
	s, err := decodeSettings(data)
	if err != nil {
		return Settings{}, unreadable(store, err)
	}
	return s, nil
}

// unreadable explains an error about the contents of the settings in store.
func unreadable(store blob.Store, err error) error {
	if errors.Is(err, storage.ErrVersion) { // 'cairn settings' refuses to replace them
		return fmt.Errorf("%s of %s cannot be read, so no checkpoint is removed: %w: use the newer cairn", SettingsFile, store, err)
	}
	return fmt.Errorf("%s of %s cannot be read, so no checkpoint is removed: %w; 'cairn settings' sets the policies again, and 'cairn rewind' the checkpoint from which the run goes on", SettingsFile, store, err)
}

// WriteSettings replaces the settings of the run in store, unless they are the same. Without an
// id, they get the id that is there, or a new one. The address of the remote run is stored
// without its user and its query, except for keys that hold no secrets, such as endpoint and
// region.
func WriteSettings(ctx context.Context, store blob.Store, s Settings) error {
	id := newID()
	return changeDocument(ctx, store, SettingsFile, func(old []byte) ([]byte, error) {
		out := s
		stored, err := decodeSettings(old)
		if old != nil && errors.Is(err, storage.ErrVersion) {
			return nil, unreadable(store, err)
		}
		if err == nil && stored.Rewound.after(out.Rewound) {
			out.Rewound = stored.Rewound // by another process, meanwhile
		}
		out.ID = cmp.Or(out.ID, stored.ID, id)
		return out.encode()
	})
}

// changeSettings replaces the settings of the run in store by the result of change. If
// another process changes them meanwhile, it begins again. Settings that cannot be read are an
// error.
func changeSettings(ctx context.Context, store blob.Store, change func(stored Settings) (Settings, error)) error {
	id := newID()
	return changeDocument(ctx, store, SettingsFile, func(old []byte) ([]byte, error) {
		var stored Settings
		if old != nil {
			var err error
			if stored, err = decodeSettings(old); err != nil {
				return nil, unreadable(store, err)
			}
		}

		s, err := change(stored)
		if err != nil {
			return nil, err
		}
		if s.ID == "" {
			s.ID = id
		}
		return s.encode()
	})
}

// isZero reports whether no setting is set.
func (s *Settings) isZero() bool {
	return s.Remote == "" && s.Keep.KeepsAll() && s.KeepRemote.KeepsAll() && s.Rewound == nil
}

// or returns s, with the fields of other in place of fields that are not set.
func (s Settings) or(other Settings) Settings {
	if s.ID == "" {
		s.ID = other.ID
	}
	if s.Remote == "" {
		s.Remote = other.Remote
	}
	if s.Keep.KeepsAll() {
		s.Keep = other.Keep
	}
	if s.KeepRemote.KeepsAll() {
		s.KeepRemote = other.KeepRemote
	}
	if other.Rewound.after(s.Rewound) {
		s.Rewound = other.Rewound
	}
	return s
}
