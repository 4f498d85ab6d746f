package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/cairn-ckpt/cairn/group/tcp"
)

// ErrMalformed reports a value in etcd that is none of this package's.
var ErrMalformed = errors.New("malformed value in etcd")

const (
	maxValue   = 4 << 10 // of a value in etcd
	maxSize    = 1 << 20 // of a group
	maxHost    = 512     // of the name of a host
	lastNumber = 1 << 53 // of a generation: JSON has no larger integers
)

// keys are the names of what a job has in etcd. Numbers in them have as many
// digits, so that they sort.
type keys string

func keysOf(job string) keys { return keys("cairn/" + url.PathEscape(job) + "/") }

// meeting is the record, and where the addresses begin.
func (k keys) meeting() string                 { return string(k) + "meeting" }
func (k keys) address(gen int64) string        { return fmt.Sprintf("%smeeting/%016d", k, gen) }
func (k keys) seats(gen int64) string          { return fmt.Sprintf("%sseats/%016d/", k, gen) }
func (k keys) seat(gen int64, rank int) string { return fmt.Sprintf("%s%08d", k.seats(gen), rank) }

// meeting is the record of a job's latest meeting. The zero value is that of a job
// that never met.
type meeting struct {
	Generation int64 `json:"generation"`
	Size       int   `json:"size"` // zero: rank 0 did not say
	Met        bool  `json:"met"`  // rank 0 has left
}

func (m meeting) encode() string {
	b, err := json.Marshal(m)
	if err != nil { // numbers and a bool
		panic(err)
	}
	return string(b)
}

func decodeMeeting(b []byte) (meeting, error) {
	var m meeting
	if len(b) > maxValue {
		return m, fmt.Errorf("record of %d bytes: %w", len(b), ErrMalformed)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return meeting{}, fmt.Errorf("record: %w: %w", ErrMalformed, err)
	}
	if m.Generation < 1 || m.Generation >= lastNumber || m.Size < 0 || m.Size > maxSize {
		return meeting{}, fmt.Errorf("record: generation %d, size %d: %w", m.Generation, m.Size, ErrMalformed)
	}
	return m, nil
}

// decodeAddress returns where rank 0 listens.
func decodeAddress(b []byte) (string, error) {
	if err := tcp.CheckAddress(string(b)); err != nil {
		return "", fmt.Errorf("address: %w: %v", ErrMalformed, err) // nobody's argument
	}
	return string(b), nil
}

// holder is who has a seat, for those who would like to have it.
type holder struct {
	Host string `json:"host"`
	PID  int    `json:"pid"`
}

// self returns this process.
func self() holder {
	host, _ := os.Hostname() // "" is as good as any
	if len(host) > maxHost {
		host = host[:maxHost]
	}
	return holder{host, os.Getpid()}
}

func (h holder) encode() string {
	b, err := json.Marshal(h)
	if err != nil { // a text and a number
		panic(err)
	}
	return string(b)
}

// describeHolder returns who has a seat, in words.
func describeHolder(b []byte) string {
	var h holder
	if len(b) > maxValue || json.Unmarshal(b, &h) != nil || len(h.Host) > maxHost {
		return "somebody who does not say who it is"
	}
	return fmt.Sprintf("process %d on %q", h.PID, h.Host)
}
