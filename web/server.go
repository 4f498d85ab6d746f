package web

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// NewToken returns a random token of 128 bits or more.
func NewToken() string { return rand.Text() }

// ServerOptions describe a Server.
type ServerOptions struct {
	// Token is the secret that every request below /api/ must have.
	Token string
	// Hosts are the names, each with a port, that requests may address the server by, such
	// as "127.0.0.1:8080".
	Hosts []string
	// AnyIP also allows the numeric addresses of this machine, whatever they are, with the
	// port Port: a name that an attacker controls is never one.
	AnyIP bool
	Port  int
}

// Server answers HTTP requests with the answers of a Site. It only reads.
type Server struct {
	site   *Site
	opts   ServerOptions
	token  [sha256.Size]byte
	assets map[string]asset
	large  turns
}

// NewServer returns a server in front of a Site.
func NewServer(s *Site, o ServerOptions) (*Server, error) {
	root, err := fs.Sub(dist, "dist")
	if err != nil {
		return nil, err
	}
	assets, err := loadAssets(root)
	if err != nil {
		return nil, err
	}
	return &Server{site: s, opts: o, token: sha256.Sum256([]byte(o.Token)), assets: assets, large: make(turns, maxLarge)}, nil
}

// The limits of connections. An answer has no limit in time, but each write of it has.
const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	writeTimeout  = time.Minute
	endTimeout    = time.Second // pending requests are cancelled, so they end soon
	maxHeader     = 64 << 10    // with the address, and so with the longest name
)

// maxLarge is how many large answers there are at the same time. Each is in memory until the
// client has taken it, which may be never.
const maxLarge = 6

// Serve answers the requests of a listener until ctx ends. Then it cancels pending requests,
// closes the listener and returns nil.
func (v *Server) Serve(ctx context.Context, l net.Listener) error {
	base, cancel := context.WithCancel(ctx)
	defer cancel()
	srv := &http.Server{
		Handler: v, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return base },
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	cancel()
	last, stop := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer stop()
	err := srv.Shutdown(last)
	if err != nil {
		err = srv.Close() // a client does not take its answer
	}
	<-ended
	return err
}

// headers are the headers of every answer.
var headers = map[string]string{
	"Content-Security-Policy": strings.Join([]string{
		"default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:", "connect-src 'self'",
		"font-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
	}, "; "),
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
	"Cross-Origin-Embedder-Policy": "require-corp",
	"Permissions-Policy":           "camera=(), geolocation=(), microphone=()",
	"Cache-Control":                "no-store",
}

// ServeHTTP implements http.Handler.
func (v *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, text := range headers {
		w.Header().Set(name, text)
	}
	// The deadline of the last answer on this connection may be over.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a recorder of tests has none
	name, isAPI := strings.CutPrefix(r.URL.Path, "/api/")
	if err := v.check(r, isAPI); err != nil {
		v.fail(w, r, err)
		return
	}
	if !isAPI {
		v.serveAsset(w, r)
		return
	}
	v.serveAnswer(w, r, name)
}

// check refuses requests that do not come from the page of this server, or, if they are about
// data, do not have the token.
func (v *Server) check(r *http.Request, isAPI bool) error {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return &Error{Kind: KindMethod, Message: "the server only reads: the method is GET or HEAD"}
	case r.ContentLength != 0:
		return badRequest("a request has no body", "")
	case !v.knowsHost(r.Host):
		return &Error{Kind: KindForbidden, Message: "the server is not called " + quote(r.Host), Hint: "use the address that 'cairn web' has printed; a tunnel needs the same port on both sides: ssh -L PORT:127.0.0.1:PORT HOST"}
	}
	if origins, ok := r.Header["Origin"]; ok && !slices.Equal(origins, []string{"http://" + r.Host}) {
		return &Error{Kind: KindForbidden, Message: "requests of other pages are refused"}
	}
	switch from := r.Header.Get("Sec-Fetch-Site"); {
	case from == "" || from == "same-origin" || from == "none": // none: typed, or opened by a program
	case !isAPI && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document":
		// A link to the page, which holds no data.
	default:
		return &Error{Kind: KindForbidden, Message: "requests of other pages are refused"}
	}
	if isAPI && !v.authorized(r) {
		return &Error{Kind: KindUnauthorized, Message: "the request has no token, or a wrong one", Hint: "open the address that 'cairn web' has printed: it ends with the token"}
	}
	return nil
}

