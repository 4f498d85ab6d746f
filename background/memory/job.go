// Package memory keeps checkpoints in the memory of the hosts of a job: it brings the hosts
// together, and copies the files of each host to others. A checkpoint in memory is a checkpoint of
// the native format in a store that package ram opens, so saves, loads and runs know nothing of it.
// docs/memory.md describes how to use it.
package memory

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/hosts"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/group"
)

// DomainVariable is the environment variable with the fault domain of a host, such as the name of
// its rack. Hosts with the same value may be lost together. They keep copies for each other only if
// all hosts have that value.
const DomainVariable = "CAIRN_DOMAIN"

// Job is a run in memory as the processes of a job hold it.
type Job struct {
	Run string
	// Root is the folder of runs in memory on this host.
	Root ram.Root
	// Hosts are the hosts of the job.
	Hosts []ram.Host
	// Host is the id of this one.
	Host string
	// ranks are the ranks of each host, by its id, in order.
	ranks   map[string][]int
	address string // at which this process serves the files
	stall   time.Duration
	logger  *slog.Logger // nil: no log

	keepers   map[int][]int // by rank: the ranks that copy its files from their own state; nil: none, or this is not rank 0
	confirmed int           // how many copies each file of the newest checkpoint with copies has; 0: this job has made none

	stop func()
}

// Options change how a process joins. Nil means the defaults.
type Options struct {
	// Toward is an address of rank 0, by which a process finds its own network. Empty: all
	// processes are on one host.
	Toward string
	// Stall is how long another host may make no progress. Zero: 20 seconds.
	Stall  time.Duration
	Logger *slog.Logger
}

// arrival is what a process says about itself.
type arrival struct {
	Host      ram.Host
	Secret    []byte     // of the run as it is on the host of the process
	Epoch     int64      // the same
	Confirmed int64      // the same
	Copies    int        // the same
	Known     []ram.Host // the hosts that have held the run so far
}

// compare compares how recent the run is on the hosts of two processes. Hosts may have been separated, and
// jobs may have held the run on either side. Then the last checkpoint that had its copies counts: a job
// without one may have left no checkpoint that can be loaded.
func (a *arrival) compare(b *arrival) int {
	return cmp.Or(cmp.Compare(a.Confirmed, b.Confirmed), cmp.Compare(a.Epoch, b.Epoch))
}

// meeting is what the processes agree on.
type meeting struct {
	Members ram.Members `json:"members"`
	// Latest are the ids of the hosts of the job that were also hosts of the job before.
	Latest []string `json:"latest"`
}

// Join makes this process serve the files of a run on its host to the other hosts, and tells it
// where they are. All ranks of g call it. The files that earlier jobs have left on the hosts are part of the run. Leave ends it.
func Join(ctx context.Context, g group.Group, root ram.Root, run string, opts *Options) (*Job, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	j := &Job{Run: run, Root: root, stall: o.Stall, logger: o.Logger, ranks: map[string][]int{}}
	var listener net.Listener
	defer func() {
		if listener != nil {
			listener.Close()
		}
	}()
	met, err := group.Decide(ctx, g, "meet in memory", group.JSON[arrival](), group.JSON[meeting](),
		func(ctx context.Context) (a arrival, err error) {
			if listener, a, err = arrive(root, run, o.Toward); err == nil {
				j.Host, j.address = a.Host.ID, listener.Addr().String()
			}
			return a, err
		},
		func(_ context.Context, all []arrival) (meeting, error) { return meet(all, time.Now()), nil })
	if err != nil {
		return nil, err
	}
	members := met.Members
	for _, h := range members.Hosts {
		if !h.Left {
			j.Hosts = append(j.Hosts, h)
		}
	}
	err = group.Each(ctx, g, "serve memory", func(ctx context.Context) error {
		store, err := root.OpenLocal(run)
		if err != nil {
			return err
		}
		j.stop = j.serve(listener, served{store, j}, members.Secret, o.Logger)
		listener = nil
		return nil
	})
	if err == nil {
		err = group.Each(ctx, g, "catch up", func(ctx context.Context) error { return j.catchUp(ctx, &met) })
	}
	if err == nil { // a host that has not caught up has to do so the next time
		err = group.Each(ctx, g, "write the hosts", func(context.Context) error { return root.WriteMembers(run, &members) })
	}
	if err != nil {
		j.Leave()
		return nil, err
	}
	hosts, err := group.Decide(ctx, g, "hosts", group.JSON[string](), group.JSON[[]string](),
		func(context.Context) (string, error) { return j.Host, nil },
		func(_ context.Context, all []string) ([]string, error) { return all, nil })
	if err != nil {
		j.Leave()
		return nil, err
	}
	for rank, host := range hosts {
		j.ranks[host] = append(j.ranks[host], rank)
	}
	j.inform("memory: this host holds a run", "host", j.host().Label(), "address", j.address, "interface", j.host().Interface, "hosts", len(j.Hosts))
	return j, nil
}

