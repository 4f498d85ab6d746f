package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Address is the parts of an address such as s3://bucket/prefix?region=x.
type Address struct {
	Bucket, Prefix string
	Options        map[string]string // of the query
}

// ParseAddress parses an address of a scheme, for drivers. Its options are among those that
// are named. secrets says where credentials belong, for an address that has a user. Errors do
// not repeat possible secrets.
func ParseAddress(text, scheme, secrets string, options ...string) (*Address, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != scheme || u.Host == "" || u.Fragment != "":
		return nil, fmt.Errorf("want %s://bucket/prefix", scheme)
	case u.User != nil:
		return nil, fmt.Errorf("credentials do not belong in an address: set %s", secrets)
	case u.RawQuery != "" && len(options) == 0:
		return nil, fmt.Errorf("addresses of %s have no options", scheme)
	}

	a := &Address{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"), Options: map[string]string{}}
	for key, values := range u.Query() {
		if !slices.Contains(options, key) {
			return nil, fmt.Errorf("there is no option %q; the options are: %s", key, strings.Join(options, ", "))
		}
		a.Options[key] = values[len(values)-1]
	}

	return a, nil
}

// Bool returns an option that is true or false, or otherwise if it is not set.
func (a *Address) Bool(name string, otherwise bool) (bool, error) {
	text, ok := a.Options[name]
	if !ok {
		return otherwise, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s is true or false", name)
	}
	return b, nil
}

// CheckEndpoint returns an error if text is not the URL of a service.
func CheckEndpoint(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return errors.New("an endpoint begins with http:// or https://, such as http://127.0.0.1:9000")
	case u.User != nil:
		return errors.New("credentials do not belong in an endpoint")
	}
	return nil
}

// tallyKey is the key of the *tally of a context.
type tallyKey struct{}

// tally counts the requests of a store, in the transport.
type tally struct {
	requests *atomic.Int64 // counted
	skew     *atomic.Int64 // how far the clock of the service is ahead, in nanoseconds
}

// noteDate compares the clock of this host with the clock of the service, from the answer
// to a request.
func noteDate(r *http.Request, answer *http.Response) {
	t, ok := r.Context().Value(tallyKey{}).(*tally)
	at, err := http.ParseTime(answer.Header.Get("Date"))
	if !ok || err != nil {
		return
	}

	skew := time.Until(at)
	if skew.Abs() < 2*time.Second { // the header has whole seconds
		skew = 0
	}
	t.skew.Store(int64(skew))
}

// CountRequest counts a request that a driver makes with a context of this package.
func CountRequest(ctx context.Context) {
	if t, ok := ctx.Value(tallyKey{}).(*tally); ok {
		t.requests.Add(1)
	}
}

// Tune sets up the connections of a driver for large bodies. They are HTTP/1.1, one for
// each request, because the streams of one HTTP/2 connection share its rate.
func Tune(t *http.Transport) {
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.MaxIdleConnsPerHost, t.MaxIdleConns = 128, 256
	t.WriteBufferSize, t.ReadBufferSize = 256<<10, 256<<10
	t.ResponseHeaderTimeout = time.Minute
}

// NewTransport returns connections as Tune sets them up.
func NewTransport() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	Tune(t)
	return Transport{t}
}
