// Package gcs keeps objects in Google Cloud Storage. Importing it makes blob.OpenAddress
// open addresses such as
//
//	gs://bucket/prefix
//
// Credentials are found as the SDK of Google finds them: the file that
// GOOGLE_APPLICATION_CREDENTIALS names, that of gcloud auth application-default login, or
// the service account of the machine. If STORAGE_EMULATOR_HOST is set, requests go to that
// server, without credentials.
//
// An object of several parts is sent as temporary objects in the same folder, whose names
// begin with blob.Reserved. The service composes the object of them, and they are removed.
//
// The package is a driver for blob/remote, which does everything but the requests.
package gcs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	"cloud.google.com/go/storage"
	"google.golang.org/api/option"
	htransport "google.golang.org/api/transport/http"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/blob/remote"
)

func init() {
	blob.Register("gs", func(ctx context.Context, address string) (blob.Store, error) {
		s, err := Open(ctx, address, &remote.Options{Logger: blob.Logger(ctx)})
		if err != nil {
			return nil, err
		}
		return cache.FromEnv(ctx, s)
	})
}

// emulatorEnv names the variable with the address of an emulator. The SDK reads it too.
const emulatorEnv = "STORAGE_EMULATOR_HOST"

// Open returns the store at an address. It makes no request to the bucket. Nil options
// mean the defaults.
func Open(ctx context.Context, address string, o *remote.Options) (*remote.Store, error) {
	a, err := remote.ParseAddress(address, "gs", "GOOGLE_APPLICATION_CREDENTIALS")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", blob.ErrAddress, blob.Redact(address), err)
	}
	c, err := client(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", blob.Redact(address), err)
	}
	emulator := os.Getenv(emulatorEnv)
	v := &service{client: c, bucket: a.Bucket, emulator: emulator, conditional: emulator == ""}
	return remote.New(v, a.Prefix, blob.Redact(address), o)
}

var (
	clientsMu sync.Mutex
	clients   = map[string]*storage.Client{} // guarded by clientsMu
)

// client returns a client. Stores with the same credentials share one, and its
// connections.
func client(ctx context.Context) (*storage.Client, error) {
	emulator := os.Getenv(emulatorEnv)
	key := strings.Join([]string{emulator, os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")}, "\x00")
	clientsMu.Lock()
	defer clientsMu.Unlock()
	if c := clients[key]; c != nil {
		return c, nil
	}
	var transport http.RoundTripper = &once{base: remote.NewTransport()}
	if emulator == "" {
		authorized, err := htransport.NewTransport(ctx, transport, option.WithScopes(storage.ScopeReadWrite))
		if err != nil {
			return nil, &remote.Error{Err: err, Hint: hintCredentials}
		}
		transport = &authorizer{base: authorized}
	}
	c, err := storage.NewClient(ctx, option.WithHTTPClient(&http.Client{Transport: transport}))
	if err != nil {
		return nil, err
	}
	c.SetRetry(storage.WithPolicy(storage.RetryNever)) // package remote repeats requests
	clients[key] = c
	return c, nil
}
