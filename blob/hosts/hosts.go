// Package hosts joins the same folder of several hosts to one store. Each host has the objects
// that its own processes wrote, and copies of some objects of other hosts. A reader of the
// store does not notice which host has an object. The package does not depend on the content
// of the objects.
//
// Serve offers the folder of one host to the others: it answers questions over HTTP, on
// connections whose two ends have proved that they have the same secret. The bytes on the
// wire are not encrypted.
//
// # Hosts that do not answer
//
// A host that does not answer may have any object. So an object that no host has, as far as
// they answer, does not count as missing: the error wraps ErrUnreachable, names the hosts
// that did not answer, and does not wrap fs.ErrNotExist. Peer.Lost leaves a host out, and
// Peer.Left a host that does not answer any more.
//
// # Writes
//
// Writes, their conditions, and locks are local. A writer does not see an object of the same
// name on another host, so each name is written by one host of the job only; Fetch makes
// copies. An open reader reads the copy that it was opened with, and other copies only by
// blob.CopyReader.
package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/work"
)

// The capabilities of a Store. It is not a blob.Wrapper: a capability of the local store would
// answer for one host.
//
//   - Versions are versions of one copy, see Stat. Removals on a condition reach all hosts, as
//     Remove does. Folders are folders of all hosts. Resident is about new objects, which are local.
//     OpenKnown saves the question which host has
//     the object.
//   - Locks, temporary data and empty folders are local: their owners are processes of this host.
//     A peer removes a folder with the last object in it. TempFinder is not needed: the local
//     store lists folders without objects.
//   - Reclaimer is left out: removed objects in memory must be freed at once. Cooler is left out:
//     memory is no cache. GapReader is a capability of readers of other hosts, because most
//     reads are local. Copier and Summer are left out: no service keeps the objects. Child and
//     Hosted are left out: peers do not serve the folder above, and no cache needs a key for
//     bytes in memory. BulkRemover is left out: each removal is a short request to each peer.
var (
	_ Local               = (*Store)(nil)
	_ blob.Versioner      = (*Store)(nil)
	_ blob.VersionRemover = (*Store)(nil)
	_ blob.FolderLister   = (*Store)(nil)
	_ blob.Knower         = (*Store)(nil)
	_ blob.Meter          = (*Store)(nil)
	_ blob.Resident       = (*Store)(nil)
)

// Local is the store of this host, such as a folder in memory.
type Local interface {
	blob.Store
	own
}

// own has the capabilities that are about processes of this host.
type own interface {
	blob.Locker
	blob.Sweeper
	blob.FolderRemover
}

// Errors of this package.
var (
	// ErrUnreachable reports a host that does not answer, or whose answer is not valid.
	ErrUnreachable = errors.New("a host does not answer")
	// ErrSecret reports a host with another secret.
	ErrSecret = errors.New("secret does not match")
	// ErrDamaged reports a copy with other bytes than the caller of Fetch expects.
	ErrDamaged = errors.New("the copy is damaged")
)

// Peer is another host.
type Peer struct {
	// Host is the name of the host, for messages. It is also a part of versions.
	Host string
	// Addr is the address at which Serve listens on that host.
	Addr string
	// Lost means that the host is known to be gone. It is not asked, and its objects count as
	// missing.
	Lost bool
	// Left means that the host may go at any time. From the first question that it does not
	// answer, it counts as lost.
	Left bool
}

// Config describes the hosts.
type Config struct {
	// Host is the name of this host, for messages. Empty: "this host".
	Host  string
	Peers []Peer
	// Own are the addresses at which processes of this host serve its objects. They are told of damaged
	// objects of the local store.
	Own []string
	// Secret is the secret that all hosts of the job share. It must not be empty.
	Secret []byte
	// Stall is how long a peer may make no progress. After that, its requests fail, and further
	// requests to it fail at once for the same time. Zero: 20 seconds.
	Stall time.Duration
	// Piece is how many bytes one request reads. Zero: 8 MiB.
	Piece int64
	// Parallel is how many requests a large read or a Fetch makes at the same time. Zero: DefaultParallel.
	Parallel int
	// Rate bounds the bytes per second of all calls of Fetch together. Zero: no bound.
	Rate int64
	// Check, if not nil, is called before each change. Its error refuses the change.
	Check func() error
	// Report, if not nil, is called for each copy that could not be used: it is damaged, or its
	// host does not answer. It may be called from several goroutines at once.
	Report func(host, object string, err error)
	// Logger receives the same reports. Nil: no log.
	Logger *slog.Logger
}

// DefaultParallel is how many requests a large read or a Fetch makes at the same time, each over a
// connection of its own.
const DefaultParallel = 4

