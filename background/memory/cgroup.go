package memory

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroup is the memory of the container. A Limit of zero means that there is none.
type cgroup struct {
	Limit int64 `json:"limit"`
	// Used is the memory that the system cannot take back: of processes, and of files in memory.
	Used int64 `json:"used"`
}

// cgroupOf returns the cgroup of this process that has the least memory left, of version 1 or 2: the
// limits of the groups above it apply too. root is "/", except in tests.
func cgroupOf(root string) cgroup {
	var out cgroup
	data, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		base, limit, fields := "sys/fs/cgroup", "memory.max", []string{"anon", "shmem"}
		if parts[1] != "" {
			if !strings.Contains(","+parts[1]+",", ",memory,") {
				continue
			}
			base, limit, fields = "sys/fs/cgroup/memory", "memory.limit_in_bytes", []string{"total_rss", "total_shmem"}
		}
		// In a container, the path may be one of the host, which is not visible.
		at := filepath.Join(root, base)
		for _, name := range append([]string{"."}, strings.Split(filepath.Clean("/"+parts[2]), "/")...) {
			at = filepath.Join(at, name)
			g := cgroup{Limit: number(filepath.Join(at, limit)), Used: sum(filepath.Join(at, "memory.stat"), fields)}
			if g.Limit > 0 && g.Limit < 1<<62 && (out.Limit == 0 || g.Limit-g.Used < out.Limit-out.Used) {
				out = g
			}
		}
	}
	return out
}

// number returns the number in a file, or 0 if it has none.
func number(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64) // "max" means that there is no limit
	return n
}

// sum returns the sum of some fields of a file with a field and a number on each line.
func sum(path string, fields []string) (n int64) {
	data, _ := os.ReadFile(path) // without the file, nothing is known to be in use
	for line := range strings.Lines(string(data)) {
		for _, field := range fields {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), field+" "); ok {
				v, _ := strconv.ParseInt(value, 10, 64)
				n += v
			}
		}
	}
	return n
}
