package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

const (
	// maxStrangers bounds the connections that have not proved that they have the secret.
	maxStrangers = 64
	// idleServe is how long a server keeps a connection without a request. A store closes it
	// before that, so that no request meets a connection that ends.
	idleServe = 6 * idleTime
	// sliceBytes is how many bytes a peer must take within the stall time.
	sliceBytes = 256 << 10
	// acceptPause is the pause after a connection could not be accepted, such as for lack of file
	// descriptors.
	acceptPause = 50 * time.Millisecond
)

// Serve answers the questions of other hosts about the objects of store on connections of l,
// until ctx ends. Then it closes l and all connections, and returns nil. It also removes
// objects, but it writes none. The secret must not be empty, and the objects of store must have
// versions, which their readers know. If the readers of store are blob.FileReaders, the kernel sends the bytes.
func Serve(ctx context.Context, l net.Listener, store blob.Store, secret []byte) error {
	return ServeWith(ctx, l, store, secret, nil)
}

// ServeOptions change how a host is served. Nil means the defaults.
type ServeOptions struct {
	// Damaged, if not nil, is called with the name of an object of store if a reader on any host has found
	// that its bytes are not the right ones. It must not wait, and it must check the object: the reader may be
	// wrong. It may be called from several goroutines at once.
	Damaged func(name string)
}

// ServeWith is Serve with options.
func ServeWith(ctx context.Context, l net.Listener, store blob.Store, secret []byte, opts *ServeOptions) error {
	s := &server{store: store, secret: secret, stall: defaultStall, handshake: handshakeTime}
	if opts != nil {
		s.damaged = opts.Damaged
	}
	return s.serve(ctx, l)
}

// server answers the questions of other hosts.
type server struct {
	store            blob.Store
	secret           []byte
	stall, handshake time.Duration
	damaged          func(name string) // nil: reports of damaged objects have no effect
}

func (s *server) serve(ctx context.Context, l net.Listener) error {
	defer l.Close()
	if len(s.secret) == 0 || !blob.HasVersions(s.store) {
		return fmt.Errorf("serve %s: want a secret, and a store with versions", s.store)
	}

	var conns sync.WaitGroup
	defer conns.Wait()
	logger := log.New(io.Discard, "", 0)
	if to := blob.Logger(ctx); to != nil {
		logger = slog.NewLogLogger(to.Handler(), slog.LevelWarn)
	}

	h := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: s.handshake, IdleTimeout: idleServe, MaxHeaderBytes: maxHeader, ErrorLog: logger,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				conns.Add(1)
			case http.StateClosed:
				conns.Done()
			}
		},
	}
	defer h.Close()

	d := &door{Listener: l, secret: s.secret, time: s.handshake, proven: make(chan net.Conn), closed: make(chan struct{})}
	defer d.wait()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	d.running.Go(d.run)

	err := h.Serve(d)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serve %s: %w", s.store, err)
}

// door is a listener of connections that have proved that they have the secret.
type door struct {
	net.Listener
	secret  []byte
	time    time.Duration // of a handshake
	proven  chan net.Conn
	closed  chan struct{}
	running sync.WaitGroup

	mu        sync.Mutex
	strangers []net.Conn // in the handshake, the oldest first; guarded by mu
}

// Accept returns the next connection after its handshake.
func (d *door) Accept() (net.Conn, error) {
	select {
	case c := <-d.proven:
		return c, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

// wait closes the listener and waits for all handshakes.
func (d *door) wait() {
	d.Listener.Close()
	d.running.Wait()
}

// run accepts connections until the listener is closed.
func (d *door) run() {
	defer close(d.closed)
	for {
		c, err := d.Listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}

		d.receive(c)
		d.running.Go(func() { d.admit(c) })
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.strangers {
		c.Close()
	}
}

// receive notes a connection. If too many have not finished the handshake, it closes the oldest
// one: a host sends its proof at once, and must not wait for connections that never do.
func (d *door) receive(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.strangers) >= maxStrangers {
		d.strangers[0].Close()
		d.strangers = d.strangers[1:]
	}
	d.strangers = append(d.strangers, c)
}

// admit runs the handshake of a connection and passes the connection to Accept.
func (d *door) admit(c net.Conn) {
	err := c.SetDeadline(time.Now().Add(d.time))
	if err == nil {
		err = welcome(c, d.secret)
	}

	d.mu.Lock()
	if i := slices.Index(d.strangers, c); i >= 0 {
		d.strangers = slices.Delete(d.strangers, i, i+1)
	}
	d.mu.Unlock()

	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		c.Close()
		return
	}

	select {
	case d.proven <- c:
	case <-d.closed:
		c.Close()
	}
}

// handler returns the handler of the questions.
func (s *server) handler() http.Handler {
	m := http.NewServeMux()
	for pattern, answer := range map[string]func(w http.ResponseWriter, r *http.Request) error{
		"GET " + listPath: s.list, "GET " + statPath: s.stat, "GET " + objectPath: s.object, "DELETE " + objectPath: s.remove,
		"POST " + damagedPath: s.reported,
	} {
		m.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength != 0 { // no question has a body, and none is read
				w.Header().Set("Connection", "close")
				http.Error(w, "unexpected body", http.StatusBadRequest)
				return
			}
			if err := answer(&patient{ResponseWriter: w, stall: s.stall}, r); err != nil {
				refuse(w, err)
			}
		})
	}
	return m
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.Header().Set(kindHeader, kindAbsent)
		status = http.StatusNotFound
	case errors.Is(err, blob.ErrChanged):
		status = http.StatusPreconditionFailed
	case errors.Is(err, blob.ErrName):
		status = http.StatusBadRequest
	}
	http.Error(w, err.Error(), status)
}