const (
	defaultStall = 20 * time.Second
	defaultPiece = 8 << 20
	// maxRequests bounds the requests to one peer at the same time.
	maxRequests = 32
	// idleTime is how long the store keeps an unused connection: shorter than handshakeTime, within
	// which a server wants the first request.
	idleTime = 5 * time.Second
)

// Store joins a local store with the same folder of other hosts. It must be closed.
type Store struct {
	own       // of local
	local     blob.Store
	cfg       Config
	peers     []*peer // without lost ones
	transport *http.Transport
	limit     work.Limiter
	alive     context.Context // ends with Close
	end       context.CancelFunc

	requests, received atomic.Int64

	mu   sync.Mutex
	told map[string]time.Time // damaged objects whose hosts were told, by host and name; guarded by mu
}

// New returns the store of the objects in local and on the hosts of c. The error wraps
// errors.ErrUnsupported if local has no versions.
func New(local Local, c Config) (*Store, error) {
	if !blob.HasVersions(local) {
		return nil, fmt.Errorf("join %s with other hosts: it has no versions: %w", local, errors.ErrUnsupported)
	}
	if len(c.Secret) == 0 || c.Stall < 0 || c.Piece < 0 || c.Parallel < 0 || c.Rate < 0 {
		return nil, fmt.Errorf("join %s with other hosts: want a secret, and no negative numbers", local)
	}

	c.Host = cmp.Or(c.Host, "this host")
	c.Stall, c.Piece, c.Parallel = cmp.Or(c.Stall, defaultStall), cmp.Or(c.Piece, defaultPiece), cmp.Or(c.Parallel, DefaultParallel)
	s := &Store{own: local, local: local, cfg: c, limit: work.Limiter{Rate: c.Rate}}
	s.transport = &http.Transport{
		DialContext: s.dial, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		MaxIdleConnsPerHost: maxRequests, IdleConnTimeout: idleTime,
	}

	names := map[string]bool{c.Host: true}
	for _, p := range c.Peers {
		odd := strings.ContainsFunc(p.Host, func(r rune) bool { return r == '@' || unicode.IsControl(r) })
		if p.Host == "" || odd || names[p.Host] {
			return nil, fmt.Errorf("join %s with other hosts: %q is not a name of its own for a host", local, p.Host)
		}
		names[p.Host] = true
		if !p.Lost {
			s.peers = append(s.peers, &peer{Peer: p, s: s, slots: make(chan struct{}, maxRequests)})
		}
	}

	s.alive, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Close closes all connections. No method may be running.
func (s *Store) Close() {
	s.end()
	s.transport.CloseIdleConnections()
}

// String returns the location of the local store.
func (s *Store) String() string { return s.local.String() }

// fail returns the error of an operation.
func (s *Store) fail(op, name string, err error) error {
	if _, named := err.(*blob.Error); named || err == nil {
		return err
	}
	return &blob.Error{Op: op, Store: s.String(), Name: name, Err: err}
}

// Create implements [blob.Store], in the local store. If it replaces an object that only another host has, that one
// stays there, and this host has the new one.
func (s *Store) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	if err := s.check(); err != nil {
		return nil, s.fail("create", name, err)
	}
	if opts == nil {
		return s.local.Create(ctx, name, nil)
	}
	p, version := s.holder(opts.IfVersion)
	if p == nil {
		return s.local.Create(ctx, name, opts)
	}

	o := *opts
	o.IfVersion, o.IfAbsent = "", true
	w, err := s.local.Create(ctx, name, &o)
	if err != nil {
		return nil, err
	}
	return &replacer{w, s, p, name, version}, nil
}

// replacer writes an object that replaces the object of another host.
type replacer struct {
	blob.Writer
	s             *Store
	p             *peer
	name, version string // of the other object
}

// Commit implements [blob.Writer].
func (r *replacer) Commit(ctx context.Context) (blob.Info, error) {
	old, err := r.p.stat(ctx, r.name)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("it was removed: %w", blob.ErrRemoved)
	} else if err == nil && old.Version != r.version {
		err = blob.ErrChanged
	}
	if err != nil {
		return blob.Info{}, r.s.fail("commit", r.name, err)
	}

	info, err := r.Writer.Commit(ctx)
	if errors.Is(err, fs.ErrExist) {
		err = r.s.fail("commit", r.name, blob.ErrChanged)
	}
	return info, err
}

// check returns an error if the store may not be changed.
func (s *Store) check() error {
	if s.cfg.Check == nil {
		return nil
	}
	return s.cfg.Check()
}

