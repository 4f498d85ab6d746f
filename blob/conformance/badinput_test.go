package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// badInput is a mistake of the user or of the server.
type badInput struct {
	name     string
	env      map[string]string
	bucket   string // empty: the one that exists
	endpoint func(t *testing.T) string
	proxy    func(p *proxy) // sets hooks
	save     string         // a part of the error of a save, or empty: it succeeds
	load     string
}

func elsewhere(status int, code string) func(*proxy) {
	return func(p *proxy) { p.Instead = func(*http.Request) (int, string) { return status, code } }
}

// expired lets the first requests that change something through.
func expired(p *proxy) {
	var n atomic.Int64
	p.Instead = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPut && n.Add(1) > 1 {
			return http.StatusBadRequest, "ExpiredToken"
		}
		return 0, ""
	}
}

// onBody changes the bodies of ranges.
func onBody(change func(h http.Header, p []byte) []byte) func(*proxy) {
	return func(p *proxy) {
		p.Answer = func(r *http.Request, a *http.Response) {
			if a.StatusCode != http.StatusPartialContent || r.Method != http.MethodGet {
				return
			}
			body, _ := io.ReadAll(a.Body)
			a.Body = io.NopCloser(bytes.NewReader(change(a.Header, body)))
		}
	}
}

var badInputs = []badInput{
	{name: "wrong secret", env: map[string]string{"AWS_SECRET_ACCESS_KEY": "mistyped-secret"}, save: "AWS_SECRET_ACCESS_KEY", load: "AWS_SECRET_ACCESS_KEY"},
	{name: "unknown key", env: map[string]string{"AWS_ACCESS_KEY_ID": "stranger"}, save: "AWS_ACCESS_KEY_ID", load: "AWS_ACCESS_KEY_ID"},
	{name: "no credentials", env: map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, save: "there are no credentials", load: "there are no credentials"},
	{name: "missing bucket", bucket: "missing", save: "there is no such bucket", load: "there is no such bucket"},
	{name: "read-only key", env: map[string]string{"AWS_ACCESS_KEY_ID": readerAccessKey, "AWS_SECRET_ACCESS_KEY": readerSecretKey}, save: "the key may not do this"},
	{name: "wrong region", env: map[string]string{"AWS_REGION": "eu-west-9"}, save: "AWS_REGION", load: "AWS_REGION"},
	{name: "no listener", endpoint: refused, save: "check the endpoint", load: "check the endpoint"},
	{name: "TLS to a server without", endpoint: func(*testing.T) string { return "https" + strings.TrimPrefix(endpoint, "http") }, save: "begin it with http://", load: "begin it with http://"},
	{name: "no TLS to a server with", endpoint: tlsServer("http"), save: "check the endpoint", load: "check the endpoint"},
	{name: "unknown certificate", endpoint: tlsServer("https"), save: "certificate", load: "certificate"},
	{name: "not S3", endpoint: website, save: "check the endpoint", load: "check the endpoint"},
	{name: "a site without such pages", endpoint: noPages, save: "check the endpoint", load: "check the endpoint"},
	{name: "redirect", proxy: elsewhere(http.StatusTemporaryRedirect, "TemporaryRedirect"), save: "another region", load: "another region"},
	{name: "moved", proxy: elsewhere(http.StatusMovedPermanently, "PermanentRedirect"), save: "another region", load: "another region"},
	{name: "clock", proxy: elsewhere(http.StatusForbidden, "RequestTimeTooSkewed"), save: "clock", load: "clock"},
	{name: "token that expires", proxy: expired, save: "have expired"},
	{name: "other bytes", proxy: onBody(func(_ http.Header, p []byte) []byte { p[len(p)/2] ^= 1; return p }), save: "cannot be read", load: "corrupt"},
	{name: "fewer bytes", proxy: onBody(func(h http.Header, p []byte) []byte {
		h.Set("Content-Length", fmt.Sprint(len(p)/2))
		return p[:len(p)/2]
	}), save: "the answer ended after", load: "the answer ended after"},
	{name: "other range", proxy: onBody(func(h http.Header, p []byte) []byte {
		h.Set("Content-Range", fmt.Sprintf("bytes 7-%d/%d", len(p)+6, len(p)+7))
		return p
	}), save: "check the endpoint", load: "the answer is for the range"},
	{name: "other size", proxy: onBody(func(h http.Header, p []byte) []byte {
		field, _, _ := strings.Cut(h.Get("Content-Range"), "/")
		h.Set("Content-Range", field+"/999999999999")
		return p
	}), save: "999999999999 bytes", load: "999999999999 bytes"},
	{name: "other checksum", proxy: func(p *proxy) {
		p.Answer = func(r *http.Request, a *http.Response) {
			if r.Method == http.MethodPut {
				a.Header.Set("X-Amz-Checksum-Crc32c", "AAAAAA==")
			}
		}
	}, save: "CRC-32C"},
}

