package conformance

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/azure"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/must"
)

const azureEnv = "AZURE_STORAGE_CONNECTION_STRING"

// startAzure runs a server for a test and returns its container.
func startAzure(t *testing.T) string {
	t.Helper()
	connection, bucket, stop, err := serveAzure(t.Context())
	if errors.Is(err, errNoServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	t.Setenv(azureEnv, connection)
	return bucket
}

// openAzure returns a folder for one test.
func openAzure(t *testing.T, bucket string) *remote.Store {
	t.Helper()
	s := must.Get(azure.Open(t.Context(), fmt.Sprintf("azblob://%s/%d/x", bucket, folders.Add(1)), nil))(t)
	return s
}

// Azurite keeps the whole contract. It does not check the CRC-64 of requests.
func TestAzure(t *testing.T) {
	bucket := startAzure(t)
	t.Run("Contract", func(t *testing.T) {
		blobtest.Run(t, func(t *testing.T) blob.Store { return openAzure(t, bucket) })
	})
	const piece = 1 << 20
	open := func(t *testing.T) (*remote.Store, string) { return openAzure(t, bucket), bucket }
	testService(t, open, piece, func(parts int) int { return parts + 1 })
	t.Run("OneWriterOfPartsWins", func(t *testing.T) {
		testOneWriterWins(t, openAzure(t, bucket), 10, piece, blob.CreateOptions{Piece: piece})
	})
	t.Run("RemoveVersion", func(t *testing.T) { testRemoveVersion(t, openAzure(t, bucket)) })
	t.Run("RemoveCheckpoint", func(t *testing.T) { testRemoveCheckpoint(t, openAzure(t, bucket)) })
	t.Run("CopyWhileCleaning", func(t *testing.T) {
		testSweptCopies(t, openAzure(t, bucket), func() *remote.Store { return openAzure(t, bucket) })
	})
	t.Run("MissingContainer", func(t *testing.T) {
		_, err := blob.WriteAll(t.Context(), openAzure(t, "another"), "x", nil, nil)
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "create it") {
			t.Errorf("WriteAll to a container that does not exist = %v; want fs.ErrNotExist and a hint", err)
		}
	})
	t.Run("WrongKey", func(t *testing.T) {
		wrong := base64.StdEncoding.EncodeToString([]byte("wrong-secret"))
		t.Setenv(azureEnv, regexp.MustCompile("AccountKey=[^;]*").ReplaceAllString(os.Getenv(azureEnv), "AccountKey="+wrong))
		_, err := openAzure(t, bucket).Stat(t.Context(), "x")
		wantRefused(t, err, wrong)
	})
	t.Run("ReadOnlyToken", func(t *testing.T) {
		c, err := container.NewClientFromConnectionString(os.Getenv(azureEnv), bucket, nil)
		if err != nil {
			t.Fatal(err)
		}
		address, err := c.GetSASURL(sas.ContainerPermissions{Read: true, List: true}, time.Now().Add(time.Hour), nil)
		if err != nil {
			t.Fatal(err)
		}
		endpoint, token, _ := strings.Cut(address, "?")
		t.Setenv(azureEnv, fmt.Sprintf("BlobEndpoint=%s;SharedAccessSignature=%s", strings.TrimSuffix(endpoint, "/"+bucket), token))
		s := openAzure(t, bucket)
		if _, err := s.Stat(t.Context(), "x"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Stat = %v; want fs.ErrNotExist", err)
		}
		_, err = blob.WriteAll(t.Context(), s, "x", []byte("x"), nil)
		wantRefused(t, err, token)
	})
}

// wantRefused reports an error that is not one of permissions with a hint, or that
// contains a secret.
func wantRefused(t *testing.T, err error, secret string) {
	t.Helper()
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || !errors.Is(err, fs.ErrPermission) || e.Hint == "" || strings.Contains(err.Error(), secret) {
		t.Errorf("the error is %v; want fs.ErrPermission with a hint and without the secret", err)
	}
}