// find asks all peers for the object name. It calls found with each copy, in the order in
// which the answers arrive, until found returns false. Otherwise it returns the errors of the
// peers that did not answer.
func (s *Store) find(ctx context.Context, name string, found func(p *peer, info blob.Info) (more bool)) error {
	type answer struct {
		p    *peer
		info blob.Info
		err  error
	}

	answers := make(chan answer, len(s.peers))
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before Wait
	for _, p := range s.peers {
		wg.Go(func() {
			info, err := p.stat(ctx, name)
			answers <- answer{p, info, err}
		})
	}

	var errs []error
	for range s.peers {
		a := <-answers
		if a.err == nil && !found(a.p, a.info) {
			return nil
		}
		if a.err != nil && !errors.Is(a.err, fs.ErrNotExist) && !a.p.gone(name, a.err) {
			errs = append(errs, a.err)
		}
	}

	return errors.Join(errs...)
}

// maxNamed is how many lost hosts an error names.
const maxNamed = 8

// absent returns the error of an object that no host has. It names the lost hosts, which may have
// had it. nil stays nil.
func (s *Store) absent(err error) error {
	if err == nil {
		return nil
	}

	var lost []string
	for _, p := range s.cfg.Peers {
		if p.Lost {
			lost = append(lost, p.Host)
		}
	}
	for _, p := range s.peers {
		if p.lost.Load() {
			lost = append(lost, p.Host)
		}
	}
	if len(lost) == 0 {
		return err
	}

	names := strings.Join(lost[:min(len(lost), maxNamed)], ", ")
	if more := len(lost) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%w: the lost hosts %s may have it", fs.ErrNotExist, names)
}

// Stat implements [blob.Store]. The version of an object of another host ends with @ and the
// name of the host.
func (s *Store) Stat(ctx context.Context, name string) (info blob.Info, err error) {
	info, err = s.local.Stat(ctx, name)
	if !errors.Is(err, fs.ErrNotExist) {
		return info, err
	}

	missing := err
	err = s.find(ctx, name, func(p *peer, i blob.Info) bool {
		info, missing = p.qualified(i), nil
		return false
	})
	return info, s.fail("stat", name, cmp.Or(err, s.absent(missing)))
}

// Open implements [blob.Store]. The reader is a [blob.CopyReader].
func (s *Store) Open(ctx context.Context, name string) (blob.Reader, error) {
	in, err := s.local.Open(ctx, name)
	if err == nil {
		return s.localReader(name, in), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}

	var r blob.Reader
	missing := err
	err = s.find(ctx, name, func(p *peer, i blob.Info) bool {
		r, missing = p.reader(i), nil
		return false
	})
	return r, s.fail("open", name, cmp.Or(err, s.absent(missing)))
}

// OpenKnown implements [blob.Knower].
func (s *Store) OpenKnown(ctx context.Context, o blob.Info) (blob.Reader, error) {
	if err := blob.CheckName(o.Name); err != nil {
		return nil, s.fail("open", o.Name, err)
	}
	if p, version := s.holder(o.Version); p != nil {
		o.Version = version
		return p.reader(o), nil
	}

	r, err := s.Open(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	if o.Version != "" && o.Version != r.(blob.VersionReader).Version() {
		r.Close()
		return nil, s.fail("open", o.Name, blob.ErrChanged)
	}
	return r, nil
}

// holder returns the peer that a version names, and the version that the object has there.
func (s *Store) holder(version string) (*peer, string) {
	at := strings.LastIndexByte(version, '@')
	for _, p := range s.peers {
		if at >= 0 && version[at+1:] == p.Host {
			return p, version[:at]
		}
	}
	return nil, version
}

// lists returns the objects of all peers, without order, and the errors of the peers that did
// not answer.
func (s *Store) lists(ctx context.Context, prefix string) ([]blob.Info, error) {
	all, errs := make([][]blob.Info, len(s.peers)), make([]error, len(s.peers))
	var wg sync.WaitGroup
	for i, p := range s.peers {
		wg.Go(func() {
			if all[i], errs[i] = p.list(ctx, prefix); p.gone(prefix, errs[i]) {
				errs[i] = nil
			}
		})
	}
	wg.Wait()
	return slices.Concat(all...), errors.Join(errs...)
}

// List implements [blob.Store]. It asks all hosts before it yields the first object. If a host
// does not answer, it yields the objects of the others, and then the error.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		var all []blob.Info
		for info, err := range s.local.List(ctx, prefix) {
			if err != nil {
				yield(blob.Info{}, err)
				return
			}
			all = append(all, info)
		}

		others, err := s.lists(ctx, prefix)
		all = append(all, others...)
		slices.SortStableFunc(all, func(a, b blob.Info) int { return strings.Compare(a.Name, b.Name) }) // the local one first
		for _, info := range slices.CompactFunc(all, func(a, b blob.Info) bool { return a.Name == b.Name }) {
			if !yield(info, nil) {
				return
			}
		}

		if err != nil {
			yield(blob.Info{}, s.fail("list", prefix, err))
		}
	}
}

