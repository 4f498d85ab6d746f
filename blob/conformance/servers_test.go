package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/fsouza/fake-gcs-server/fakestorage"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

// Credentials of the S3 server. It listens on loopback only. The reader may read the bucket
// and not change it.
const (
	accessKey       = "conformance"
	secretKey       = "conformance-secret"
	readerAccessKey = "reader"
	readerSecretKey = "reader-secret"
)

const readerPolicy = `{"Statement": [{"Effect": "Allow", "Principal": {"AWS": ["reader"]},
	"Action": ["s3:GetObject", "s3:ListBucket"], "Resource": ["arn:aws:s3:::bucket", "arn:aws:s3:::bucket/*"]}]}`

// serveS3 runs an S3 server with an empty bucket in dir until ctx ends. A process can run
// one such server. ready is called with the endpoint and the name of the bucket.
func serveS3(ctx context.Context, dir string, ready func(endpoint, bucket string)) error {
	const bucket = "bucket"
	if err := os.MkdirAll(filepath.Join(dir, bucket), 0o777); err != nil {
		return err
	}
	backend, err := posix.New(dir, meta.XattrMeta{}, posix.PosixOpts{CopyObjectThreshold: 5 << 30})
	if err != nil {
		return err
	}
	defer backend.Shutdown()
	users, err := accounts(filepath.Join(dir, ".users"))
	if err != nil {
		return err
	}
	if err := backend.PutBucketPolicy(ctx, bucket, []byte(readerPolicy)); err != nil {
		return err
	}
	address, err := freeAddress()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		done <- embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
			IAMService: users, RootUserAccess: accessKey, RootUserSecret: secretKey, Ports: []string{address}, Region: "us-east-1",
			MaxConnections: 4096, MaxRequests: 2048, MultipartMaxParts: 10_000, KeepAlive: true, Quiet: true,
		})
	}()
	if err := waitFor(ctx, address, done); err != nil {
		return err
	}
	ready("http://"+address, bucket)
	return <-done
}

// accounts returns the accounts of the server.
func accounts(dir string) (auth.IAMService, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	users, err := auth.NewInternal(auth.Account{Access: accessKey, Secret: secretKey, Role: auth.RoleAdmin}, dir)
	if err != nil {
		return nil, err
	}
	return users, users.CreateAccount(auth.Account{Access: readerAccessKey, Secret: readerSecretKey, Role: auth.RoleUser})
}

// freeAddress returns an address of the loopback without a listener.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// waitFor waits until a server listens.
func waitFor(ctx context.Context, address string, ended <-chan error) error {
	for {
		if c, err := net.Dial("tcp", address); err == nil {
			return c.Close()
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the server has ended: %v", err)
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
	}
}

// serveGCS runs a server of Google Cloud Storage in this process until stop is called. It
// listens on loopback and has an empty bucket. host is the value of STORAGE_EMULATOR_HOST
// for its clients. The objects are in memory, or in dir if it is not empty: that is
// faster for many objects, but "a" and "a/b" cannot both exist.
func serveGCS(dir string) (host, bucket string, stop func(), err error) {
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true, PublicHost: "127.0.0.1", StorageRoot: dir})
	if err != nil {
		return "", "", nil, err
	}
	bucket = "bucket"
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: bucket})
	front := httptest.NewServer(keepConditions(server.HTTPHandler()))
	return front.URL, bucket, func() { front.Close(); server.Stop() }, nil
}

// keepConditions refuses compositions, copies and removals if the object does not have the
// generation that the request wants: fake-gcs-server ignores the condition.
func keepConditions(server http.Handler) http.Handler {
	var mu sync.Mutex // held by a request that writes, so that the object does not change after the check
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			server.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		mu.Lock()
		defer mu.Unlock()
		want := r.URL.Query().Get("ifGenerationMatch")
		if want != "" && !strings.HasPrefix(r.URL.Path, "/upload/") && generation(server, r) != want {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		server.ServeHTTP(w, r)
	})
}

