package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
)

// Rendezvous gives the ranks of a job the address of rank 0, with which they then
// register. It is used by one call of [Join].
type Rendezvous interface {
	// Slot returns this process's rank and the number of ranks. It is called if the
	// configuration does not contain them.
	Slot(ctx context.Context) (rank, size int, err error)
	// Place returns the address at which rank 0 must listen, or "" if it may be any
	// address.
	Place() (string, error)
	// Announce publishes addr, at which rank 0 listens, to the other ranks.
	Announce(ctx context.Context, addr string) error
	// Find returns the address at which rank 0 listens. It is called again if it
	// returns an error, or if rank 0 cannot be reached there.
	Find(ctx context.Context) (string, error)
	// Close withdraws the address that Announce published. It is called on every rank
	// after the ranks have met, or the rank has given up.
	Close() error
}

// ParseRendezvous returns the rendezvous for an address: "env://"
// (see [Env]), "env://?port=29501" for another port than MASTER_PORT, or
// "file:///path" (see [File]). Empty is "env://".
func ParseRendezvous(address string) (Rendezvous, error) {
	if address == "" {
		address = "env://"
	}

	if scheme, _, _ := strings.Cut(address, "://"); scheme == "etcd" || scheme == "etcds" {
		// The address is not shown: there may be a password in it.
		return nil, fmt.Errorf("rendezvous by %s: set Config.Meet to the result of ParseRendezvous of package group/etcd: %w", scheme, group.ErrInvalid)
	}

	u, err := url.Parse(address)
	shown := Redact(address)
	if err != nil {
		if shown != address {
			err = errors.New("it is not a URL") // the error may quote a password
		}
		return nil, fmt.Errorf("rendezvous %q: %w: %w", shown, group.ErrInvalid, err)
	}

	switch u.Scheme {
	case "env":
		return parseEnv(shown, u)
	case "file":
		if u.Host == "" && u.Path != "" && u.RawQuery == "" {
			return &File{Path: u.Path}, nil
		}
		return nil, fmt.Errorf("rendezvous %q: want file:///absolute/path: %w", shown, group.ErrInvalid)
	}

	return nil, fmt.Errorf("rendezvous %q: the scheme is not env, file or etcd: %w", shown, group.ErrInvalid)
}

// Redact returns an address without the possible password: all text between its scheme and
// its last "@".
func Redact(address string) string {
	at := strings.LastIndexByte(address, '@')
	if at < 0 {
		return address
	}
	scheme, _, found := strings.Cut(address[:at], "://")
	if !found {
		return "…" + address[at:]
	}
	return scheme + "://…" + address[at:]
}

func parseEnv(address string, u *url.URL) (*Env, error) {
	q := u.Query()
	port := q.Get("port")
	q.Del("port")
	if u.Host != "" || strings.Trim(u.Path, "/") != "" || len(q) > 0 {
		return nil, fmt.Errorf("rendezvous %q: want env:// or env://?port=N: %w", address, group.ErrInvalid)
	}

	if _, err := strconv.ParseUint(port, 10, 16); port != "" && err != nil {
		return nil, fmt.Errorf("rendezvous %q: port %q is not a number up to 65535: %w", address, port, group.ErrInvalid)
	}
	return &Env{Port: port}, nil
}

// Env is the [Rendezvous] by the environment variables that torchrun, Slurm scripts and
// Kubernetes set: rank 0 listens at MASTER_ADDR and MASTER_PORT, and RANK and WORLD_SIZE are
// this process's rank and the number of ranks. If RANK is not set, but WORLD_SIZE is, the
// rank is JOB_COMPLETION_INDEX, which an Indexed Job of Kubernetes sets. If neither is set,
// rank and size are the variables of mpirun (OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE,
// or PMI_RANK and PMI_SIZE), or the variables of srun (SLURM_PROCID and SLURM_NTASKS). A
// MASTER_ADDR of "unix:/path" is a socket. If MASTER_ADDR is a name that the host of rank 0
// itself cannot resolve, or resolves to loopback or to the address of another host, rank 0
// listens at all addresses, if there is a secret or mutual TLS.
type Env struct {
	// Port is used instead of MASTER_PORT if it is not empty: torchrun itself
	// may listen there.
	Port string
	// Getenv is used instead of os.Getenv if it is not nil.
	Getenv func(string) string
}

var _ Rendezvous = (*Env)(nil)

func (e *Env) get(name string) string {
	if e.Getenv != nil {
		return e.Getenv(name)
	}
	return os.Getenv(name)
}

// Number returns the number that a variable holds, and whether it is set. The error
// wraps [group.ErrInvalid] if the value is not a number or is negative.
func (e *Env) Number(name string) (n int, set bool, err error) {
	v := e.get(name)
	if v == "" {
		return 0, false, nil
	}
	n, err = strconv.Atoi(v)
	if err != nil || n < 0 {
		return 0, true, fmt.Errorf("environment variable %s is %q, not a number: %w", name, v, group.ErrInvalid)
	}
	return n, true, nil
}

// Slot returns RANK and WORLD_SIZE, or if neither is set the numbers of MPI or of Slurm.
func (e *Env) Slot(context.Context) (rank, size int, err error) {
	names := e.numbers()
	if rank, err = e.need(names.rank); err != nil {
		return 0, 0, err
	}
	size, err = e.need(names.size)
	return rank, size, err
}

// numbers are the variables in which a launcher numbers the processes that it starts.
type numbers struct{ rank, size string }

