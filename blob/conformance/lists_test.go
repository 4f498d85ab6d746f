package conformance

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/azure"
	"github.com/cairn-ckpt/cairn/blob/gcs"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/transfer"
)

// lister is a service with lists that a test makes up.
type lister struct {
	open   func(t *testing.T, endpoint string, o *remote.Options) (*remote.Store, error)
	isList func(r *http.Request) bool
	// page is a list with the object run/step-1/notes.txt or the folder run/step-1/, and
	// with a token for the next page unless it is empty.
	page func(r *http.Request, next string) string
	// odd are more answers that are not lists, by their kinds.
	odd map[string]string
}

const listedName = "run/step-1/notes.txt"

var listers = map[string]lister{
	"S3": {
		open: func(t *testing.T, endpoint string, o *remote.Options) (*remote.Store, error) {
			t.Setenv("AWS_ACCESS_KEY_ID", "me")
			t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
			return s3.Open(t.Context(), "s3://bucket/run?region=x&endpoint="+endpoint, o)
		},
		isList: func(r *http.Request) bool { return r.URL.Query().Has("list-type") || r.URL.Query().Has("uploads") },
		page: func(r *http.Request, next string) string {
			if r.URL.Query().Has("uploads") {
				return fmt.Sprintf(`<ListMultipartUploadsResult><Bucket>bucket</Bucket><IsTruncated>%v</IsTruncated><NextKeyMarker>%s</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker></ListMultipartUploadsResult>`, next != "", next)
			}
			what := "<Contents><Key>" + listedName + "</Key><Size>3</Size></Contents>"
			if r.URL.Query().Get("delimiter") != "" {
				what = "<CommonPrefixes><Prefix>run/step-1/</Prefix></CommonPrefixes>"
			}
			return fmt.Sprintf(`<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>bucket</Name><IsTruncated>%v</IsTruncated><NextContinuationToken>%s</NextContinuationToken>%s</ListBucketResult>`, next != "", next, what)
		},
		odd: map[string]string{
			"a list without a token":  `<ListBucketResult><Name>bucket</Name><IsTruncated>true</IsTruncated></ListBucketResult>`,
			"uploads without a token": `<ListMultipartUploadsResult><IsTruncated>true</IsTruncated></ListMultipartUploadsResult>`,
			"half a list":             `<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated><Contents>`,
		},
	},
	"Google": {
		open: func(t *testing.T, endpoint string, o *remote.Options) (*remote.Store, error) {
			t.Setenv("STORAGE_EMULATOR_HOST", endpoint)
			return gcs.Open(t.Context(), "gs://bucket/run", o)
		},
		isList: func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/b/bucket/o") },
		page: func(r *http.Request, next string) string {
			what := `"items": [{"kind": "storage#object", "name": "` + listedName + `", "size": "3"}]`
			if r.URL.Query().Get("delimiter") != "" {
				what = `"prefixes": ["run/step-1/"]`
			}
			return fmt.Sprintf(`{"kind": "storage#objects", "nextPageToken": %q, %s}`, next, what)
		},
		odd: map[string]string{
			"another object": `{"kind": "storage#bucket"}`,
			"no object":      `{}`,
			"half a list":    `{"kind": "storage#objects", "items": [`,
		},
	},
	"Azure": {
		open: func(t *testing.T, endpoint string, o *remote.Options) (*remote.Store, error) {
			key := base64.StdEncoding.EncodeToString([]byte("secret"))
			t.Setenv("AZURE_STORAGE_CONNECTION_STRING", "DefaultEndpointsProtocol=http;AccountName=me;AccountKey="+key+";BlobEndpoint="+endpoint+"/me;")
			return azure.Open(t.Context(), "azblob://bucket/run", o)
		},
		isList: func(r *http.Request) bool { return r.URL.Query().Get("comp") == "list" },
		page: func(r *http.Request, next string) string {
			what := "<Blob><Name>" + listedName + "</Name><Properties><Content-Length>3</Content-Length></Properties></Blob>"
			if r.URL.Query().Get("delimiter") != "" {
				what = "<BlobPrefix><Name>run/step-1/</Name></BlobPrefix>"
			}
			return "\ufeff" + `<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="x" ContainerName="bucket"><Blobs>` + what +
				"</Blobs><NextMarker>" + next + "</NextMarker></EnumerationResults>"
		},
		odd: map[string]string{
			"a list without objects":   `<EnumerationResults><NextMarker/></EnumerationResults>`,
			"an object without a name": `<EnumerationResults><Blobs><Blob><Properties><Content-Length>3</Content-Length></Properties></Blob><BlobPrefix/></Blobs></EnumerationResults>`,
			"half a list":              `<EnumerationResults><Blobs>`,
		},
	},
}

// noLists are answers with status 200 that are no lists of any service.
var noLists = map[string]string{
	"an empty body":      "",
	"blanks":             " \r\n ",
	"a page":             "<!DOCTYPE html>\n<html><head><title>Log in</title></head><body><p>Please log in.</p></body></html>",
	"a well-formed page": `<?xml version="1.0"?><html xmlns="http://www.w3.org/1999/xhtml"><body/></html>`,
	"text":               "ok",
	"an error":           "<Error><Code>AccessDenied</Code></Error>",
	"JSON":               `{"status": "ok"}`,
}

