package hosts

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
)

// Paths and headers of the questions to a server.
const (
	listPath   = "/list"   // GET; prefix
	statPath   = "/stat"   // GET; name
	objectPath = "/object" // GET and DELETE; name; If-Match has the version
	// damagedPath reports an object with wrong bytes.
	damagedPath = "/damaged" // POST; name
	// kindHeader has the kind of a refusal. A refusal without it says nothing about the object.
	kindHeader = "Cairn-Error"
	kindAbsent = "absent"
)

// Bounds of answers. A server keeps to them, and a peer whose answer exceeds them is not valid.
const (
	maxHeader    = 8 << 10
	maxLine      = 16 << 10 // JSON needs up to six bytes for one of a name
	maxList      = 64 << 20
	maxObjects   = 1 << 18
	maxVersion   = 256
	maxRefusal   = 1 << 10
	rangeGap     = 256 << 10 // bytes that another host sends in the time of a request
	rangePattern = "bytes %d-%d/%d"
)

var (
	// errAnswer reports an answer that a correct server does not give.
	errAnswer = errors.New("the answer is not valid")
	errStall  = errors.New("no progress")
)

// entry is a line of a list: an object, the mark of its end, or the error that ended it.
type entry struct {
	Name    string `json:"name,omitempty"`
	Size    int64  `json:"size,omitempty"`
	Time    int64  `json:"time,omitempty"` // in nanoseconds since 1970
	Version string `json:"version,omitempty"`

	End     bool   `json:"end,omitempty"`
	Objects int    `json:"objects,omitempty"` // with End: how many there were
	Error   string `json:"error,omitempty"`
}

// info returns the object of an entry.
func (e *entry) info() (blob.Info, error) {
	if err := blob.CheckName(e.Name); err != nil {
		return blob.Info{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	if e.Size < 0 || len(e.Version) > maxVersion {
		return blob.Info{}, fmt.Errorf("%w: %q has %d bytes and a version of %d", errAnswer, e.Name, e.Size, len(e.Version))
	}
	return blob.Info{Name: e.Name, Size: e.Size, ModTime: time.Unix(0, e.Time), Version: e.Version}, nil
}

// decodeList decodes the answer to a list of the objects with a prefix.
func decodeList(r io.Reader, prefix string) (out []blob.Info, err error) {
	lines := bufio.NewScanner(io.LimitReader(r, maxList))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%w: %w", errAnswer, err)
		}
		if e.Error != "" {
			return nil, fmt.Errorf("its list failed: %.*q", maxRefusal, e.Error)
		}
		if e.End {
			if e.Objects != len(out) {
				return nil, fmt.Errorf("%w: a list of %d objects with %d", errAnswer, e.Objects, len(out))
			}
			return out, nil
		}

		info, err := e.info()
		if err != nil {
			return nil, err
		}
		inOrder := len(out) == 0 || out[len(out)-1].Name < info.Name
		if !strings.HasPrefix(info.Name, prefix) || !inOrder || len(out) == maxObjects {
			return nil, fmt.Errorf("%w: %q is not the next name of a list of %q, or one of more than %d", errAnswer, info.Name, prefix, maxObjects)
		}
		out = append(out, info)
	}

	if err := lines.Err(); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: the list has no end within %d bytes", errAnswer, maxList)
}

// etag returns the version of an object as HTTP has it.
func etag(version string) string { return `"` + url.QueryEscape(version) + `"` }

// peer asks another host.
type peer struct {
	Peer
	s       *Store
	slots   chan struct{}             // has an element for each request
	stalled atomic.Pointer[time.Time] // when a request last made no progress
	lost    atomic.Bool               // the host has left, and does not answer
}

// String returns the host and its address.
func (p *peer) String() string { return p.Host + " at " + p.Addr }

// qualified returns the description of an object with the host in its version.
func (p *peer) qualified(o blob.Info) blob.Info {
	o.Version += "@" + p.Host
	return o
}

