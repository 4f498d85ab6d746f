package tcp_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/group/tcp/tcptest"
)

func TestInvalidConfigurations(t *testing.T) {
	for field, change := range map[string]func(c *tcp.Config){
		"Timeout":     func(c *tcp.Config) { c.Timeout = -1 },
		"IdleTimeout": func(c *tcp.Config) { c.IdleTimeout = -1 },
		"Arity":       func(c *tcp.Config) { c.Arity = -1 },
		"MaxMessage":  func(c *tcp.Config) { c.MaxMessage = -1 },
		"MaxSize":     func(c *tcp.Config) { c.MaxSize = -1 },
		"job name":    func(c *tcp.Config) { c.Job = strings.Repeat("x", 257) },
	} {
		c := tcptest.ByFile(t, 1)(0)
		change(&c)
		if _, err := tcp.Join(t.Context(), c); !errors.Is(err, group.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("Join = %v; want an invalid %s", err, field)
		}
	}
}

// Addresses that belong to another package say which; a password is not shown.
func TestRendezvousOfAnotherPackage(t *testing.T) {
	for _, address := range []string{"etcd://a:1,b:2/job", "etcds://me:hush@a/job"} {
		_, err := tcp.ParseRendezvous(address)
		if !errors.Is(err, group.ErrInvalid) || !strings.Contains(err.Error(), "set Config.Meet to the result of ParseRendezvous of package group/etcd") ||
			strings.Contains(err.Error(), "hush") {
			t.Errorf("ParseRendezvous(%q) = %v; want what to do", address, err)
		}
	}
}

func TestEnvNumber(t *testing.T) {
	e := &tcp.Env{Getenv: func(name string) string {
		return map[string]string{"RANK": "3", "WORLD_SIZE": "-4", "LOCAL_RANK": "three"}[name]
	}}
	if n, set, err := e.Number("RANK"); n != 3 || !set || err != nil {
		t.Errorf("Number = %d, %v, %v; want 3", n, set, err)
	}
	if n, set, err := e.Number("NODE_RANK"); n != 0 || set || err != nil {
		t.Errorf("Number of one that is not set = %d, %v, %v", n, set, err)
	}
	for _, name := range []string{"WORLD_SIZE", "LOCAL_RANK"} {
		if n, _, err := e.Number(name); !errors.Is(err, group.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("Number(%q) = %d, %v; want an invalid argument", name, n, err)
		}
	}
	if _, _, err := new(tcp.Env{Getenv: func(string) string { return "" }}).Slot(t.Context()); !errors.Is(err, group.ErrInvalid) || !strings.Contains(err.Error(), "RANK is not set") {
		t.Errorf("Slot without variables = %v; want which is not set", err)
	}
}

// Without RANK and WORLD_SIZE, the numbers of Slurm count: its tasks are ranks of one job.
func TestEnvOfSlurm(t *testing.T) {
	type vars = map[string]string
	env := func(v vars) *tcp.Env { return &tcp.Env{Getenv: func(name string) string { return v[name] }} }
	for _, c := range []struct {
		vars       vars
		launched   bool
		rank, size int
	}{
		{vars{}, false, -1, 0},
		{vars{"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, true, 2, 4},
		{vars{"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, false, 0, 1},
		{vars{"SLURM_PROCID": "1", "SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "2"}, true, 1, 2},
		{vars{"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "RANK": "5", "WORLD_SIZE": "8"}, true, 5, 8},
		{vars{"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "WORLD_SIZE": "8"}, true, -1, 0}, // a mixture is refused
		{vars{"SLURM_PROCID": "2"}, false, -1, 0},
		{vars{"SLURM_PROCID": "2", "SLURM_NTASKS": "x"}, true, -1, 0},
	} {
		e := env(c.vars)
		if got := e.Launched(); got != c.launched {
			t.Errorf("Launched with %v = %v; want %v", c.vars, got, c.launched)
		}
		rank, size, err := e.Slot(t.Context())
		if ok := err == nil; ok != (c.rank >= 0) || ok && (rank != c.rank || size != c.size) || !ok && !errors.Is(err, group.ErrInvalid) {
			t.Errorf("Slot with %v = %d, %d, %v; want %d of %d", c.vars, rank, size, err, c.rank, c.size)
		}
	}
	if _, err := env(vars{"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}).Place(); !errors.Is(err, group.ErrInvalid) || !strings.Contains(err.Error(), "scontrol show hostnames") {
		t.Errorf("Place = %v; want how to set MASTER_ADDR", err)
	}
}

// Processes of mpirun and of an Indexed Job of Kubernetes have numbers too.
func TestEnvOfMPIAndKubernetes(t *testing.T) {
	type vars = map[string]string
	for _, c := range []struct {
		vars       vars
		launched   bool
		rank, size int
	}{
		{vars{"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, true, 2, 4},
		{vars{"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, false, 0, 1},
		{vars{"PMI_RANK": "1", "PMI_SIZE": "3"}, true, 1, 3},
		{vars{"PMI_RANK": "1"}, false, -1, 0},
		// In a batch script, srun's variables are of the script, not of mpirun's processes.
		{vars{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, true, 3, 4},
		{vars{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "RANK": "1", "WORLD_SIZE": "2"}, true, 1, 2},
		{vars{"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4"}, true, 3, 4},
		{vars{"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "8", "RANK": "7"}, true, 7, 8},
		{vars{"JOB_COMPLETION_INDEX": "3"}, false, -1, 0}, // pods that do not belong together
	} {
		e := &tcp.Env{Getenv: func(name string) string { return c.vars[name] }}
		if got := e.Launched(); got != c.launched {
			t.Errorf("Launched with %v = %v; want %v", c.vars, got, c.launched)
		}
		rank, size, err := e.Slot(t.Context())
		if ok := err == nil; ok != (c.rank >= 0) || ok && (rank != c.rank || size != c.size) || !ok && !errors.Is(err, group.ErrInvalid) {
			t.Errorf("Slot with %v = %d, %d, %v; want %d of %d", c.vars, rank, size, err, c.rank, c.size)
		}
	}
}

// No error shows a password, whatever the address is.
func TestErrorsShowNoPassword(t *testing.T) {
	for _, address := range []string{"zk://me:hush@a/j", "zk://me:hu/sh@a/j", "zk://me:hush%zz@a", "me:hush@a", "env://me:hush@a", "file://me:hush@a/x", "zk://hush:1x@a"} {
		_, err := tcp.ParseRendezvous(address)
		if !errors.Is(err, group.ErrInvalid) || strings.Contains(err.Error(), "hu") {
			t.Errorf("ParseRendezvous(%q) = %v; want an error without the password", address, err)
		}
	}
}

func TestCheckAddress(t *testing.T) {
	for _, addr := range []string{"10.0.0.1:29500", "unix:/run/ränke.sock"} {
		if err := tcp.CheckAddress(addr); err != nil {
			t.Errorf("CheckAddress(%q) = %v", addr, err)
		}
	}
	for _, addr := range []string{"", "a:1\n", "a\x00:1", "\xff:1", strings.Repeat("x", 513)} {
		if err := tcp.CheckAddress(addr); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("CheckAddress(%q) = %v; want an invalid argument", addr, err)
		}
	}
}
