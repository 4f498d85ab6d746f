package memory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// A host needs room for two checkpoints, under each of the bounds. The error names the sizes and a remedy.
func TestSpaceCheck(t *testing.T) {
	const most = 1000e9
	plenty := space{Name: "n1", Root: "/dev/shm/cairn-0", Free: most, Total: most}
	with := func(change func(s *space)) space {
		s := plenty
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		space
		want error
		text string
	}{
		"plenty":                      {plenty, nil, ""},
		"nothing is known":            {with(func(s *space) { s.Free, s.Total = 0, 0 }), nil, ""},
		"just enough":                 {with(func(s *space) { s.Free = 60e9 }), nil, ""},
		"one of two is there":         {with(func(s *space) { s.Free, s.Held = 30e9, 30e9 }), nil, ""},
		"one byte too little":         {with(func(s *space) { s.Free = 60e9 - 1 }), ErrRoom, "needs 60.00 GB for two checkpoints (the files of its ranks, 10.00 GB, and copies of files of other hosts, 20.00 GB, each twice)"},
		"the file system":             {with(func(s *space) { s.Free = 0 }), ErrRoom, "/dev/shm/cairn-0 has 1000.00 GB, of which 0 bytes are free; set CAIRN_MEMORY to"},
		"two are there":               {with(func(s *space) { s.Free, s.Held = 1e9, 60e9 }), ErrFull, "has 60.00 GB of the run now"},
		"a ceiling":                   {with(func(s *space) { s.Ceiling = 50e9 }), ErrRoom, "CAIRN_MEMORY_BYTES is 50.00 GB"},
		"a ceiling that is enough":    {with(func(s *space) { s.Ceiling = 60e9 }), nil, ""},
		"other runs below a ceiling":  {with(func(s *space) { s.Ceiling, s.Others = 60e9, 2e6 }), ErrRoom, "other runs have 2.00 MB"},
		"two below a ceiling":         {with(func(s *space) { s.Ceiling, s.Held = 60e9, 40e9 }), ErrFull, "CAIRN_MEMORY_BYTES"},
		"a container":                 {with(func(s *space) { s.Group = cgroup{70e9, 20e9} }), ErrRoom, "the limit of the container (cgroup) is 70.00 GB, of which 20.00 GB are in use"},
		"a container with one of two": {with(func(s *space) { s.Group, s.Held = cgroup{70e9, 40e9}, 30e9 }), nil, ""},
		"a container that is over":    {with(func(s *space) { s.Group = cgroup{70e9, 80e9} }), ErrRoom, "give the container more memory"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.check(10e9, 20e9)
			if !errors.Is(err, c.want) || errors.Is(err, ErrFull) != (c.want == ErrFull) || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("check = %v; want %v with %q", err, c.want, c.text)
			}
		})
	}
}

func TestCgroupOf(t *testing.T) {
	v2, v1 := "proc/self/cgroup 0::/a/b", "proc/self/cgroup 5:cpu,cpuacct:/\n4:memory:/docker/x\n0::/"
	for name, c := range map[string]struct {
		files []string
		want  cgroup
	}{
		"none":                  {nil, cgroup{}},
		"no limit":              {[]string{v2, "sys/fs/cgroup/a/b/memory.max max"}, cgroup{}},
		"a limit":               {[]string{v2, "sys/fs/cgroup/a/b/memory.max 1000", "sys/fs/cgroup/a/b/memory.stat anon 30\nfile 500\nshmem 12\nshmem_thp 1"}, cgroup{1000, 42}},
		"the group above":       {[]string{v2, "sys/fs/cgroup/a/memory.max 1500", "sys/fs/cgroup/a/memory.stat anon 600", "sys/fs/cgroup/a/b/memory.max 1000"}, cgroup{1500, 600}},
		"in a container":        {[]string{"proc/self/cgroup 0::/", "sys/fs/cgroup/memory.max 3000"}, cgroup{Limit: 3000}},
		"the path of the host":  {[]string{v2, "sys/fs/cgroup/memory.max 4000"}, cgroup{Limit: 4000}},
		"a path above the root": {[]string{"proc/self/cgroup 0::/../x", "sys/fs/cgroup/x/memory.max 5000"}, cgroup{Limit: 5000}},
		"version 1": {[]string{v1, "sys/fs/cgroup/memory/memory.limit_in_bytes 9223372036854771712",
			"sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes 6000", "sys/fs/cgroup/memory/docker/x/memory.stat total_rss 7\ntotal_shmem 1"}, cgroup{6000, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, f := range c.files {
				path, text, _ := strings.Cut(f, " ")
				must.Do(t, os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755))
				must.Do(t, os.WriteFile(filepath.Join(root, path), []byte(text+"\n"), 0o644))
			}
			if got := cgroupOf(root); got != c.want {
				t.Errorf("cgroupOf = %+v; want %+v", got, c.want)
			}
		})
	}
}