// unreachable returns the error of a request without an answer. It never wraps fs.ErrNotExist,
// whatever the cause is.
func (p *peer) unreachable(err error) error {
	if errors.Is(err, ErrSecret) {
		return fmt.Errorf("%w: %s: %w", ErrUnreachable, p, ErrSecret)
	}
	return fmt.Errorf("%w: %s: %v", ErrUnreachable, p, err)
}

// exchange is a request and its answer. It ends with an error if the peer makes no progress.
type exchange struct {
	*http.Response
	p       *peer
	ctx     context.Context // of the caller
	request context.Context // ends if there is no progress
	cancel  context.CancelCauseFunc
	timer   *time.Timer
}

// ask sends a request and returns the answer, which the caller must close. A refusal is an
// error.
func (p *peer) ask(ctx context.Context, method, path string, q url.Values, h http.Header) (*exchange, error) {
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	if h == nil {
		h = http.Header{}
	}
	p.s.requests.Add(1)
	x := &exchange{p: p, ctx: ctx}
	x.request, x.cancel = context.WithCancelCause(ctx)
	x.timer = time.AfterFunc(p.s.cfg.Stall, func() { x.cancel(errStall) })

	err := p.rest()
	if err == nil {
		u := &url.URL{Scheme: "http", Host: p.Addr, Path: path, RawQuery: q.Encode()}
		x.Response, err = p.s.transport.RoundTrip((&http.Request{Method: method, URL: u, Header: h}).WithContext(x.request))
	}
	if err != nil {
		defer x.Close()
		return nil, x.explain(err)
	}

	x.timer.Reset(p.s.cfg.Stall)
	if x.StatusCode >= 300 {
		defer x.Close()
		return nil, x.refusal()
	}
	return x, nil
}

// gone reports whether the host has left, and err says that it does not answer any more. The
// first time, it reports the object in question.
func (p *peer) gone(object string, err error) bool {
	if !p.Left || !errors.Is(err, ErrUnreachable) {
		return false
	}
	if !p.lost.Swap(true) {
		p.s.report(p.Host, object, err)
	}
	return true
}

// rest returns an error if the host is gone, or has made no progress a short while ago: the caller
// would wait as long again.
func (p *peer) rest() error {
	if p.lost.Load() {
		return errors.New("it has left the job, and did not answer before")
	}
	at := p.stalled.Load()
	if at == nil || time.Since(*at) > p.s.cfg.Stall {
		return nil
	}
	return fmt.Errorf("it made no progress for %v before", p.s.cfg.Stall)
}

// explain returns the error of an exchange that ended early.
func (x *exchange) explain(err error) error {
	timeout, ok := errors.AsType[net.Error](err)
	switch {
	case x.ctx.Err() != nil:
		return context.Cause(x.ctx)
	case context.Cause(x.request) == errStall, ok && timeout.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		now := time.Now()
		x.p.stalled.Store(&now)
		err = fmt.Errorf("%w for %v", errStall, x.p.s.cfg.Stall)
	}
	return x.p.unreachable(err)
}

// refusal returns the error that the server has sent.
func (x *exchange) refusal() error {
	text, err := io.ReadAll(io.LimitReader(x, maxRefusal))
	switch {
	case err != nil:
		return err
	case x.StatusCode == http.StatusPreconditionFailed:
		return blob.ErrChanged
	case x.StatusCode == http.StatusNotFound && x.Header.Get(kindHeader) == kindAbsent:
		return fs.ErrNotExist
	}
	return x.p.unreachable(fmt.Errorf("%s: %q", x.Status, strings.TrimSpace(string(text))))
}

// Read reads the body of the answer.
func (x *exchange) Read(b []byte) (int, error) {
	n, err := x.Body.Read(b)
	if n > 0 {
		x.timer.Reset(x.p.s.cfg.Stall)
		x.p.s.received.Add(int64(n))
	}
	if err != nil && err != io.EOF {
		err = x.explain(err)
	}
	return n, err
}

// Close ends the exchange.
func (x *exchange) Close() {
	x.timer.Stop()
	if x.Response != nil {
		x.Body.Close()
	}
	x.cancel(nil)
	<-x.p.slots
}

