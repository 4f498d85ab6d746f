package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

// faultKind is a fault that a proxy inflicts on a request.
type faultKind string

// The faults. Those with "late" in their name are after the server has carried out the
// request, so that only the answer gets lost.
const (
	faultReset      faultKind = "reset"       // the connection is reset before the request is read
	faultResetInput faultKind = "reset input" // the server gets a part of the request
	faultResetLate  faultKind = "reset late"
	faultStall      faultKind = "stall" // no answer until the client gives up
	faultStallLate  faultKind = "stall late"
	faultSlow       faultKind = "slow"     // the answer comes in pieces
	faultTruncate   faultKind = "truncate" // the answer ends too early
	faultStatus500  faultKind = "500"
	faultLate500    faultKind = "500 late"
	faultStatus503  faultKind = "503"
	faultCut        faultKind = "cut" // see proxy.CutAt
)

// drawn are the faults that pick chooses from. Stalls take the longest, so they are rarer.
var drawn = []faultKind{
	faultReset, faultResetInput, faultResetLate, faultSlow, faultTruncate, faultStatus500, faultLate500, faultStatus503, faultStall,
	faultReset, faultResetInput, faultResetLate, faultSlow, faultTruncate, faultStatus500, faultLate500, faultStatus503, faultStallLate,
}

// proxy stands between a client and an S3 server on this machine, and disturbs requests
// at random. The order of requests depends on the scheduler, so equal seeds do not give
// exactly equal faults.
type proxy struct {
	// Instead, if not nil, returns the status and the error code of an answer, or 0 if
	// the server is to answer. Answer, if not nil, changes the answers of the server. Both
	// are set before the first request.
	Instead func(*http.Request) (status int, code string)
	Answer  func(*http.Request, *http.Response)

	// Keep, if not nil, reports whether a request is kept: its connection is reset, and the
	// server gets it whenever Land is called. With Again it gets the request and answers it at
	// once, too. Both are set before the first request.
	Keep  func(*http.Request) bool
	Again bool

	// CutAt, if not 0, is the number of the request, from 1 on, at which the client dies:
	// the server gets neither this request nor any later one. With CutLate it gets this
	// one, and the client does not get the answer.
	CutAt   int64
	CutLate bool

	upstream  *url.URL
	rate      float64
	server    *http.Server
	transport *http.Transport
	address   string
	served    chan struct{}
	stop      chan struct{} // closed by Close

	mu       sync.Mutex
	random   *rand.Rand        // guarded by mu
	counts   map[faultKind]int // guarded by mu
	requests int64             // guarded by mu
	kept     []keptRequest     // guarded by mu
}

// newProxy starts a proxy on loopback that disturbs a share of the requests: no request if rate
// is 0, all requests if it is 1. It calls the functions of change before it serves. The caller
// closes it.
func newProxy(upstream string, rate float64, seed uint64, change ...func(*proxy)) (*proxy, error) {
	u, err := url.Parse(upstream)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{
		upstream: u, rate: rate, address: "http://" + l.Addr().String(), served: make(chan struct{}), stop: make(chan struct{}),
		random: rand.New(rand.NewPCG(seed, 0)), counts: map[faultKind]int{},
		transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
	}
	for _, f := range change {
		f(p)
	}
	p.server = &http.Server{Handler: p}
	go func() {
		defer close(p.served)
		_ = p.server.Serve(l) // ends with Close
	}()
	return p, nil
}

// URL returns the endpoint of the proxy.
func (p *proxy) URL() string { return p.address }

// Counts returns how often each fault has happened.
func (p *proxy) Counts() map[faultKind]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Close ends the proxy and all connections.
func (p *proxy) Close() error {
	close(p.stop)
	err := p.server.Close()
	<-p.served
	p.transport.CloseIdleConnections()
	return err
}

// pick returns the fault of a request, or "", and a number from 0 to 1.
func (p *proxy) pick() (faultKind, float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests++
	if n := p.requests; p.CutAt > 0 && n >= p.CutAt {
		p.counts[faultCut]++
		if n > p.CutAt || !p.CutLate {
			return faultReset, 0
		}
		return faultResetLate, 0
	}
	if p.random.Float64() >= p.rate {
		return "", 0
	}
	f := drawn[p.random.IntN(len(drawn))]
	p.counts[f]++
	return f, p.random.Float64()
}

