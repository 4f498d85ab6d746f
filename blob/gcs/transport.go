package gcs

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
)

// onceKey is the key of the *atomic.Bool of a context with which one request may be made.
type onceKey struct{}

// errEarly reports an answer that ended early.
var errEarly = errors.New("the connection ended before the answer")

// withOnce returns a context with which one request may be made. The SDK's reader makes
// another one if the connection fails, and has no option against it.
func withOnce(ctx context.Context) context.Context {
	return context.WithValue(ctx, onceKey{}, new(atomic.Bool))
}

// once refuses a second request of a context of withOnce.
type once struct{ base http.RoundTripper }

func (t *once) RoundTrip(r *http.Request) (*http.Response, error) {
	if sent, ok := r.Context().Value(sentKey{}).(*atomic.Bool); ok {
		sent.Store(true)
	}
	if made, ok := r.Context().Value(onceKey{}).(*atomic.Bool); ok && made.Swap(true) {
		return nil, errEarly
	}
	return t.base.RoundTrip(r)
}

// sentKey is the key of the *atomic.Bool that is set when a request has its credentials.
type sentKey struct{}

// authorizer tells errors of credentials from others.
type authorizer struct{ base http.RoundTripper }

func (t *authorizer) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := new(atomic.Bool)
	response, err := t.base.RoundTrip(r.WithContext(context.WithValue(r.Context(), sentKey{}, sent)))
	if err != nil && !sent.Load() && r.Context().Err() == nil {
		err = &credentialError{err}
	}
	return response, err
}

// credentialError reports that there is no token for a request.
type credentialError struct{ err error }

func (e *credentialError) Error() string { return e.err.Error() }
func (e *credentialError) Unwrap() error { return e.err }
