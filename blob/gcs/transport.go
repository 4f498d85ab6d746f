package gcs

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"os"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// authorizer adds the token of the credentials to requests.
type authorizer struct {
	base   http.RoundTripper
	tokens oauth2.TokenSource
	// project is the project that pays for the requests. Empty: the project of the bucket.
	project string
}

// authorized returns a transport that adds the credentials of this process to requests.
func authorized(ctx context.Context, base http.RoundTripper) (*authorizer, error) {
	found, err := google.FindDefaultCredentials(ctx, scope)
	if err != nil {
		return nil, err
	}
	var file struct {
		QuotaProject string `json:"quota_project_id"`
	}
	_ = json.Unmarshal(found.JSON, &file) // empty if the machine's service account is used
	return &authorizer{base, found.TokenSource, cmp.Or(os.Getenv("GOOGLE_CLOUD_QUOTA_PROJECT"), file.QuotaProject)}, nil
}

// RoundTrip implements [http.RoundTripper].
func (t *authorizer) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := t.tokens.Token()
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, &credentialError{err}
	}
	r = r.Clone(r.Context()) // a RoundTripper must not change it
	token.SetAuthHeader(r)
	if t.project != "" {
		r.Header.Set("X-Goog-User-Project", t.project)
	}
	return t.base.RoundTrip(r)
}

// credentialError reports that there is no token for a request.
type credentialError struct{ err error }

func (e *credentialError) Error() string { return e.err.Error() }
func (e *credentialError) Unwrap() error { return e.err }