// list returns the objects of the peer.
func (p *peer) list(ctx context.Context, prefix string) ([]blob.Info, error) {
	x, err := p.ask(ctx, http.MethodGet, listPath, url.Values{"prefix": {prefix}}, nil)
	if err != nil {
		return nil, err
	}
	defer x.Close()

	infos, err := decodeList(x, prefix)
	if err != nil && ctx.Err() == nil && !errors.Is(err, ErrUnreachable) {
		err = p.unreachable(err)
	}
	for i := range infos {
		infos[i] = p.qualified(infos[i])
	}
	return infos, err
}

// stat describes an object of the peer, with the version that it has there.
func (p *peer) stat(ctx context.Context, name string) (blob.Info, error) {
	x, err := p.ask(ctx, http.MethodGet, statPath, url.Values{"name": {name}}, nil)
	if err != nil {
		return blob.Info{}, err
	}
	defer x.Close()

	text, err := io.ReadAll(io.LimitReader(x, maxLine))
	if err != nil {
		return blob.Info{}, err
	}

	var e entry
	var info blob.Info
	if err = json.Unmarshal(text, &e); err == nil {
		info, err = e.info()
	}
	if err == nil && info.Name != name {
		err = fmt.Errorf("%w: %q instead of %q", errAnswer, info.Name, name)
	}
	if err != nil {
		return blob.Info{}, p.unreachable(err)
	}
	return info, nil
}

// remove removes an object of the peer, if it has this version there. Empty: any.
func (p *peer) remove(ctx context.Context, name, version string) error {
	h := http.Header{"Idempotency-Key": nil} // it may be sent again over another connection
	if version != "" {
		h = http.Header{"If-Match": {etag(version)}}
	}
	x, err := p.ask(ctx, http.MethodDelete, objectPath, url.Values{"name": {name}}, h)
	if errors.Is(err, fs.ErrNotExist) {
		return blob.ErrRemoved
	}
	if err == nil {
		x.Close()
	}
	return err
}

// damaged reports that an object of the peer has wrong bytes.
func (p *peer) damaged(ctx context.Context, name string) error {
	h := http.Header{"Idempotency-Key": nil} // it may be sent again over another connection
	x, err := p.ask(ctx, http.MethodPost, damagedPath, url.Values{"name": {name}}, h)
	if err == nil {
		x.Close()
	}
	return err
}

// get asks for n bytes of the object o.
func (p *peer) get(ctx context.Context, o blob.Info, off, n int64) (*exchange, error) {
	x, err := p.ask(ctx, http.MethodGet, objectPath, url.Values{"name": {o.Name}}, http.Header{
		"Range": {fmt.Sprintf("bytes=%d-%d", off, off+n-1)}, "If-Match": {etag(o.Version)},
	})
	if errors.Is(err, fs.ErrNotExist) { // other hosts may have it
		return nil, fmt.Errorf("%w: %s has removed it", blob.ErrChanged, p)
	}
	if err != nil {
		return nil, err
	}

	got, want := x.Header.Get("Content-Range"), fmt.Sprintf(rangePattern, off, off+n-1, o.Size)
	if x.StatusCode != http.StatusPartialContent || x.ContentLength != n || got != want || x.Header.Get("ETag") != etag(o.Version) {
		x.Close()
		return nil, p.unreachable(fmt.Errorf("%w: %s, %d bytes, %.64q instead of %q", errAnswer, x.Status, x.ContentLength, got, want))
	}
	return x, nil
}

// readAt reads a range of the object o, in pieces and in parallel.
func (p *peer) readAt(ctx context.Context, o blob.Info, b []byte, off int64) error {
	return p.s.pieces(ctx, int64(len(b)), func(ctx context.Context, _ int, at, n int64) error {
		x, err := p.get(ctx, o, off+at, n)
		if err != nil {
			return err
		}
		defer x.Close()
		_, err = io.ReadFull(x, b[at:at+n])
		return err
	})
}