// generation returns the generation of the object that a request writes or removes, or "0".
func generation(server http.Handler, r *http.Request) string {
	path := strings.TrimSuffix(r.URL.EscapedPath(), "/compose")
	if _, to, ok := strings.Cut(path, "/rewriteTo/"); ok {
		path = "/storage/v1/" + to
	}
	answer := httptest.NewRecorder()
	ask := httptest.NewRequest(http.MethodGet, path, nil)
	ask.Host = r.Host
	server.ServeHTTP(answer, ask)
	var object struct{ Generation string }
	if answer.Code != http.StatusOK || json.Unmarshal(answer.Body.Bytes(), &object) != nil {
		return "0"
	}
	return object.Generation
}

const (
	// azurite is the npm package of the server of Azure Blob Storage.
	azurite = "azurite@3.35.0"
	// installTime bounds how long its installation may take.
	installTime = 10 * time.Minute
	// startTime bounds how long it may take to listen.
	startTime = time.Minute
	// azureAccount is the account of the server. It listens on loopback only.
	azureAccount = "conformance"
)

// errNoServer reports that a server cannot be had on this machine.
var errNoServer = errors.New("there is no server")

// azuriteScript runs Azurite until its standard input ends.
const azuriteScript = `process.stdin.on("close", () => process.exit(0)).resume(); process.argv.splice(1, 0, "azurite"); require(process.env.AZURITE_MAIN)`

// serveAzure runs a server of Azure Blob Storage until stop is called: Azurite, which
// needs node. If it is not in the cache folder of the user, npm installs it there. The
// error wraps errNoServer if node or npm are missing, or if npm cannot install it soon.
// connection is the value of AZURE_STORAGE_CONNECTION_STRING for its clients.
func serveAzure(ctx context.Context) (connection, bucket string, stop func(), err error) {
	main, err := installAzurite(ctx)
	if err != nil {
		return "", "", nil, fmt.Errorf("%w: %w", errNoServer, err)
	}
	key := base64.StdEncoding.EncodeToString([]byte(secretKey))
	server := exec.Command("node", "-e", azuriteScript, "--", "--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent", "--loose",
		"--skipApiVersionCheck", "--disableTelemetry")
	server.Env = append(os.Environ(), "AZURITE_MAIN="+main, "AZURITE_ACCOUNTS="+azureAccount+":"+key)
	server.Stderr = os.Stderr
	in, err1 := server.StdinPipe()
	out, err2 := server.StdoutPipe()
	if err := errors.Join(err1, err2, server.Start()); err != nil {
		return "", "", nil, err
	}
	stop = func() {
		in.Close()
		server.Process.Kill() // it has no data to keep
		server.Wait()
	}
	impatient := time.AfterFunc(startTime, func() { server.Process.Kill() })
	defer impatient.Stop()
	endpoint := ""
	lines := bufio.NewScanner(out)
	for endpoint == "" && lines.Scan() {
		_, endpoint, _ = strings.Cut(lines.Text(), "successfully listens on ")
	}
	if endpoint == "" {
		stop()
		return "", "", nil, errors.New("azurite has ended, or does not listen")
	}
	go func() {
		for lines.Scan() {
		}
	}()
	connection = fmt.Sprintf("DefaultEndpointsProtocol=http;AccountName=%s;AccountKey=%s;BlobEndpoint=%s/%s;", azureAccount, key, endpoint, azureAccount)
	c, err := container.NewClientFromConnectionString(connection, "bucket", nil)
	if err == nil {
		_, err = c.Create(ctx, nil)
	}
	if err != nil {
		stop()
		return "", "", nil, err
	}
	return connection, "bucket", stop, nil
}

// installAzurite returns the main file of Azurite.
func installAzurite(ctx context.Context) (string, error) {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", err
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "cairn", azurite)
	main := filepath.Join(dir, "node_modules", "azurite", "dist", "src", "blob", "main.js")
	if _, err := os.Stat(main); err == nil {
		return main, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "install-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", temp, azurite)
	install.WaitDelay = time.Second
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install %s: %w: %.300s", azurite, err, out)
	}
	if err := os.Rename(temp, dir); err != nil {
		if _, statErr := os.Stat(main); statErr != nil { // another process may have installed it
			return "", err
		}
	}
	return main, nil
}