func refused(t *testing.T) string {
	address := must.Get(freeAddress())(t)
	return "http://" + address
}

func tlsServer(scheme string) func(t *testing.T) string {
	return func(t *testing.T) string {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		return scheme + strings.TrimPrefix(s.URL, "https")
	}
}

func website(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "<html>Welcome</html>") }))
	t.Cleanup(s.Close)
	return s.URL
}

func noPages(t *testing.T) string {
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	return s.URL
}

// Each mistake gives an error that names the address and a remedy, without a secret, and
// keeps the earlier checkpoint.
func TestS3BadInput(t *testing.T) {
	for _, c := range badInputs {
		t.Run(c.name, func(t *testing.T) { testBadInput(t, c) })
	}
}

func testBadInput(t *testing.T, c badInput) {
	good := openS3(t, nil)
	if _, err := cairn.Save(t.Context(), good, number(t, 1), nil); err != nil {
		t.Fatal(err)
	}
	for name, value := range c.env {
		t.Setenv(name, value)
	}
	at := endpoint
	switch {
	case c.endpoint != nil:
		at = c.endpoint(t)
	case c.proxy != nil:
		p := startProxy(t, 0, 0)
		c.proxy(p)
		at = p.URL()
	}
	bucket := c.bucket
	if bucket == "" {
		bucket = "bucket"
	}
	address := strings.Replace(good.String(), "s3://bucket", "s3://"+bucket, 1)
	policy := quick
	policy.Attempts = 4
	s, err := s3.Open(t.Context(), address+"?endpoint="+at, &remote.Options{Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, _, err = cairn.LoadNew(ctx, s, nil)
	checkError(t, "load", address, err, c.load)
	if errors.Is(err, cairn.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("load: %v; a job would take it for a place without a checkpoint, and start from the beginning", err)
	}
	before := names(t, good)
	_, err = cairn.Save(ctx, s, number(t, 2), &cairn.SaveOptions{Step: new(int64(2))})
	checkError(t, "save", address, err, c.save)
	want := 1
	if c.save == "" {
		want = 2
	} else if now := names(t, good); now != before {
		t.Errorf("after the save there is %s; want %s", now, before)
	}
	got, _, err := cairn.LoadNew(t.Context(), good, nil)
	if err != nil || fmt.Sprint(got["n"]) != fmt.Sprint(want) {
		t.Errorf("the checkpoint holds %v, %v; want %d", got["n"], err, want)
	}
	if left, err := good.Temps(t.Context(), ""); err != nil || len(left) > 0 {
		t.Errorf("uploads that are left: %v, %v", left, err)
	}
}

func number(t *testing.T, n int) cairn.State {
	t.Helper()
	w := must.Get(tensor.Of([]int64{100_000}, bytes.Repeat([]byte{byte(n)}, 100_000)))(t)
	return cairn.State{"n": n, "w": w}
}

func names(t *testing.T, s blob.Store) string {
	t.Helper()
	var out []string
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.Name)
	}
	return strings.Join(out, " ")
}

func checkError(t *testing.T, op, address string, err error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Errorf("%s: %v; want success", op, err)
		}
		return
	}
	if err == nil {
		t.Errorf("%s: success; want an error with %q", op, want)
		return
	}
	text := err.Error()
	for _, part := range []string{op, address, want} {
		if !strings.Contains(text, part) {
			t.Errorf("%s: %q lacks %q", op, text, part)
		}
	}
	for _, secret := range []string{secretKey, readerSecretKey, "mistyped-secret", "Signature=", "X-Amz-"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s: %q holds a secret", op, text)
		}
	}
}