// Folders implements [blob.FolderLister].
func (s *Store) Folders(ctx context.Context, dir string) ([]string, error) {
	out, err := blob.Folders(ctx, s.local, dir)
	if err != nil {
		return nil, err
	}

	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}

	others, err := s.lists(ctx, prefix)
	if err != nil {
		return nil, s.fail("list", dir, err)
	}
	for _, info := range others {
		if name, _, deeper := strings.Cut(strings.TrimPrefix(info.Name, prefix), "/"); deeper {
			out = append(out, name)
		}
	}

	slices.Sort(out)
	return slices.Compact(out), nil
}

// Remove implements [blob.Store], on all hosts. If a host does not answer, it removes the
// copies of the others, and returns the error.
func (s *Store) Remove(ctx context.Context, name string) error {
	if err := cmp.Or(blob.CheckName(name), s.check()); err != nil {
		return s.fail("remove", name, err)
	}

	errs := make([]error, len(s.peers), len(s.peers)+1)
	var wg sync.WaitGroup
	for i, p := range s.peers {
		wg.Go(func() {
			if errs[i] = p.remove(ctx, name, ""); p.gone(name, errs[i]) {
				errs[i] = nil
			}
		})
	}
	err := s.local.Remove(ctx, name)
	wg.Wait()
	return s.fail("remove", name, errors.Join(append(errs, err)...))
}

// RemoveVersion implements [blob.VersionRemover]. The host that the version names decides, and
// then the other copies are removed.
func (s *Store) RemoveVersion(ctx context.Context, name, version string) error {
	if err := cmp.Or(blob.CheckName(name), s.check()); err != nil {
		return s.fail("remove", name, err)
	}

	var err error
	if p, v := s.holder(version); p != nil {
		err = p.remove(ctx, name, v)
	} else {
		err = blob.RemoveVersion(ctx, s.local, name, version)
	}
	if err != nil {
		return s.fail("remove", name, err)
	}
	return s.Remove(ctx, name)
}

// Versions implements [blob.Versioner].
func (s *Store) Versions() bool { return true }

// Resident implements [blob.Resident].
func (s *Store) Resident() bool { return blob.IsResident(s.local) }

// Traffic implements [blob.Meter]: the requests to peers, and the bytes that they sent.
func (s *Store) Traffic() blob.Traffic {
	return blob.Traffic{Requests: s.requests.Load(), Received: s.received.Load()}
}

// tellTime bounds how long the store waits for a host that it tells of a damaged object, and tellAgain is the
// time after which it tells it again.
const (
	tellTime  = 2 * time.Second
	tellAgain = time.Minute
)

// tell tells the host of a copy that its bytes are wrong. Without an answer, the copy stays as it is.
func (s *Store) tell(c *place, name string) {
	key := c.host + "\n" + name
	s.mu.Lock()
	last, known := s.told[key]
	if s.told == nil {
		s.told = map[string]time.Time{}
	}
	if known && time.Since(last) < tellAgain {
		s.mu.Unlock()
		return
	}
	s.told[key] = time.Now()
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(s.alive, tellTime)
	defer cancel()
	if c.peer != nil {
		_ = c.peer.damaged(ctx, name)
		return
	}
	for _, addr := range s.cfg.Own { // one of its processes is enough
		p := &peer{Peer: Peer{Host: s.cfg.Host, Addr: addr}, s: s, slots: make(chan struct{}, 1)}
		if p.damaged(ctx, name) == nil {
			return
		}
	}
}

// report reports a copy that could not be used.
func (s *Store) report(host, object string, err error) {
	if s.cfg.Report != nil {
		s.cfg.Report(host, object, err)
	}
	if s.cfg.Logger != nil {
		s.cfg.Logger.Warn("a copy cannot be used", "host", host, "object", object, "store", s.String(), "error", err)
	}
}

// dial connects to the server at addr and runs the handshake.
func (s *Store) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, min(handshakeTime, s.cfg.Stall))
	defer cancel()
	defer context.AfterFunc(s.alive, cancel)() // the transport goes on to dial after the request has ended
	return connect(ctx, network, addr, s.cfg.Secret)
}

// localReader returns a reader of an object of the local store. It does not read past the
// system's cache: the object lies in memory.
func (s *Store) localReader(name string, in blob.Reader) *reader {
	r := &reader{s: s, name: name, size: in.Size(), places: []place{{host: s.cfg.Host, local: in}}}
	if v, ok := in.(blob.VersionReader); ok {
		r.version = v.Version()
	}
	return r
}