// host returns this host.
func (j *Job) host() *ram.Host {
	return &j.Hosts[slices.IndexFunc(j.Hosts, func(h ram.Host) bool { return h.ID == j.Host })]
}

// inform writes to the log, if there is one.
func (j *Job) inform(text string, args ...any) {
	if j.logger != nil {
		j.logger.Info(text, append([]any{"run", j.Run}, args...)...)
	}
}

// tellPartners writes into the log who keeps the copies of this host's files, and whose copies it keeps.
func (j *Job) tellPartners(at *placement) {
	kept := at.byHost()
	var on, of []string
	for _, h := range j.Hosts {
		if kept[j.Host][h.ID] {
			on = append(on, h.Label())
		}
		if kept[h.ID][j.Host] {
			of = append(of, h.Label())
		}
	}
	j.inform("memory: hosts keep copies for each other", "host", j.host().Label(), "its_copies_on", on, "keeps_copies_of", of)
}

// confirm notes that a checkpoint of this job has its copies, and how many, and removes the hosts that have left
// from the list of hosts: their files are not needed any more.
func (j *Job) confirm(copies int) error {
	m, err := j.Root.ReadMembers(j.Run)
	if err != nil {
		return err
	}
	m.Confirmed = m.Epoch
	m.Hosts = slices.DeleteFunc(m.Hosts, func(h ram.Host) bool { return h.Left })
	m.Copies = copies
	return j.Root.WriteMembers(j.Run, m)
}

// Open returns the store of the files of the run on all of its hosts.
func (j *Job) Open(ctx context.Context) (blob.Store, error) {
	return j.Root.OpenWith(ctx, j.Run, &ram.OpenOptions{Stall: j.stall, Check: j.Check})
}

// served are the files of this host, as other hosts see them. Processes of a job that is over may still
// remove checkpoints. The job that holds the run now has other servers, which these processes do not know.
type served struct {
	blob.Store
	j *Job
}

var _ blob.VersionRemover = served{}

// Unwrap implements [blob.Wrapper].
func (s served) Unwrap() blob.Store { return s.Store }

// Remove implements [blob.Store].
func (s served) Remove(ctx context.Context, name string) error {
	if err := s.j.Check(); err != nil {
		return err
	}
	return s.Store.Remove(ctx, name)
}

// RemoveVersion implements [blob.VersionRemover].
func (s served) RemoveVersion(ctx context.Context, name, version string) error {
	if err := s.j.Check(); err != nil {
		return err
	}
	return blob.RemoveVersion(ctx, s.Store, name, version)
}

// serve offers the files in store to the other hosts, and repairs damaged ones, until stop is called.
func (j *Job) serve(l net.Listener, store blob.Store, secret []byte, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done, names := make(chan struct{}), make(chan string, maxRepairs)
	damaged := func(name string) {
		select {
		case names <- name:
		default: // there are too many: see maxRepairs
		}
	}
	go func() {
		defer close(done)
		var repairing sync.WaitGroup
		defer repairing.Wait()
		repairing.Go(func() { j.repairs(ctx, names, log) })
		if err := hosts.ServeWith(ctx, l, store, secret, &hosts.ServeOptions{Damaged: damaged}); err != nil && log != nil && ctx.Err() == nil {
			log.Error("memory: the files are not served to other hosts any more", "error", err)
		}
	}()
	return func() { cancel(); <-done }
}

