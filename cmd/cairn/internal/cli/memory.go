package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// memoryResult is the output of 'cairn memory --json'.
type memoryResult struct {
	Path string      `json:"path"`
	Host string      `json:"host"`
	Runs []memoryRun `json:"runs"`
}

// memoryRun describes a run in the memory of this host.
type memoryRun struct {
	Run string `json:"run"`
	// Step is the step of the newest complete checkpoint, with files of other hosts.
	Step        *int64 `json:"step"`
	Checkpoints int    `json:"checkpoints"`
	Bytes       int64  `json:"bytes"` // on this host
	// SpareBytes are the part of Bytes that is kept for the next save.
	SpareBytes int64        `json:"spare_bytes"`
	Hosts      []memoryHost `json:"hosts"`
	Problem    string       `json:"problem,omitempty"`
}

// memoryHost describes a host of a run.
type memoryHost struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Domain  string `json:"domain,omitempty"`
	Address string `json:"address"`
	// Interface is the name of the network interface of the address.
	Interface string `json:"interface,omitempty"`
	// CopiesOn are the ids of the hosts that keep copies of its files.
	CopiesOn []string `json:"copies_on,omitempty"`
	// State is "here", "answers", "silent" or "left".
	State string `json:"state"`
}

func newMemoryCmd() *cobra.Command {
	cmd := newCommand("memory", wantArgs(0, 0), nil, func(cmd *cobra.Command, _ []string) error { return runMemory(cmd) })
	cmd.AddCommand(newMemoryNameCmd(), newMemoryRmCmd())
	return cmd
}

func runMemory(cmd *cobra.Command) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	root, host, names, err := memoryHere()
	if err != nil {
		return err
	}
	res := memoryResult{Path: string(root), Host: host, Runs: []memoryRun{}}
	for _, name := range names {
		res.Runs = append(res.Runs, *describeMemory(ctx, root, host, name))
	}
	return o.result(res, func() { printMemory(o, &res) })
}

// memoryHere returns the memory of this host, its id, and its runs.
func memoryHere() (root ram.Root, host string, names []string, err error) {
	if root, err = ram.Here(); err != nil {
		return "", "", nil, err
	}
	if host, err = root.HostID(); err != nil {
		return "", "", nil, err
	}
	names, err = root.Runs()
	return root, host, names, err
}

// describeMemory describes a run in memory.
func describeMemory(ctx context.Context, root ram.Root, host, name string) *memoryRun {
	r := &memoryRun{Run: name, Hosts: []memoryHost{}}
	if err := r.look(ctx, root, host); err != nil {
		r.Problem = err.Error()
	}
	return r
}

// memoryOf describes the run in memory of an address.
func memoryOf(ctx context.Context, address string) (*memoryRun, error) {
	name, _, err := ram.Split(address)
	if err != nil {
		return nil, err
	}
	root, host, names, err := memoryHere()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(names, name) {
		return nil, fmt.Errorf("%w: %s: this host has no such run in memory", storage.ErrNotFound, address)
	}
	return describeMemory(ctx, root, host, name), nil
}

// look finds out the hosts and the checkpoints of the run.
func (r *memoryRun) look(ctx context.Context, root ram.Root, own string) error {
	var err error
	if r.Bytes, err = root.Bytes(r.Run); err != nil {
		return err
	}
	local, err := root.OpenLocal(r.Run)
	if err != nil {
		return err
	}
	r.SpareBytes = local.SpareBytes()
	m, err := root.ReadMembers(r.Run)
	if err != nil {
		return err
	}
	var staying []ram.Host
	for _, h := range m.Hosts {
		if !h.Left {
			staying = append(staying, h)
		}
	}
	partners := memory.Partners(staying, m.Copies)
	for _, h := range m.Hosts {
		x := memoryHost{ID: h.ID, Name: h.Name, Domain: h.Domain, Interface: h.Interface, CopiesOn: partners[h.ID], State: "answers"}
		address, err := h.Reach(ctx, m.Secret)
		x.Address = address
		switch {
		case h.ID == own:
			x.State = "here"
		case h.Left:
			x.State = "left"
		case err != nil:
			x.State = "silent"
		}
		r.Hosts = append(r.Hosts, x)
	}

	opened, err := run.Open(ctx, "memory://"+r.Run, "")
	if err != nil {
		return err
	}
	list, err := opened.Checkpoints(ctx)
	if err != nil {
		return err
	}
	r.Checkpoints = len(list)
	found, err := opened.Latest(ctx)
	if err == nil {
		r.Step = found.Step
	} else if errors.Is(err, storage.ErrNotFound) {
		err = nil
	}
	return err
}

