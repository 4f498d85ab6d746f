package gcs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestAddresses(t *testing.T) {
	t.Setenv(emulatorEnv, "127.0.0.1:1")
	s := must.Get(Open(t.Context(), "gs://my.bucket_1/a%20b/c/", nil))(t)
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
			must.Do(t, os.WriteFile(file, []byte(content), 0o600))
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
	must.Do(t, os.WriteFile(file, []byte(key), 0o600))
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
	refused := &authorizer{base: http.DefaultTransport, tokens: noTokens{}}
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

type noTokens struct{}

func (noTokens) Token() (*oauth2.Token, error) { return nil, errors.New("invalid_grant") }

// Requests have the token, and the project that pays for them.
func TestAuthorized(t *testing.T) {
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer server.Close()
	tokens := oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "abc", TokenType: "Bearer"})
	c := &client{http: &http.Client{Transport: &authorizer{http.DefaultTransport, tokens, "payer"}}, base: server.URL}
	must.Do(t, c.call(t.Context(), http.MethodDelete, objectPath("b", "a/b c"), nil, nil, nil))
	if got.Get("Authorization") != "Bearer abc" || got.Get("X-Goog-User-Project") != "payer" {
		t.Errorf("the request has %v", got)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// An answer with other bytes than a read asked for is an error.
func TestReadAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		code    int
		headers []string
		want    string // empty: no error
	}{
		"a part":          {206, []string{"Content-Range", "bytes 4-5/10", "X-Goog-Generation", "7"}, ""},
		"all":             {200, []string{"X-Goog-Generation", "7"}, "the whole object"},
		"another part":    {206, []string{"Content-Range", "bytes 0-5/10", "X-Goog-Generation", "7"}, "the range"},
		"no range":        {206, []string{"X-Goog-Generation", "7"}, "the range"},
		"no generation":   {206, []string{"Content-Range", "bytes 4-5/10"}, "no generation"},
		"an error":        {503, nil, "Service Unavailable (status 503)"},
		"another success": {204, nil, "status 204"},
	} {
		t.Run(name, func(t *testing.T) {
			answer := &http.Response{StatusCode: c.code, Header: http.Header{}, Body: http.NoBody, ContentLength: 10}
			for pair := range slices.Chunk(c.headers, 2) {
				answer.Header.Set(pair[0], pair[1])
			}
			a, err := describeAnswer(answer, "x", 4)
			if c.want == "" && (err != nil || a.Size != 10 || a.Generation != 7) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("describeAnswer = %+v, %v; want %q", a, err, c.want)
			}
		})
	}
}

// A list asks for the kind, by which an answer that is no list is noticed: the service
// leaves out fields that are not asked for.
func TestListAsksForTheKind(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := map[string]any{"kind": listKind, "nextPageToken": "more", "prefixes": []string{"a/"}, "items": []attrs{{Name: "x", Size: 3, Generation: 9}}}
		fields := r.URL.Query().Get("fields")
		for name := range all {
			if !strings.Contains(","+strings.ReplaceAll(fields, "(", ","), ","+name) {
				delete(all, name)
			}
		}
		json.NewEncoder(w).Encode(all)
	}))
	defer server.Close()
	t.Setenv(emulatorEnv, server.URL)
	s := must.Get(Open(t.Context(), "gs://bucket/run", nil))(t)
	v, _ := s.Service()
	objects, next, err := v.List(t.Context(), "run/", "")
	if err != nil || next != "more" || len(objects) != 1 || objects[0].Key != "x" || objects[0].Size != 3 || objects[0].Version != "9" {
		t.Errorf("List = %+v, %q, %v", objects, next, err)
	}
	folders, next, err := v.(*service).Folders(t.Context(), "run/", "")
	if err != nil || next != "more" || !slices.Equal(folders, []string{"a/"}) {
		t.Errorf("Folders = %q, %q, %v", folders, next, err)
	}
}

func TestErrors(t *testing.T) {
	answer := func(code int, message string) error {
		return fmt.Errorf("get: %w", &answerError{code: code, message: message})
	}
	for _, c := range []struct {
		err         error
		is          error // may be nil
		retry, sent bool
		hint        string
	}{
		{answer(404, "No such object: b/x"), fs.ErrNotExist, false, false, ""},
		{answer(404, "The specified bucket does not exist."), fs.ErrNotExist, false, false, hintBucket},
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
	slow := newAnswerError(&http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {"7"}}},
		[]byte("<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Later.</Message></Error>"))
	var e *remote.Error
	if err := explain(slow); !errors.As(err, &e) || e.After != 7*time.Second || !strings.Contains(err.Error(), "SlowDown: Later.") {
		t.Errorf("explain = %v; want the text and a wait of 7 s", err)
	}
}

func TestTextsOfAnswers(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"code":404,"message":"No such object: b/x"}}`: "No such object: b/x (status 404)",
		"<Error><Code>NoSuchKey</Code></Error>":                  "NoSuchKey (status 404)",
		"":                                                       "Not Found (status 404)", "<html>": "Not Found (status 404)", "[1]": "Not Found (status 404)",
	} {
		if got := newAnswerError(&http.Response{StatusCode: 404}, []byte(body)).Error(); got != want {
			t.Errorf("the text of %q is %q; want %q", body, got, want)
		}
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
	for _, key := range []string{"a/x-y-0.00001", "a/" + blob.Reserved + "x", "a/" + blob.Reserved + "x-0", "a/" + blob.Reserved + "lock-save-native-20260102t030405-b89d4cee"} {
		if u, ok := parsePart(key); ok {
			t.Errorf("parsePart(%q) = %+v; want none", key, u)
		}
	}
}