// ErrReplaced reports that other processes of this host hold the run: the job was started again, or another
// job has the same name.
var ErrReplaced = errors.New("another job of this name has begun on this host, or the run was removed")

// Check returns an error that wraps ErrReplaced if other processes of this host hold the run, or it was
// removed.
func (j *Job) Check() error {
	m, err := j.Root.ReadMembers(j.Run)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(m.Hosts, func(h ram.Host) bool { return h.ID == j.Host })
	if i < 0 || !slices.Contains(m.Hosts[i].Addresses, j.address) {
		return fmt.Errorf("memory://%s: %w", j.Run, ErrReplaced)
	}
	return nil
}

// lingerPause is the time between two looks for processes that take over.
const lingerPause = time.Second

// Linger serves the files until other processes of this host do, because the job was started again, until
// the run is removed, or until ctx ends. It is for the time after the trainer was killed: the job may go on on
// other hosts, which need the files of this one.
func (j *Job) Linger(ctx context.Context) {
	j.dropSpares() // there are no more saves
	for !errors.Is(j.Check(), ErrReplaced) {
		select {
		case <-time.After(lingerPause):
		case <-ctx.Done():
			return
		}
	}
}

// dropSpares frees the memory that is kept for the next save, unless other processes hold the run.
func (j *Job) dropSpares() {
	if j.Check() != nil {
		return
	}
	if store, err := j.Root.OpenLocal(j.Run); err == nil {
		_ = store.DropSpares() // a file that stays is a spare file of the next job
	}
}

// Leave ends the service of this process. The files stay.
func (j *Job) Leave() {
	j.dropSpares()
	if j.stop != nil {
		j.stop()
		j.stop = nil
	}
}

// arrive listens, and describes this process.
func arrive(root ram.Root, run, toward string) (net.Listener, arrival, error) {
	known, err := root.ReadMembers(run)
	if err != nil {
		return nil, arrival{}, err
	}
	id, err := root.HostID()
	if err != nil {
		return nil, arrival{}, err
	}
	at, err := listenAt(toward)
	if err != nil {
		return nil, arrival{}, err
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		return nil, arrival{}, err
	}
	name, err := os.Hostname()
	if err != nil {
		name = at.String()
	}
	h := ram.Host{ID: id, Name: name, Domain: os.Getenv(DomainVariable), Addresses: []string{l.Addr().String()}, Interface: interfaceOf(at)}
	return l, arrival{Host: h, Secret: known.Secret, Epoch: known.Epoch, Confirmed: known.Confirmed, Copies: known.Copies, Known: known.Hosts}, nil
}

// meet returns the hosts of the job, and the hosts that hold parts of the run from before. The number of the job
// is larger than those of all jobs that its hosts know, whatever the clock says. It depends on the clock so that jobs on hosts
// that are separated have different numbers.
func meet(all []arrival, now time.Time) meeting {
	var out ram.Members
	at := map[string]int{}
	add := func(h ram.Host) {
		i, ok := at[h.ID]
		if !ok {
			at[h.ID] = len(out.Hosts)
			out.Hosts = append(out.Hosts, h)
			return
		}
		if !h.Left {
			out.Hosts[i].Addresses = append(out.Hosts[i].Addresses, h.Addresses...)
		}
	}
	for _, a := range all {
		add(a.Host)
	}
	for _, a := range all {
		for _, h := range a.Known {
			h.Left = true
			add(h)
		}
	}
	latest := slices.MaxFunc(all, func(a, b arrival) int { return a.compare(&b) })
	out.Epoch, out.Confirmed, out.Copies = now.UnixMicro(), latest.Confirmed, latest.Copies
	for _, a := range all {
		out.Epoch = max(out.Epoch, a.Epoch+1)
	}
	out.Secret = latest.Secret // hosts that have left know no other one
	if len(out.Secret) == 0 {
		out.Secret = make([]byte, 32)
		rand.Read(out.Secret)
	}
	met := meeting{Members: out}
	for _, a := range all {
		if a.compare(&latest) == 0 && !slices.Contains(met.Latest, a.Host.ID) {
			met.Latest = append(met.Latest, a.Host.ID)
		}
	}
	return met
}