func printMemory(o *output, res *memoryResult) {
	if len(res.Runs) == 0 {
		o.remark("%s: no runs in memory\n", clean(res.Path))
		return
	}
	printHosts(o, res.Runs)
	o.remark("\n'cairn log memory:RUN' lists the checkpoints of a run, 'cairn memory rm RUN' frees the memory\n")
}

// printHosts prints runs in memory, a line for each of their hosts.
func printHosts(o *output, runs []memoryRun) {
	t := newRows("RUN", ">STEP", ">CHECKPOINTS", ">BYTES HERE", ">SPARE", "HOST", "STATE", "NETWORK", "COPIES ON")
	for _, r := range runs {
		cells := []string{r.Run, formatStep(r.Step), fmt.Sprint(r.Checkpoints), formatBytes(r.Bytes), formatBytes(r.SpareBytes)}
		names := map[string]string{}
		for _, h := range r.Hosts {
			names[h.ID] = h.Name
		}
		for _, h := range r.Hosts {
			var on []string
			for _, id := range h.CopiesOn {
				on = append(on, names[id])
			}
			t.add(append(slices.Clone(cells), clean(h.Name), h.State, clean(strings.TrimSpace(h.Interface+" "+h.Address)), clean(strings.Join(on, ", ")))...)
		}
		if len(r.Hosts) == 0 {
			t.add(append(cells, "", "", "", "")...)
		}
	}
	o.table(t)
	for _, r := range runs {
		if r.Problem != "" {
			o.warn("memory://%s: %s", r.Run, clean(oneLine(r.Problem)))
		}
	}
}

// memoryName is the output of 'cairn memory name --json'.
type memoryName struct {
	Path   string `json:"path"`
	Memory string `json:"memory"`
}

func newMemoryNameCmd() *cobra.Command {
	return newCommand("memory-name", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		name, err := ram.Beside(args[0])
		if err != nil {
			return err
		}
		o, res := outputOf(cmd), memoryName{blob.Redact(args[0]), "memory://" + name}
		return o.result(res, func() { fmt.Fprintln(o.out, res.Memory) })
	})
}

// removedMemory is the output of 'cairn memory rm --json'.
type removedMemory struct {
	Path  string `json:"path"`
	Bytes int64  `json:"removed_bytes"`
}

func newMemoryRmCmd() *cobra.Command {
	var force bool
	complete := func(*cobra.Command, []string, string) (out []string, _ cobra.ShellCompDirective) {
		if root, err := ram.Here(); err == nil {
			out, _ = root.Runs() // without a name, nothing is completed
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	cmd := newCommand("memory-rm", wantArgs(1, 1), complete, func(cmd *cobra.Command, args []string) error {
		return runMemoryRm(cmd, strings.TrimPrefix(strings.TrimPrefix(args[0], "memory:"), "//"), force)
	})
	cmd.Flags().BoolVar(&force, "force", false, "also remove a run that a process of this host holds")
	return cmd
}

func runMemoryRm(cmd *cobra.Command, name string, force bool) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	root, err := ram.Here()
	if err != nil {
		return err
	}
	folder, err := root.Folder(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
		return withHint(fmt.Errorf("%w: this host has no run %s in memory", storage.ErrNotFound, name), "'cairn memory' lists the runs of this host")
	}
	if !force {
		if err := checkHeld(ctx, root, name); err != nil {
			return err
		}
	}
	res := removedMemory{Path: "memory://" + name}
	if res.Bytes, err = root.Bytes(name); err != nil {
		return err
	}
	if err := root.Remove(name); err != nil {
		return err
	}
	return o.result(res, func() { o.printf("%s: removed from this host, %s\n", res.Path, formatBytes(res.Bytes)) })
}

// checkHeld returns an error that wraps storage.ErrInUse if a process of this host serves a run.
func checkHeld(ctx context.Context, root ram.Root, name string) error {
	own, err := root.HostID()
	if err != nil {
		return err
	}
	m, err := root.ReadMembers(name)
	if err != nil {
		return withHint(err, "--force removes the run")
	}
	for _, h := range m.Hosts {
		if h.ID != own {
			continue
		}
		if address, err := h.Reach(ctx, m.Secret); err == nil {
			return withHint(fmt.Errorf("memory://%s: %w: a process of this host serves it at %s", name, storage.ErrInUse, address), "end the job first, or use --force")
		}
	}
	return nil
}
