package conformance

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/doctor"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func results(r *doctor.Report) map[string]doctor.Check {
	out := map[string]doctor.Check{}
	for _, c := range r.Checks {
		out[c.Name] = c
	}
	return out
}

// TestDoctorOfS3 lets one check fail: versitygw reads the ETag of an object before it opens
// the file, so a reader that asks for the bytes of one ETag may get the bytes of the next. The
// check finds that on some runs.
func TestDoctorOfS3(t *testing.T) {
	t.Parallel() // it waits for much of its time
	testDoctor(t, openS3(t, nil), racy, doctor.Options{Time: 50 * time.Millisecond})
}

// The other servers are slow: rates are measured with S3 only.
func TestDoctorOfGCS(t *testing.T) {
	testDoctor(t, openGCS(t, startGCS(t)), "", doctor.Options{Quick: true})
}

func TestDoctorOfAzure(t *testing.T) {
	testDoctor(t, openAzure(t, startAzure(t)), "", doctor.Options{Quick: true})
}

// racy is the check that may fail with versitygw.
const racy = "atomic replacement"

// testDoctor examines a server that keeps all promises, except in the check named but, and
// wants no object left behind.
func testDoctor(t *testing.T, s *remote.Store, but string, o doctor.Options) {
	r := must.Get(doctor.Examine(t.Context(), s, &o))(t)
	for _, c := range r.Checks {
		if c.Result != doctor.OK && c.Name != but {
			t.Errorf("%+v", c)
		}
	}
	rates := 3
	if o.Quick {
		rates = 0
	}
	if r.Safe != (but == "" || results(r)[but].Result == doctor.OK) || len(r.Rates) != rates || r.Used == nil || r.Used.Requests == 0 {
		t.Errorf("%+v", r)
	}
	for info, err := range s.List(t.Context(), "") {
		t.Errorf("left behind: %v, %v", info, err)
	}
	if temps, err := s.Temps(t.Context(), ""); err != nil || len(temps) > 0 {
		t.Errorf("left behind: %v, %v", temps, err)
	}
}

// answer replaces an answer by another one.
func answer(w *http.Response, status int, body []byte) {
	w.Body.Close()
	w.StatusCode, w.Status = status, fmt.Sprint(status)
	w.Body, w.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	w.Header.Set("Content-Length", fmt.Sprint(len(body)))
}

const denied = `<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>`

var contents = regexp.MustCompile(`(?s)<Contents>.*?</Contents>`)

// lies are answers of a server that breaks one promise each, by the check that finds it.
var lies = map[string]struct {
	result string
	answer func(*http.Request, *http.Response)
}{
	"create if absent": {doctor.Failed, func(r *http.Request, w *http.Response) {
		if r.Header.Get("If-None-Match") != "" && w.StatusCode == http.StatusPreconditionFailed {
			answer(w, http.StatusOK, nil)
			w.Header.Set("ETag", `"another"`)
		}
	}},
	"replace if unchanged": {doctor.Failed, func(r *http.Request, w *http.Response) {
		if r.Method == http.MethodPut && r.Header.Get("If-Match") != "" && w.StatusCode == http.StatusPreconditionFailed {
			answer(w, http.StatusOK, nil)
			w.Header.Set("ETag", `"another"`)
		}
	}},
	"ranges": {doctor.Failed, func(r *http.Request, w *http.Response) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/ranges") {
			body, err := io.ReadAll(w.Body)
			if err == nil && len(body) > 10 {
				body[len(body)/2] ^= 1
			}
			answer(w, w.StatusCode, body)
		}
	}},
	"list": {doctor.Failed, func(r *http.Request, w *http.Response) {
		if r.URL.Query().Get("list-type") == "2" {
			body, err := io.ReadAll(w.Body)
			if err == nil {
				body = contents.ReplaceAll(body, nil)
			}
			answer(w, w.StatusCode, body)
		}
	}},
	"remove": {doctor.Failed, func(r *http.Request, w *http.Response) {
		if r.Method == http.MethodDelete && !r.URL.Query().Has("uploadId") {
			answer(w, http.StatusForbidden, []byte(denied))
		}
	}},
	"abandoned parts": {doctor.Warning, func(r *http.Request, w *http.Response) {
		if r.URL.Query().Has("uploads") && r.Method == http.MethodGet {
			answer(w, http.StatusForbidden, []byte(denied))
		}
	}},
	"clock": {doctor.Failed, func(r *http.Request, w *http.Response) {
		if m := w.Header.Get("Last-Modified"); m != "" {
			if at, err := http.ParseTime(m); err == nil {
				w.Header.Set("Last-Modified", at.Add(-time.Hour).UTC().Format(http.TimeFormat))
			}
		}
	}},
}

// TestDoctorFindsLies examines the server through a proxy that changes its answers.
func TestDoctorFindsLies(t *testing.T) {
	t.Parallel() // it waits for much of its time
	for name, lie := range lies {
		t.Run(name, func(t *testing.T) {
			p := must.Get(newProxy(endpoint, 0, 1))(t)
			defer p.Close()
			p.Answer = lie.answer
			s := must.Get(s3.Open(t.Context(), strings.Replace(place(), endpoint, p.URL(), 1), &remote.Options{Policy: remote.Policy{Attempts: 2, Pause: time.Millisecond}}))(t)
			r := must.Get(doctor.Examine(t.Context(), s, &doctor.Options{Quick: true}))(t)
			c := results(r)[name]
			safe := lie.result == doctor.Warning && results(r)[racy].Result == doctor.OK
			if c.Result != lie.result || c.Follows == "" || r.Safe != safe {
				t.Errorf("the check is %+v, and the store is safe: %v", c, r.Safe)
			}
		})
	}
}

// TestDoctorWithWrongCredentials checks that the report blames the credentials.
func TestDoctorWithWrongCredentials(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "nobody")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "nothing-secret")
	s := must.Get(blob.OpenAddress(t.Context(), place()))(t)
	r := must.Get(doctor.Examine(t.Context(), s, nil))(t)
	c := results(r)["create"]
	if r.Safe || c.Result != doctor.Failed || !strings.Contains(c.Text, "AWS_ACCESS_KEY_ID") || strings.Contains(fmt.Sprint(r), "nothing-secret") {
		t.Errorf("%+v", r)
	}
}
