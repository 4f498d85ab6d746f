// Package gcs keeps objects in Google Cloud Storage. Importing it makes blob.OpenAddress
// open addresses such as
//
//	gs://bucket/prefix
//
// Credentials are found as Google's libraries find them: the file that
// GOOGLE_APPLICATION_CREDENTIALS names, the file of gcloud auth application-default login, or
// the service account of the machine. If STORAGE_EMULATOR_HOST is set, requests go to that
// server, without credentials.
//
// An object of several parts is sent as temporary objects in the same folder, with names that
// begin with blob.Reserved. The service composes the object from them. Then they are removed.
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

// emulatorEnv names the variable with the address of an emulator. Google's libraries read it
// too.
const emulatorEnv = "STORAGE_EMULATOR_HOST"

// Open returns the store at an address. It makes no request to the bucket. Nil options
// mean the defaults.
func Open(ctx context.Context, address string, o *remote.Options) (*remote.Store, error) {
	a, err := remote.ParseAddress(address, "gs", "GOOGLE_APPLICATION_CREDENTIALS")
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", blob.ErrAddress, blob.Redact(address), err)
	}

	c, err := newClient(ctx)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", blob.Redact(address), err)
	}

	emulator := os.Getenv(emulatorEnv)
	v := &service{client: c, bucket: a.Bucket, emulator: emulator, conditional: emulator == ""}
	return remote.New(v, a.Prefix, blob.Redact(address), o)
}

var (
	clientsMu sync.Mutex
	clients   = map[string]*client{} // guarded by clientsMu
)

// newClient returns a client. Stores with the same credentials share one, and its
// connections.
func newClient(ctx context.Context) (*client, error) {
	emulator := os.Getenv(emulatorEnv)
	key := strings.Join([]string{emulator, os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")}, "\x00")
	clientsMu.Lock()
	defer clientsMu.Unlock()

	if c := clients[key]; c != nil {
		return c, nil
	}

	c := &client{http: &http.Client{Transport: remote.NewTransport()}, base: strings.TrimSuffix(emulator, "/")}
	switch {
	case emulator == "":
		c.base = "https://storage.googleapis.com"
		transport, err := authorized(context.WithoutCancel(ctx), c.http.Transport)
		if err != nil {
			return nil, &remote.Error{Err: err, Hint: hintCredentials}
		}
		c.http.Transport = transport
	case !strings.Contains(emulator, "://"):
		c.base = "http://" + c.base
	}

	clients[key] = c
	return c, nil
}
