package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/gcs"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// startGCS runs a server for a test and returns its bucket.
func startGCS(t *testing.T) string {
	t.Helper()
	dir := ""
	if strings.HasSuffix(t.Name(), "/ListManyAndBreakEarly") {
		dir = t.TempDir() // in memory, thousands of objects take minutes
	}
	host, bucket, stop, err := serveGCS(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	t.Setenv("STORAGE_EMULATOR_HOST", host)
	return bucket
}

// openGCS returns a folder for one test.
func openGCS(t *testing.T, bucket string) *remote.Store {
	t.Helper()
	s := must.Get(gcs.Open(t.Context(), fmt.Sprintf("gs://%s/%d/x", bucket, folders.Add(1)), nil))(t)
	return s
}

func TestGCS(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store { return openGCS(t, startGCS(t)) })
}

func TestServiceGCS(t *testing.T) {
	open := func(t *testing.T) (*remote.Store, string) {
		bucket := startGCS(t)
		return openGCS(t, bucket), bucket
	}
	testService(t, open, 1<<20, func(parts int) int {
		temporary := parts
		if parts > 32 {
			temporary += (parts + 31) / 32
		}
		return 2*temporary + 1 // to make and to remove them, and to compose the object
	})
	t.Run("WrongSum", func(t *testing.T) { testWrongSum(t, openGCS(t, startGCS(t))) })
	t.Run("RemoveVersion", func(t *testing.T) { testRemoveVersion(t, openGCS(t, startGCS(t))) })
	t.Run("OneWriterOfPartsWins", func(t *testing.T) {
		testOneWriterWins(t, openGCS(t, startGCS(t)), 10, 1<<20, blob.CreateOptions{Piece: 1 << 20})
	})
	t.Run("RemoveCheckpoint", func(t *testing.T) { testRemoveCheckpoint(t, openGCS(t, startGCS(t))) })
	t.Run("MissingBucket", testMissingBucket)
}

// fake-gcs-server ignores the checksum when it composes an object of its parts. So only the
// requests are tested.
func TestGCSComposesWithCondition(t *testing.T) {
	bucket := startGCS(t)
	target := must.Get(url.Parse(os.Getenv("STORAGE_EMULATOR_HOST")))(t)
	var mu sync.Mutex
	seen := map[string]int{} // composed objects; guarded by mu
	proxy := httputil.NewSingleHostReverseProxy(target)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/compose") {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			mu.Lock()
			seen[fmt.Sprintf("reserved: %v, ifGenerationMatch: %s, checksum: %v", strings.Contains(r.URL.Path, blob.Reserved),
				r.URL.Query().Get("ifGenerationMatch"), bytes.Contains(body, []byte("crc32c")))]++
			mu.Unlock()
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	t.Setenv("STORAGE_EMULATOR_HOST", front.URL)
	s := openGCS(t, bucket)
	const piece = 1 << 20
	if _, err := blob.WriteAll(t.Context(), s, "x", noise(33*piece), &blob.CreateOptions{Piece: piece, IfAbsent: true}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	want := map[string]int{"reserved: true, ifGenerationMatch: , checksum: false": 2, "reserved: false, ifGenerationMatch: 0, checksum: true": 1}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("requests to compose, -want +got:\n%s", diff)
	}
}

func testMissingBucket(t *testing.T) {
	startGCS(t)
	s := openGCS(t, "another")
	for _, err := range s.List(t.Context(), "") {
		if err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "create it") {
			t.Errorf("List of a bucket that does not exist = %v; want a hint, and not fs.ErrNotExist: it is no empty place", err)
		}
		return
	}
	t.Error("List of a bucket that does not exist yields nothing; want an error")
}
