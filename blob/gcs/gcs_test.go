package gcs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
)

func TestAddresses(t *testing.T) {
	t.Setenv(emulatorEnv, "127.0.0.1:1")
	s, err := Open(t.Context(), "gs://my.bucket_1/a%20b/c/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if v, prefix := s.Service(); v.(*service).bucket != "my.bucket_1" || prefix != "a b/c/" {
		t.Errorf("Open = %+v, %q; want my.bucket_1 and a b/c/", v, prefix)
	}
	for _, address := range []string{"gs://", "gs:///x", "s3://b/x", "gs://user:secret@b/x", "gs://b/x?key=secret", "gs://b/x#y", "gs://b/%zz", "gs://b/../x", "gs://b/.cairn-tmp-x"} {
		_, err := Open(t.Context(), address, nil)
		if !errors.Is(err, blob.ErrAddress) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q) = %v; want blob.ErrAddress without the secret", address, err)
		}
	}
}

func TestBadCredentials(t *testing.T) {
	t.Setenv(emulatorEnv, "")
	file := filepath.Join(t.TempDir(), "key.json")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	for _, content := range []string{"", `{"type": "service_account", "private_key": "secret"`} {
		if content != "" {
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Open(t.Context(), "gs://bucket/x", nil)
		if err == nil || !strings.Contains(err.Error(), hintCredentials) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open with credentials %q = %v; want an error with a hint", content, err)
		}
	}
}

// A key file that is malformed inside is found with the first request, which is not
// repeated.
func TestMalformedKeyFailsAtOnce(t *testing.T) {
	t.Setenv(emulatorEnv, "")
	file := filepath.Join(t.TempDir(), "key.json")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	key := `{"type": "service_account", "client_email": "me@x", "private_key_id": "1", "private_key": "hush", "token_uri": "http://127.0.0.1:1/token"}`
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), "gs://bucket/x", nil)
	if err == nil {
		_, err = s.Stat(t.Context(), "y")
	}
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), hintCredentials) || strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "attempt") {
		t.Errorf("Stat with a malformed key = %v; want a hint at the credentials, at the first attempt", err)
	}
}

// A token that cannot be had is an error of credentials, not of the connection.
func TestTokenRefused(t *testing.T) {
	refused := &authorizer{base: roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("invalid_grant") })}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = refused.RoundTrip(r)
	var e *remote.Error
	if err = explain(err); !errors.As(err, &e) || e.Retry || !errors.Is(err, fs.ErrPermission) || e.Hint != hintCredentials {
		t.Errorf("explain = %v; want fs.ErrPermission, a hint and no retry", err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestErrors(t *testing.T) {
	answer := func(code int, message string) error {
		return fmt.Errorf("storage: %w", &googleapi.Error{Code: code, Message: message})
	}
	for _, c := range []struct {
		err         error
		is          error // may be nil
		retry, sent bool
		hint        string
	}{
		{answer(404, "No such object: b/x"), fs.ErrNotExist, false, false, ""},
		{answer(404, "The specified bucket does not exist."), fs.ErrNotExist, false, false, hintBucket},
		{storage.ErrBucketNotExist, fs.ErrNotExist, false, false, hintBucket},
		{storage.ErrObjectNotExist, fs.ErrNotExist, false, false, ""},
		{answer(412, "conditionNotMet"), remote.ErrCondition, false, false, ""},
		{answer(416, ""), errBeyond, false, false, ""},
		{answer(401, "Invalid Credentials"), fs.ErrPermission, false, false, hintCredentials},
		{answer(403, "x does not have storage.objects.create access"), fs.ErrPermission, false, false, hintPermission},
		{answer(400, "Provided CRC32C \"AAAAAQ==\" doesn't match calculated CRC32C"), nil, true, false, ""},
		{answer(400, "Invalid argument."), nil, false, false, ""},
		{answer(429, "rateLimitExceeded"), nil, true, false, ""},
		{answer(503, "backendError"), nil, true, true, ""},
		{&http.MaxBytesError{}, nil, true, true, ""}, // stands for a failed connection
		{context.Canceled, context.Canceled, false, false, ""},
	} {
		got := explain(c.err)
		var e remote.Error
		if p := (*remote.Error)(nil); errors.As(got, &p) {
			e = *p
		}
		if c.is != nil && !errors.Is(got, c.is) || e.Retry != c.retry || e.Sent != c.sent || !strings.Contains(e.Hint, c.hint) || c.hint == "" && e.Hint != "" {
			t.Errorf("explain(%v) = %v with %+v; want %+v", c.err, got, e, c)
		}
	}
	slow := &googleapi.Error{Code: 503, Header: http.Header{"Retry-After": {"7"}}, Body: "<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Later.</Message></Error>"}
	var e *remote.Error
	if err := explain(slow); !errors.As(err, &e) || e.After != 7*time.Second || !strings.Contains(err.Error(), "SlowDown: Later.") {
		t.Errorf("explain = %v; want the text and a wait of 7 s", err)
	}
}

func TestNamesOfParts(t *testing.T) {
	for _, key := range []string{"x", "a/b-c/data-0.bin", strings.Repeat("d/", 400) + strings.Repeat("é", 100)} {
		u := &upload{key: key, pending: pendingKey(key, "ID")}
		part := u.partKey(1, 23)
		got, ok := parsePart(part)
		if !ok || got.ID != "ID" || !strings.HasPrefix(key, got.Key) || len(part) > maxKey || !strings.Contains(part, blob.Reserved) {
			t.Errorf("the part %q of %q is of %+v, %v", part, key, got, ok)
		}
		if len(key) < 100 && got.Key != key {
			t.Errorf("the part %q is of %q; want %q", part, got.Key, key)
		}
	}
	for _, key := range []string{"a/x-y-0.00001", "a/" + blob.Reserved + "x", "a/" + blob.Reserved + "x-0"} {
		if u, ok := parsePart(key); ok {
			t.Errorf("parsePart(%q) = %+v; want none", key, u)
		}
	}
}
