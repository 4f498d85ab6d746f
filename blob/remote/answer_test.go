package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestKinds(t *testing.T) {
	for body, want := range map[string]bool{
		`<List></List>`: true,
		"\ufeff<?xml version=\"1.0\"?>\n<!-- a list -->\n<List xmlns=\"http://x\"><a/><b>1</b></List>\n": true,
		`<x:List xmlns:x="http://x"/>`: true,
		`{"a": [1], "kind": "List"}`:   true,
		``:                             false,
		` `:                            false,
		`List`:                         false,
		`<List>`:                       false,
		`<List><a></List`:              false,
		`<html><List></List></html>`:   false,
		`<List/><html/>`:               true, // text after the document does no harm
		`<?xml version="1.0"?>`:        false,
		`{"kind": "other"}`:            false,
		`{"kind": "List"`:              false,
		`{}`:                           false,
		`[]`:                           false,
		`null`:                         false,
	} {
		if err := Kind("List").check([]byte(body)); (err == nil) != want {
			t.Errorf("check(%q) = %v; want success: %v", body, err, want)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Only good answers to requests with a context of Expect are checked.
func TestTransport(t *testing.T) {
	for _, c := range []struct {
		status   int
		body     string
		expected bool
		fails    bool
	}{
		{200, "<List/>", true, false},
		{200, "", true, true},
		{204, "", true, true},
		{200, "", false, false},
		{404, "", true, false},
		{301, "<html/>", true, false},
	} {
		tr := Transport{roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: c.status, Body: io.NopCloser(strings.NewReader(c.body))}, nil
		})}
		ctx := t.Context()
		if c.expected {
			ctx = Expect(ctx, "List")
		}
		r := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, "http://x/", nil))(t)
		a, err := tr.RoundTrip(r)
		if e, ok := errors.AsType[*Error](err); (err != nil) != c.fails || c.fails && (!ok || !e.Retry || e.Hint == "") {
			t.Errorf("%+v: %v", c, err)
		}
		if err == nil {
			if b, err := io.ReadAll(a.Body); err != nil || string(b) != c.body {
				t.Errorf("%+v: the body is %q, %v", c, b, err)
			}
		}
	}
}

func TestPageTokens(t *testing.T) {
	var p PageTokens
	for i := range 5000 {
		if err := p.Next(fmt.Sprint(i)); err != nil {
			t.Fatalf("token %d: %v", i, err)
		}
	}
	for lead := range 20 {
		for period := 1; period < 20; period++ {
			var p PageTokens
			n := 0
			for ; p.Next(fmt.Sprint(min(n, lead), (n-min(n, lead))%period)) == nil; n++ {
				if n > 1000 {
					t.Fatalf("%d tokens, and then %d that repeat: no error", lead, period)
				}
			}
			if n > 3*(lead+period)+2 {
				t.Errorf("%d tokens, and then %d that repeat: %d requests", lead, period, n)
			}
		}
	}
}

// endless is a service with endless lists.
type endless struct {
	scripted
	n int
}

func (s *endless) List(context.Context, string, string) ([]Object, string, error) {
	s.n++
	return []Object{{Key: "x/a"}}, "token", nil
}

func TestListWithoutEnd(t *testing.T) {
	e := new(endless)
	var last error
	n := 0
	for _, last = range newStore(t, e, nil).List(t.Context(), "") {
		n++
	}
	if last == nil || !strings.Contains(last.Error(), "no end") || e.n != 2 || n != 3 {
		t.Errorf("List yields %d objects by %d requests and ends with %v; want an error after 2", n-1, e.n, last)
	}
}