// serveLists returns the store at a server that answers lists by list, and the number of
// these requests. It has no objects.
func (l *lister) serveLists(t *testing.T, list func(w http.ResponseWriter, r *http.Request)) (*remote.Store, *atomic.Int64) {
	t.Helper()
	n := new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.isList(r) {
			http.NotFound(w, r)
			return
		}
		n.Add(1)
		list(w, r)
	}))
	t.Cleanup(server.Close)
	s := must.Get(l.open(t, server.URL, &remote.Options{Policy: remote.Policy{Attempts: 2, Pause: time.Millisecond}}))(t)
	return s, n
}

// listings are all operations that list.
func listings(ctx context.Context, s *remote.Store) map[string]error {
	out := map[string]error{}
	for _, err := range s.List(ctx, "") {
		out["List"] = err
	}
	_, out["Folders"] = s.Folders(ctx, "")
	_, out["Temps"] = s.Temps(ctx, "")
	_, out["SweepTemp"] = s.SweepTemp(ctx, "", time.Hour)
	return out
}

// An answer that is no list is an error: a run with an unreadable list is not empty.
func TestAnswersThatAreNoLists(t *testing.T) {
	current := map[string]blob.Store{}
	blob.Register("listed", func(_ context.Context, address string) (blob.Store, error) {
		return current[strings.TrimPrefix(address, "listed://")], nil
	})
	for service, l := range listers {
		answers := map[string]string{}
		for _, all := range []map[string]string{noLists, l.odd} {
			for what, body := range all {
				answers[what] = body
			}
		}
		for what, body := range answers {
			t.Run(service+"/"+what, func(t *testing.T) {
				s, _ := l.serveLists(t, func(w http.ResponseWriter, r *http.Request) {
					// A list of another kind is an answer that is no list, too, or else a good one.
					if strings.HasPrefix(body, "<ListMultipart") != r.URL.Query().Has("uploads") && strings.HasPrefix(body, "<List") {
						fmt.Fprint(w, l.page(r, ""))
						return
					}
					fmt.Fprint(w, body)
				})
				failed := 0
				for op, err := range listings(t.Context(), s) {
					if err != nil {
						failed++
						if _, ok := errors.AsType[*remote.Error](err); !ok {
							t.Errorf("%s = %v; want a *remote.Error", op, err)
						}
					}
				}
				if want := map[bool]int{true: 2, false: 4}[strings.HasPrefix(body, "<List")]; failed != want {
					t.Errorf("%d operations have failed; want %d", failed, want)
				}
				if strings.HasPrefix(body, "<ListMultipart") {
					return
				}
				current[t.Name()] = s
				if found, err := cairn.Latest(t.Context(), "listed://"+t.Name(), nil); err == nil || errors.Is(err, cairn.ErrNotFound) {
					t.Errorf("Latest = %v, %v; want an error that is not ErrNotFound", found, err)
				}
				if done, err := transfer.Sync(t.Context(), s, new(mem.Store), nil); err == nil {
					t.Errorf("Sync = %v; want an error", done)
				}
			})
		}
	}
}

// A token that repeats ends a list with an error, soon.
func TestTokensThatRepeat(t *testing.T) {
	for service, l := range listers {
		for period := range int64(6) {
			empty := period == 0 // the SDK of Google goes on by itself
			period = max(period, 1)
			t.Run(fmt.Sprintf("%s/%d, empty pages: %v", service, period, empty), func(t *testing.T) {
				var i atomic.Int64
				s, n := l.serveLists(t, func(w http.ResponseWriter, r *http.Request) {
					page := l.page(r, fmt.Sprint("token", i.Add(1)%period))
					if empty {
						page = strings.NewReplacer(`{"kind": "storage#object", "name": "`+listedName+`", "size": "3"}`, "", `"run/step-1/"`, "").Replace(page)
					}
					fmt.Fprint(w, page)
				})
				for op, err := range listings(t.Context(), s) {
					if err == nil || !strings.Contains(err.Error(), "has no end") {
						t.Errorf("%s = %v; want an error about the token", op, err)
					}
				}
				if got := n.Load(); got > 4*(2+3*period) {
					t.Errorf("there were %d requests", got)
				}
			})
		}
	}
}

// Pages that follow each other are one list, and a service may answer with an empty page.
func TestListsOfSeveralPages(t *testing.T) {
	for service, l := range listers {
		t.Run(service, func(t *testing.T) {
			pages := 0
			s, _ := l.serveLists(t, func(w http.ResponseWriter, r *http.Request) {
				next := ""
				if pages++; pages%40 != 0 {
					next = fmt.Sprint("token", pages)
				}
				fmt.Fprint(w, l.page(r, next))
			})
			n := 0
			for info, err := range s.List(t.Context(), "") {
				if err != nil || info.Name != strings.TrimPrefix(listedName, "run/") {
					t.Fatalf("List yields %+v, %v", info, err)
				}
				n++
			}
			if n != 40 {
				t.Errorf("List yields %d objects of 40 pages", n)
			}
		})
	}
}
