package ram

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

// ErrMembers reports a file of the hosts of a run that cannot be read.
var ErrMembers = errors.New("the hosts of the run are not known")

// Members are the hosts that hold a run, and how to reach them.
type Members struct {
	Version int `json:"version"`
	// Secret is the proof of membership.
	Secret []byte `json:"secret"`
	// Epoch is the number of the last job that has begun to hold the run on this host: larger than those of
	// the jobs before. Confirmed is the number of the last one of which a checkpoint had its copies.
	Epoch     int64 `json:"epoch,omitempty"`
	Confirmed int64 `json:"confirmed,omitempty"`
	// Copies is how many other hosts have a copy of each file. Zero: no checkpoint has copies yet.
	Copies int    `json:"copies,omitempty"`
	Hosts  []Host `json:"hosts"`
}

// Host is a host that holds a part of a run.
type Host struct {
	// ID is the HostID of the host, Name its name for messages.
	ID   string `json:"id"`
	Name string `json:"name"`
	// Domain is the fault domain of the host. Hosts of one domain may be lost together.
	Domain string `json:"domain,omitempty"`
	// Addresses are where processes of the host serve its files, host:port.
	Addresses []string `json:"addresses"`
	// Interface is the name of the network interface of the addresses, if it is known.
	Interface string `json:"interface,omitempty"`
	// Left means that the host is not a host of the job any more. It may still have files.
	Left bool `json:"left,omitempty"`
}

const (
	membersVersion = 1
	maxMembers     = 16 << 20 // bytes of the file
)

// sealed is the file: members, and a checksum of their text.
type sealed struct {
	CRC32C  string          `json:"crc32c"`
	Members json.RawMessage `json:"members"`
}

// membersPath returns the file of the hosts of a run.
func (r Root) membersPath(run string) (string, error) {
	folder, err := r.Folder(run)
	return folder + membersTail, err
}

// ReadMembers returns the hosts of a run. There are none if it has not been saved to on this host.
// The error wraps ErrMembers if the file is damaged: then it is not known who holds the run.
func (r Root) ReadMembers(run string) (*Members, error) {
	path, err := r.membersPath(run)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Members{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxMembers+1))
	if err != nil {
		return nil, err
	}
	m, err := decodeMembers(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrMembers, path, err)
	}
	return m, nil
}

// decodeMembers decodes the file of the hosts of a run.
func decodeMembers(data []byte) (*Members, error) {
	if len(data) > maxMembers {
		return nil, fmt.Errorf("more than %d bytes", maxMembers)
	}
	var s sealed
	if err := decodeStrict(data, &s); err != nil {
		return nil, err
	}
	if sum := checksum(s.Members); s.CRC32C != sum {
		return nil, fmt.Errorf("the checksum is %s, and %s in the file", sum, s.CRC32C)
	}

	var version struct{ Version int }
	if err := json.Unmarshal(s.Members, &version); err != nil {
		return nil, err
	}
	if version.Version != membersVersion {
		return nil, fmt.Errorf("version %d: this program knows version %d", version.Version, membersVersion)
	}
	m := new(Members)
	if err := decodeStrict(s.Members, m); err != nil {
		return nil, err
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, nil
}

// decodeStrict decodes one JSON value without unknown fields.
func decodeStrict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	return nil
}

// check returns an error if the hosts make no sense.
func (m *Members) check() error {
	seen := map[string]bool{}
	for _, h := range m.Hosts {
		if h.ID == "" || seen[h.ID] {
			return fmt.Errorf("the host %q has no id, or comes twice", h.Name)
		}
		seen[h.ID] = true
	}
	if m.Copies < 0 {
		return fmt.Errorf("%d copies", m.Copies)
	}
	if len(m.Hosts) > 0 && len(m.Secret) == 0 {
		return errors.New("there is no secret")
	}
	return nil
}

func checksum(data []byte) string {
	return fmt.Sprintf("%08x", crc32c.Checksum(data))
}

// WriteMembers replaces the hosts of a run, in one atomic step. Only this user can read the file.
func (r Root) WriteMembers(run string, m *Members) error {
	m.Version = membersVersion
	if err := m.check(); err != nil {
		return fmt.Errorf("%w: %w", ErrMembers, err)
	}
	path, err := r.membersPath(run)
	if err != nil {
		return err
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	data, err := json.Marshal(sealed{checksum(body), body})
	if err != nil {
		return err
	}
	return replace(path, data)
}

// replace writes a file in one atomic step.
func replace(path string, data []byte) error {
	temp, err := writeTemp(path, data)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return err
	}
	return nil
}

// Remove removes a run from the memory of this host, with all of its checkpoints.
func (r Root) Remove(run string) error {
	folder, err := r.Folder(run)
	if err != nil {
		return err
	}
	// The list of hosts goes last: files without it would belong to no run.
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	for _, tail := range []string{sumsTail, membersTail} {
		if err := os.Remove(filepath.Clean(folder + tail)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
