package conformance

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

const (
	// azurite is the npm package of the server of Azure Blob Storage.
	azurite = "azurite@3.35.0"
	// installTime bounds how long its installation may take.
	installTime = 2 * time.Minute
	// startTime bounds how long it may take to listen.
	startTime = time.Minute
	// azureAccount is the account of the server. It listens on loopback only.
	azureAccount = "conformance"
)

// ErrNoServer reports that a server cannot be had on this machine.
var ErrNoServer = errors.New("there is no server")

// azuriteScript runs Azurite until its standard input ends.
const azuriteScript = `process.stdin.on("close", () => process.exit(0)).resume(); process.argv.splice(1, 0, "azurite"); require(process.env.AZURITE_MAIN)`

// ServeAzure runs a server of Azure Blob Storage until stop is called: Azurite, which
// needs node. If it is not in the cache folder of the user, npm installs it there. The
// error wraps ErrNoServer if node or npm are missing, or if npm cannot install it soon.
// connection is the value of AZURE_STORAGE_CONNECTION_STRING for its clients.
func ServeAzure(ctx context.Context) (connection, bucket string, stop func(), err error) {
	main, err := installAzurite(ctx)
	if err != nil {
		return "", "", nil, fmt.Errorf("%w: %w", ErrNoServer, err)
	}
	key := base64.StdEncoding.EncodeToString([]byte(SecretKey))
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
		server.Process.Kill() // it has nothing to lose
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