var (
	torchNumbers = numbers{"RANK", "WORLD_SIZE"}
	// kubernetesNumbers are of an Indexed Job. Kubernetes sets only the first; the manifest
	// sets the second.
	kubernetesNumbers = numbers{"JOB_COMPLETION_INDEX", "WORLD_SIZE"}
	// mpiNumbers are of Open MPI, and of MPICH, Intel MPI and others with its process manager.
	mpiNumbers = []numbers{{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"}}
	// slurmNumbers are of srun: the tasks of the step, or if that is not set of the job.
	slurmNumbers = []numbers{{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}, {"SLURM_PROCID", "SLURM_NTASKS"}}
)

// numbers returns the variables that number this process. MPI comes before Slurm: below
// mpirun in a batch script, the variables of Slurm number the script, not its processes.
func (e *Env) numbers() numbers {
	switch {
	case e.get("RANK") != "":
		return torchNumbers
	case e.get("WORLD_SIZE") != "" && e.get(kubernetesNumbers.rank) != "":
		return kubernetesNumbers
	case e.get("WORLD_SIZE") != "":
		return torchNumbers
	}

	for _, n := range mpiNumbers {
		if e.get(n.rank) != "" {
			return n
		}
	}

	for _, n := range slurmNumbers {
		if e.get(n.rank) != "" && (e.get(n.size) != "" || n == slurmNumbers[1]) {
			return n
		}
	}

	if e.get(kubernetesNumbers.rank) != "" {
		return kubernetesNumbers
	}
	return torchNumbers
}

// inSlurm reports whether Slurm numbers the ranks.
func (e *Env) inSlurm() bool { return e.numbers().rank == slurmNumbers[0].rank }

// Launched reports whether a launcher has started this process as one of several ranks: RANK
// or WORLD_SIZE is set, or MPI or Slurm has started more than one process. A program that can
// also run alone calls [Join] if Launched is true. It must not take an environment without
// WORLD_SIZE as its sign to run alone: with srun, each task would be a job of one rank.
func (e *Env) Launched() bool {
	if e.get("RANK") != "" || e.get("WORLD_SIZE") != "" {
		return true
	}
	n, _, err := e.Number(e.numbers().size)
	return err != nil || n > 1
}

// need returns the number that a variable holds, which must be set.
func (e *Env) need(name string) (int, error) {
	n, set, err := e.Number(name)
	if err == nil && !set {
		err = unset(name)
	}
	return n, err
}

// unset returns the error for a variable that is not set.
func unset(name string) error {
	return fmt.Errorf("environment variable %s is not set; a launcher sets it (such as cairn launch -n 4 -- PROGRAM): %w", name, group.ErrInvalid)
}

// Place returns MASTER_ADDR and MASTER_PORT.
func (e *Env) Place() (string, error) {
	host, port := e.get("MASTER_ADDR"), e.Port
	if host == "" && e.inSlurm() {
		return "", fmt.Errorf("environment variable MASTER_ADDR is not set; in the batch script of Slurm, set it to the first host "+
			`(export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)), and MASTER_PORT: %w`, group.ErrInvalid)
	}
	if host == "" {
		return "", unset("MASTER_ADDR")
	}
	if isUnix(host) {
		return host, nil
	}

	if port == "" {
		port = e.get("MASTER_PORT")
	}
	if port == "" {
		return "", unset("MASTER_PORT")
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port), nil
}

// Announce has no effect: the environment contains the address.
func (e *Env) Announce(context.Context, string) error { return nil }

// Find returns Place.
func (e *Env) Find(context.Context) (string, error) { return e.Place() }

// Close has no effect.
func (e *Env) Close() error { return nil }

// File is the [Rendezvous] by a file that all ranks can reach: rank 0 writes its
// address there, and removes it once the ranks have met. Ranks and size come from
// the configuration.
type File struct {
	// Path is the path of the file. Its folder must exist.
	Path string

	wrote string // the address that this rank has written
}

var _ Rendezvous = (*File)(nil)

// Slot returns an error: a file does not assign ranks.
func (f *File) Slot(context.Context) (rank, size int, err error) {
	return 0, 0, fmt.Errorf("rank and size are not set, and a rendezvous by a file does not assign them: %w", group.ErrInvalid)
}

// Place returns "": rank 0 may listen at any address.
func (f *File) Place() (string, error) { return "", nil }

// Announce writes the address to the file, in one step.
func (f *File) Announce(_ context.Context, addr string) error {
	tmp, err := os.CreateTemp(filepath.Dir(f.Path), "."+filepath.Base(f.Path)+"-*")
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	defer os.Remove(tmp.Name()) // has no effect after the rename

	_, err = tmp.WriteString(addr + "\n")
	if e := tmp.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(tmp.Name(), f.Path)
	}
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}

	f.wrote = addr
	return nil
}

// Find returns the address in the file.
func (f *File) Find(context.Context) (string, error) {
	b, err := f.read()
	if err != nil {
		return "", fmt.Errorf("find rank 0: %w", err)
	}

	addr, whole := strings.CutSuffix(string(b), "\n")
	if !whole {
		return "", fmt.Errorf("find rank 0: %s holds no address: %w", f.Path, group.ErrInvalid)
	}

	if err := CheckAddress(addr); err != nil {
		return "", fmt.Errorf("find rank 0: %s: %w", f.Path, err)
	}
	return addr, nil
}

// read returns the beginning of the file. It refuses anything but a regular file:
// reading a pipe, for example, could take forever.
func (f *File) read() ([]byte, error) {
	fi, err := os.Stat(f.Path)
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: %w", f.Path, group.ErrInvalid)
	}

	r, err := os.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, maxAddress+2))
}

// Close removes the file, if it still holds the address that this rank has written.
func (f *File) Close() error {
	if f.wrote == "" {
		return nil
	}
	if addr, err := f.Find(context.Background()); err != nil || addr != f.wrote {
		return nil // the file belongs to another meeting
	}
	return os.Remove(f.Path)
}