// nameOf returns the name in a question.
func nameOf(r *http.Request) (string, error) {
	name := r.URL.Query().Get("name")
	return name, blob.CheckName(name)
}

// list answers with a line for each object, and a line that marks the end. An error is a line
// too, because the answer has begun.
func (s *server) list(w http.ResponseWriter, r *http.Request) error {
	prefix := r.URL.Query().Get("prefix")
	if err := blob.CheckPrefix(prefix); err != nil {
		return err
	}

	w.Header().Set("Content-Type", "application/x-ndjson")
	out, n := json.NewEncoder(w), 0
	for info, err := range s.store.List(r.Context(), prefix) {
		if err == nil && n == maxObjects {
			err = fmt.Errorf("it has more than %d objects", maxObjects)
		}
		line := entryOf(info)
		if err != nil {
			line = entry{Error: err.Error()}
		}
		if out.Encode(line) != nil || err != nil {
			return nil // the peer has gone, or has received the error
		}
		n++
	}
	_ = out.Encode(entry{End: true, Objects: n}) // an error means that the peer has gone
	return nil
}

// entryOf returns the line of an object.
func entryOf(o blob.Info) entry {
	return entry{Name: o.Name, Size: o.Size, Time: o.ModTime.UnixNano(), Version: o.Version}
}

// stat answers with the line of an object.
func (s *server) stat(w http.ResponseWriter, r *http.Request) error {
	name, err := nameOf(r)
	if err != nil {
		return err
	}
	info, err := s.store.Stat(r.Context(), name)
	if err != nil {
		return err
	}
	_ = json.NewEncoder(w).Encode(entryOf(info)) // an error means that the peer has gone
	return nil
}

// object answers with a range of an object.
func (s *server) object(w http.ResponseWriter, r *http.Request) error {
	name, err := nameOf(r)
	if err != nil {
		return err
	}
	if strings.Contains(r.Header.Get("Range"), ",") {
		return fmt.Errorf("%w: more than one range", blob.ErrName)
	}

	in, err := s.store.Open(r.Context(), name)
	if err != nil {
		return err
	}
	defer in.Close()

	v, ok := in.(blob.VersionReader)
	if !ok {
		return fmt.Errorf("readers of %s have no versions", s.store)
	}
	w.Header().Set("ETag", etag(v.Version()))
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, content(r.Context(), in))
	return nil
}

// content returns the bytes of an object: the file, which the kernel sends without a copy, or
// the reader.
func content(ctx context.Context, in blob.Reader) io.ReadSeeker {
	if f, ok := in.(blob.FileReader); ok {
		return f.File()
	}
	return io.NewSectionReader(readerAt{ctx, in}, 0, in.Size())
}

// readerAt is a blob.Reader as an io.ReaderAt.
type readerAt struct {
	ctx context.Context
	in  blob.Reader
}

// ReadAt implements [io.ReaderAt].
func (r readerAt) ReadAt(p []byte, off int64) (int, error) {
	n := min(int64(len(p)), r.in.Size()-off)
	if err := r.in.ReadAt(r.ctx, p[:n], off); err != nil {
		return 0, err
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// remove removes an object, if it has the version of the question.
func (s *server) remove(w http.ResponseWriter, r *http.Request) error {
	name, err := nameOf(r)
	if err != nil {
		return err
	}

	if tag := r.Header.Get("If-Match"); tag != "" {
		var version string
		if version, err = url.QueryUnescape(strings.Trim(tag, `"`)); err == nil {
			err = blob.RemoveVersion(r.Context(), s.store, name, version)
		}
	} else {
		err = s.store.Remove(r.Context(), name)
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// reported passes the report of a damaged object on.
func (s *server) reported(w http.ResponseWriter, r *http.Request) error {
	name, err := nameOf(r)
	if err != nil {
		return err
	}
	if s.damaged != nil {
		s.damaged(name)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// patient is the answer to a peer that must take some bytes within the stall time.
type patient struct {
	http.ResponseWriter
	stall time.Duration
}

// extend sets the time by which the next bytes must be taken.
func (w *patient) extend() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.stall)) // if the connection is closed, the write fails
}

// Write implements [io.Writer].
func (w *patient) Write(p []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(p)
}

// ReadFrom implements [io.ReaderFrom]. The answer of package http has the same method, which
// makes the kernel send a part of a file.
func (w *patient) ReadFrom(src io.Reader) (total int64, err error) {
	to := w.ResponseWriter.(io.ReaderFrom)
	left := int64(math.MaxInt64)
	if l, ok := src.(*io.LimitedReader); ok { // only one of them may lie between the answer and the file
		src, left = l.R, l.N
	}
	for left > 0 {
		w.extend()
		want := min(left, sliceBytes)
		n, err := to.ReadFrom(&io.LimitedReader{R: src, N: want})
		total, left = total+n, left-n
		if err != nil || n < want {
			return total, err
		}
	}
	return total, nil
}
