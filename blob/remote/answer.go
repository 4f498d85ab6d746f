package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
)

// Kind is the kind of a document in an answer of a service: the name of the root element of
// an XML document, or the value of "kind" in a JSON object.
type Kind string

// expectedKey is the key of the *expected of a context.
type expectedKey struct{}

// expected has the expected properties of the answers to the requests of one call of an SDK.
type expected struct {
	kind Kind

	mu     sync.Mutex
	tokens PageTokens // of requests; guarded by mu
}

// Expect returns a context for one call of an SDK. Its answer, if it is a good one, must be a
// document of a kind. A Transport then checks the answer. SDKs decode an empty body, or a
// page that a proxy has put in place of the answer, as a list without objects, and an
// unreadable list must not pass for an empty one. It also notices tokens that repeat, if the
// SDK follows the tokens of a list by itself. The SDK must not repeat requests.
func Expect(ctx context.Context, kind Kind) context.Context {
	return context.WithValue(ctx, expectedKey{}, &expected{kind: kind})
}

// hintAnswer is the hint for an answer that does not fit the request.
const hintAnswer = "is this the right service, or is there a proxy that changes answers? check the endpoint"

// maxDocument bounds a document, which is read whole. A list has at most 5000 entries.
const maxDocument = 64 << 20

// Transport is a transport that counts requests, compares the clocks, and checks the
// answers to requests with a context of Expect. The SDKs of drivers use it. If an answer is wrong, the error is an
// *Error.
type Transport struct{ http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	CountRequest(r.Context())
	response, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		noteDate(r, response)
	}

	e, ok := r.Context().Value(expectedKey{}).(*expected)
	if err != nil || !ok || response.StatusCode < 200 || response.StatusCode > 299 {
		return response, err
	}

	defer response.Body.Close()

	body, err := io.ReadAll(io.LimitReader(response.Body, maxDocument+1))
	if err != nil {
		return nil, err // the connection failed
	}

	if err := e.check(r.URL.Query(), body); err != nil {
		return nil, err
	}

	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// tokenOptions are the options of requests with a continuation token, in all services.
var tokenOptions = []string{"continuation-token", "pageToken", "marker"}

// check checks the answer to a request with these options. Some SDKs follow tokens by
// themselves until they have enough objects.
func (e *expected) check(options url.Values, body []byte) error {
	if err := e.kind.check(body); err != nil {
		return &Error{Err: fmt.Errorf("the answer of %d bytes is no %s: %w", len(body), e.kind, err), Retry: true, Hint: hintAnswer}
	}

	e.mu.Lock()
	defer e.mu.Unlock()

	for _, name := range tokenOptions {
		if err := e.tokens.Next(options.Get(name)); err != nil {
			return err
		}
	}

	return nil
}

// check returns an error unless b is a whole document of the kind.
func (k Kind) check(b []byte) error {
	b = bytes.TrimSpace(bytes.TrimPrefix(b, []byte("\ufeff")))
	switch {
	case len(b) == 0:
		return errors.New("it is empty")
	case len(b) > maxDocument:
		return fmt.Errorf("it is larger than %d bytes", maxDocument)
	case b[0] == '{':
		return k.checkJSON(b)
	}

	return k.checkXML(b)
}

func (k Kind) checkJSON(b []byte) error {
	var v struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}

	if v.Kind != string(k) {
		return fmt.Errorf("its kind is %q", v.Kind)
	}
	return nil
}

// checkXML reads the whole document, because an SDK might take one that ends early for a
// shorter list.
func (k Kind) checkXML(b []byte) error {
	d := xml.NewDecoder(bytes.NewReader(b))
	root := ""
	for depth := 0; ; {
		token, err := d.RawToken()
		switch {
		case err == io.EOF && root == "":
			return errors.New("it is neither XML nor JSON")
		case err == io.EOF && depth > 0:
			return io.ErrUnexpectedEOF
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}

		switch e := token.(type) {
		case xml.StartElement:
			if depth++; root == "" {
				root = e.Name.Local
			}
			if root != string(k) {
				return fmt.Errorf("its root is <%s>", root)
			}
		case xml.EndElement:
			depth--
		}
	}
}

// PageTokens notices if a service returns a token of a list for the second time, so that
// the list would have no end. The zero value is ready for a list. It keeps one token only.
type PageTokens struct {
	n     int
	saved string
}

// Next returns an error if an earlier call had the same token, at the latest when the
// tokens have repeated themselves for the second time. The empty token ends a list.
func (p *PageTokens) Next(token string) error {
	if token == "" {
		return nil
	}
	if p.n > 0 && token == p.saved {
		return &Error{Err: fmt.Errorf("the list has no end: the service has returned a continuation token again, after %d pages", p.n), Hint: hintAnswer}
	}

	if p.n++; p.n&(p.n-1) == 0 { // a token that repeats is at most so many pages away
		p.saved = token
	}
	return nil
}
