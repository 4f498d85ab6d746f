package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/storage"
)

// BytesVariable is the environment variable that bounds the bytes of all runs in memory on a host.
const BytesVariable = "CAIRN_MEMORY_BYTES"

// ErrRoom reports a host that has too little memory for the checkpoints of a run.
var ErrRoom = errors.New("too little room in memory")

// ErrFull is an ErrRoom of a host that would have the room if it did not have more than one checkpoint of
// the run already.
var ErrFull = fmt.Errorf("%w for one more checkpoint", ErrRoom)

func init() {
	group.RegisterError("memory.full", ErrFull)
	group.RegisterError("memory.room", ErrRoom)
}

// space is the memory of a host. Negative sizes are unknown, and bounds that are zero do not exist.
type space struct {
	Host string `json:"host"`
	Name string `json:"name"`
	Root string `json:"root"`
	// Held are the bytes of the run without spare files, and Others of other runs.
	Held   int64 `json:"held"`
	Others int64 `json:"others"`
	// Ceiling is the value of BytesVariable.
	Ceiling int64 `json:"ceiling"`
	// Free and Total are the bytes of the file system.
	Free  int64 `json:"free"`
	Total int64 `json:"total"`
	// Group bounds the memory of the container.
	Group cgroup `json:"group"`
}

// Room knows the memory of the hosts. It is of use on rank 0.
type Room struct {
	job    *Job
	spaces []space
}

// Measure looks at the memory of all hosts, before a save. All ranks of g call it. j may be nil on a rank
// with an error of its own, with which Measure fails on all ranks.
func Measure(ctx context.Context, g group.Group, j *Job, failed error) (*Room, error) {
	r := &Room{job: j}
	_, err := group.Decide(ctx, g, "room in memory", group.JSON[*space](), group.JSON[bool](),
		func(context.Context) (*space, error) {
			if failed != nil {
				return nil, failed
			}
			if j.ranks[j.Host][0] != g.Rank() { // one rank of the host is enough
				return nil, nil
			}
			return j.space()
		},
		func(_ context.Context, all []*space) (bool, error) {
			for _, s := range all {
				if s != nil {
					r.spaces = append(r.spaces, *s)
				}
			}
			return true, nil
		})
	return r, err
}

// space describes the memory of this host.
func (j *Job) space() (*space, error) {
	s := &space{Host: j.Host, Name: j.host().Name, Root: string(j.Root), Group: cgroupOf("/")}
	if text := os.Getenv(BytesVariable); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("%w: %s is %q, want a number of bytes", storage.ErrOptions, BytesVariable, text)
		}
		s.Ceiling = n
	}
	runs, err := j.Root.Runs()
	if err != nil {
		return nil, err
	}
	for _, run := range runs {
		n, err := j.Root.Bytes(run)
		if err != nil {
			return nil, err
		}
		if run == j.Run {
			s.Held = n
		} else {
			s.Others += n
		}
	}
	s.Free, s.Total = fileSystem(filepath.Clean(string(j.Root)))

	local, err := j.Root.OpenLocal(j.Run)
	if err != nil {
		return nil, err
	}
	s.reuse(local.SpareBytes())
	return s, nil
}

// reuse counts n of the bytes that the run has as free: the save writes over its spare files.
func (s *space) reuse(n int64) {
	n = min(n, s.Held)
	s.Held, s.Free, s.Group.Used = s.Held-n, s.Free+n, s.Group.Used-n
}

// Check returns an error that wraps ErrRoom, and names the sizes, if a host has too little memory. written has for
// each rank how many bytes of the state it writes. copies is as in Saved.
//
// A host needs room for two checkpoints, one of which replaces the other: the files of its ranks and its copies
// of files of other hosts. The error wraps ErrFull if that is there, but not for one checkpoint more than the
// host has now.
func (r *Room) Check(written []int64, copies int) error {
	var full error
	own, foreign := r.job.needs(written, cmp.Or(copies, DefaultCopies), r.job.keepers)
	for i := range r.spaces {
		s := &r.spaces[i]
		err := s.check(own[s.Host], foreign[s.Host])
		if errors.Is(err, ErrFull) {
			full = cmp.Or(full, err)
		} else if err != nil {
			return err
		}
	}
	return full
}

// Bounds of the bytes of a checkpoint beside the bytes of the state: an index and headers, and padding.
const (
	stateOverhead = 256 // one byte more for each 256
	rankOverhead  = 64 << 10
)

// needs returns for each host how many bytes its ranks write, and how many bytes of copies it receives.
func (j *Job) needs(written []int64, copies int, keepers map[int][]int) (own, foreign map[string]int64) {
	own, foreign = map[string]int64{}, map[string]int64{}
	at := j.place(copies, keepers)
	for host, ranks := range j.ranks {
		for _, rank := range ranks {
			if rank < len(written) {
				n := written[rank] + written[rank]/stateOverhead + rankOverhead
				own[host] += n
				for _, to := range at.of(rank) {
					foreign[to] += n
				}
			}
		}
	}
	return own, foreign
}

// check returns an error if the host has no room for the files of its ranks and for copies.
func (s *space) check(own, foreign int64) error {
	need := own + foreign
	for _, bound := range []struct {
		most   int64 // of the run; negative: unknown
		text   string
		remedy string
	}{
		{known(s.Ceiling-s.Others, s.Ceiling), fmt.Sprintf("%s is %s, and other runs have %s", BytesVariable, gb(s.Ceiling), gb(s.Others)),
			"set a higher one"},
		{known(s.Free+s.Held, s.Total), fmt.Sprintf("%s has %s, of which %s are free", s.Root, gb(s.Total), gb(s.Free)),
			fmt.Sprintf("set %s to a folder in a larger volume", ram.Variable)},
		{known(s.Group.Limit-s.Group.Used+s.Held, s.Group.Limit), fmt.Sprintf("the limit of the container (cgroup) is %s, of which %s are in use", gb(s.Group.Limit), gb(s.Group.Used)),
			"give the container more memory"},
	} {
		if bound.most < 0 {
			continue
		}
		err := ErrRoom
		if 2*need <= bound.most {
			if s.Held+need <= bound.most {
				continue
			}
			err = ErrFull
		}
		return fmt.Errorf("%w: the host %s needs %s for two checkpoints (the files of its ranks, %s, and copies of files of other hosts, %s, each twice) and has %s of the run now, but %s; %s, make fewer copies, or use more hosts",
			err, s.Name, gb(2*need), gb(own), gb(foreign), gb(s.Held), bound.text, bound.remedy)
	}
	return nil
}

// known returns n, at least 0, if a bound exists, or -1.
func known(n, bound int64) int64 {
	if bound <= 0 {
		return -1
	}
	return max(n, 0)
}

// gb formats a number of bytes for messages.
func gb(n int64) string {
	switch {
	case n < 10e3:
		return fmt.Sprintf("%d bytes", n)
	case n < 100e6:
		return fmt.Sprintf("%.2f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/1e9)
}