// knowsHost reports whether the host of a request is this server. Other names belong to an
// attacker's page that made its address point here.
func (v *Server) knowsHost(host string) bool {
	if slices.Contains(v.opts.Hosts, strings.ToLower(host)) {
		return true
	}
	if !v.opts.AnyIP {
		return false
	}
	name, port, err := net.SplitHostPort(host)
	return err == nil && port == strconv.Itoa(v.opts.Port) && net.ParseIP(name) != nil
}

// authorized reports whether a request has the token. It takes the same time whatever the
// token of the request is.
func (v *Server) authorized(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], v.token[:]) == 1 && ok && len(r.Header["Authorization"]) == 1 && v.opts.Token != ""
}

// serveAsset answers with a file of the page.
func (v *Server) serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := v.assets[r.URL.Path]
	if !ok || a.data == nil {
		v.fail(w, r, &Error{Kind: KindNotFound, Message: "there is nothing at this address"})
		return
	}
	w.Header().Set("Content-Type", a.kind)
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Content-Length", strconv.Itoa(len(a.data)))
	if a.fixed {
		w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	}
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		_ = v.write(w, a.data) // the client is gone
	}
}

// serveAnswer answers a question.
func (v *Server) serveAnswer(w http.ResponseWriter, r *http.Request, name string) {
	what, ok := questions[name]
	if !ok {
		v.fail(w, r, &Error{Kind: KindNotFound, Message: "there is no request " + quote("/api/"+name), Hint: "docs/web.md describes the requests"})
		return
	}

	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		v.fail(w, r, badRequest("the parameters cannot be parsed: "+err.Error(), ""))
		return
	}
	q := newQuery(values, strings.Fields(what.params)...)
	if q.err != nil {
		v.fail(w, r, q.err)
		return
	}

	w.Header().Set("Content-Type", "application/json")
	if what.stream {
		w.Header().Set("Content-Type", "application/x-ndjson")
	}
	if r.Method == http.MethodHead {
		return
	}

	if what.stream {
		v.stream(w, r, q, &what)
		return
	}

	if what.large {
		done, err := v.large.take(r.Context(), nil)
		if err != nil {
			v.fail(w, r, err)
			return
		}
		defer done()
	}

	answer, err := what.answer(r.Context(), v.site, q, new(meter))
	if err != nil {
		v.fail(w, r, err)
		return
	}
	b, err := encode(answer)
	if err != nil {
		v.fail(w, r, err)
		return
	}
	_ = v.write(w, b, []byte("\n")) // the client is gone
}

// stream answers a question with lines of progress, and then its result or error.
func (v *Server) stream(w http.ResponseWriter, r *http.Request, q *query, what *question) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	send := func(name string, value any) {
		b, err := encode(value)
		if err == nil {
			err = v.write(w, []byte(`{"`+name+`":`), b, []byte("}\n"))
		}
		if err != nil {
			cancel() // the client is gone
		}
	}
	_ = v.write(w) // the headers: the client knows that the request has arrived
	var answer any
	var err error
	watch(func(m *meter) { answer, err = what.answer(ctx, v.site, q, m) }, func(done, total int64, what string) {
		send("progress", state{done, total, what})
	})
	if err == nil {
		var b []byte
		b, err = encode(answer) // an error must not end a line that has begun
		answer = json.RawMessage(b)
	}
	if err != nil {
		send("error", v.site.answerOf(err))
		return
	}
	send("result", answer)
}

// fail answers with an error.
func (v *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := v.site.answerOf(err)
	switch e.Kind {
	case KindUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case KindMethod:
		w.Header().Set("Allow", "GET, HEAD")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	b, err := encode(struct {
		Error *Error `json:"error"`
	}{e})
	if err != nil {
		b = nil // it consists of strings
	}
	w.WriteHeader(statuses[e.Kind])
	if r.Method != http.MethodHead {
		_ = v.write(w, b, []byte("\n")) // the client is gone
	}
}

// encode returns the JSON of a value.
func encode(v any) ([]byte, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return raw, nil // as it is: to check it takes as long as to make it
	}
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// writeBytes is how much is written at once: a client that takes less in writeTimeout is gone.
const writeBytes = 1 << 20

// write sends parts of an answer at once.
func (v *Server) write(w http.ResponseWriter, parts ...[]byte) error {
	c := http.NewResponseController(w)
	for _, b := range parts {
		for part := range slices.Chunk(b, writeBytes) {
			_ = c.SetWriteDeadline(time.Now().Add(writeTimeout)) // a recorder of tests has none
			if _, err := w.Write(part); err != nil {
				return err
			}
		}
	}
	if err := c.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}