// ServeHTTP implements [http.Handler].
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.Instead != nil {
		if status, code := p.Instead(r); status != 0 {
			_, _ = io.Copy(io.Discard, r.Body)
			refuse(w, status, code)
			return
		}
	}
	if p.Keep != nil && p.Keep(r) {
		if p.keep(r); !p.Again {
			cut(w, nil, true)
			return
		}
	}
	fault, where := p.pick()
	switch fault {
	case faultReset:
		cut(w, nil, true)
		return
	case faultStall:
		p.wait(w, r)
		return
	case faultStatus500:
		_, _ = io.Copy(io.Discard, r.Body)
		refuse(w, http.StatusInternalServerError, "InternalError")
		return
	case faultStatus503:
		_, _ = io.Copy(io.Discard, r.Body)
		refuse(w, http.StatusServiceUnavailable, "SlowDown")
		return
	case faultResetInput:
		r.Body = io.NopCloser(io.MultiReader(io.LimitReader(r.Body, int64(where*float64(r.ContentLength))), broken{}))
	}
	answer, err := p.forward(r)
	if err != nil {
		cut(w, nil, true)
		return
	}
	defer answer.Body.Close()
	if p.Answer != nil {
		p.Answer(r, answer)
	}
	switch fault {
	case faultResetInput, faultResetLate:
		_, _ = io.Copy(io.Discard, answer.Body)
		cut(w, nil, true)
	case faultStallLate:
		_, _ = io.Copy(io.Discard, answer.Body)
		p.wait(w, r)
	case faultLate500:
		_, _ = io.Copy(io.Discard, answer.Body)
		refuse(w, http.StatusInternalServerError, "InternalError")
	case faultTruncate:
		var all bytes.Buffer
		_ = answer.Write(&all)
		cut(w, all.Bytes()[:int(where*float64(all.Len()))], where < 0.5)
	case faultSlow:
		p.answer(w, answer, time.Duration(where*float64(50*time.Millisecond)))
	default:
		p.answer(w, answer, 0)
	}
}

// keptRequest is a request without its body, and the body.
type keptRequest struct {
	*http.Request
	body []byte
}

// keep keeps a request for Land.
func (p *proxy) keep(r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = append(p.kept, keptRequest{r.Clone(context.Background()), body})
}

// Land sends the requests that were kept to the server, in order, and returns the
// statuses of its answers. It keeps them: each call sends them once more.
func (p *proxy) Land() ([]int, error) {
	p.mu.Lock()
	kept := slices.Clone(p.kept)
	p.mu.Unlock()
	var out []int
	for i := range kept {
		status, err := p.land(kept[i])
		if err != nil {
			return out, err
		}
		out = append(out, status)
	}
	return out, nil
}

func (p *proxy) land(r keptRequest) (int, error) {
	r.Body = io.NopCloser(bytes.NewReader(r.body))
	answer, err := p.forward(r.Request)
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}

// broken is the end of a body that is not complete.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("cut on purpose") }

// forward sends a request to the server. The host stays, because it is signed.
func (p *proxy) forward(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = p.upstream.Scheme, p.upstream.Host, ""
	out.Header.Del("Expect")
	if r.ContentLength == 0 {
		out.Body = nil
	}
	return p.transport.RoundTrip(out)
}

// answer passes an answer on. With a pause it does so in four pieces.
func (p *proxy) answer(w http.ResponseWriter, answer *http.Response, pause time.Duration) {
	maps.Copy(w.Header(), answer.Header)
	w.WriteHeader(answer.StatusCode)
	if pause == 0 {
		if _, err := io.Copy(w, answer.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
		return
	}
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	for i := range 4 {
		select {
		case <-time.After(pause):
		case <-p.stop:
		}
		_, _ = w.Write(all[i*len(all)/4 : (i+1)*len(all)/4])
		_ = http.NewResponseController(w).Flush()
	}
}

// wait waits until the client has gone.
func (p *proxy) wait(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the server looks for the end of the connection after the body
	select {
	case <-r.Context().Done():
	case <-p.stop:
	}
	cut(w, nil, true)
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>on purpose</Message></Error>`, code)
}

// cut writes p and ends the connection: with a reset, or as if it were done.
func cut(w http.ResponseWriter, p []byte, reset bool) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer c.Close()
	_, _ = c.Write(p)
	if tcp, ok := c.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
}