// Each host counts the files of its ranks, and the copies that it receives. One rank without a run makes the
// measurement fail on all ranks.
func TestMeasure(t *testing.T) {
	roots := []ram.Root{ram.Root(t.TempDir()), ram.Root(t.TempDir()), ram.Root(t.TempDir())}
	host := []int{0, 1, 1, 2} // of each rank
	must.Do(t, os.MkdirAll(filepath.Join(string(roots[1]), "llama"), 0o700))
	must.Do(t, os.WriteFile(filepath.Join(string(roots[1]), "llama", "x"), make([]byte, 12345), 0o600))
	must.Do(t, os.MkdirAll(filepath.Join(string(roots[1]), "other"), 0o700))
	must.Do(t, os.WriteFile(filepath.Join(string(roots[1]), "other", "x"), make([]byte, 77), 0o600))

	onRanks := func(fn func(ctx context.Context, g group.Group, j *Job) error) {
		t.Helper()
		must.Do(t, inproc.Run(t.Context(), len(host), func(ctx context.Context, g group.Group) error {
			j, err := Join(ctx, g, roots[host[g.Rank()]], "llama", nil)
			if err != nil {
				return err
			}
			defer j.Leave()
			return errors.Join(fn(ctx, g, j), group.Each(ctx, g, "leave", func(context.Context) error { return nil }))
		}))
	}

	onRanks(func(ctx context.Context, g group.Group, j *Job) error {
		r, err := Measure(ctx, g, j, nil)
		if err != nil || g.Rank() != 0 {
			return err
		}
		if len(r.spaces) != 3 {
			return fmt.Errorf("%d hosts were measured; want 3", len(r.spaces))
		}
		if s := r.spaces[1]; s.Held != 12345 || s.Others != 77 || s.Total <= 0 || s.Free <= 0 {
			return fmt.Errorf("the second host is %+v", s)
		}
		const each = 1 << 20
		own, foreign := j.needs([]int64{each, each, each, each}, 1, nil)
		one := int64(each + each/stateOverhead + rankOverhead)
		if own[r.spaces[0].Host] != one || own[r.spaces[1].Host] != 2*one {
			return fmt.Errorf("own bytes are %v; want %d and %d", own, one, 2*one)
		}
		if n := foreign[r.spaces[0].Host] + foreign[r.spaces[1].Host] + foreign[r.spaces[2].Host]; n != 4*one {
			return fmt.Errorf("the copies have %d bytes; want %d", n, 4*one)
		}
		if err := r.Check([]int64{each, each, each, each}, 0); err != nil {
			return err
		}
		if err := r.Check([]int64{1 << 60, 0, 0, 0}, 2); !errors.Is(err, ErrRoom) {
			return fmt.Errorf("with 2^60 bytes, Check = %v; want ErrRoom", err)
		}
		return nil
	})

	broken := errors.New("no run here")
	onRanks(func(ctx context.Context, g group.Group, j *Job) error {
		var failed error
		if g.Rank() == 2 {
			j, failed = nil, broken
		}
		if _, err := Measure(ctx, g, j, failed); err == nil || !strings.Contains(err.Error(), broken.Error()) {
			return fmt.Errorf("Measure = %v; want the error of rank 2", err)
		}
		return nil
	})

	t.Setenv(BytesVariable, "8GiB")
	onRanks(func(ctx context.Context, g group.Group, j *Job) error {
		if _, err := Measure(ctx, g, j, nil); err == nil || !strings.Contains(err.Error(), "want a number of bytes") {
			return fmt.Errorf("Measure = %v; want the error of the variable", err)
		}
		return nil
	})
}
