// Package azure keeps objects in Azure Blob Storage, as block blobs. Importing it makes
// blob.OpenAddress open addresses such as
//
//	azblob://container/prefix
//	azblob://container/prefix?account=name
//
// The environment names the account and the credentials: either
// AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT (or the option account) with
// AZURE_STORAGE_KEY, with AZURE_STORAGE_SAS_TOKEN, or with the credentials that the default
// chain of Azure finds: a service principal in the environment, a workload identity, a
// managed identity, or the login of the az command.
//
// The parts of an object are blocks that are not committed yet. The service removes them
// after a week. If two writers send the same object in parts and one of them commits it, the
// blocks of the other are gone, so its Commit fails.
//
// The package is a driver for blob/remote, which does everything but the requests.
package azure

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/blob/remote"
)

func init() {
	blob.Register("azblob", func(ctx context.Context, address string) (blob.Store, error) {
		s, err := Open(ctx, address, &remote.Options{Logger: blob.Logger(ctx)})
		if err != nil {
			return nil, err
		}
		return cache.FromEnv(ctx, s)
	})
}

// The variables of the environment.
const (
	connectionEnv = "AZURE_STORAGE_CONNECTION_STRING"
	accountEnv    = "AZURE_STORAGE_ACCOUNT"
	keyEnv        = "AZURE_STORAGE_KEY"
	sasEnv        = "AZURE_STORAGE_SAS_TOKEN"
)

// Open returns the store at an address. It makes no request to the container. Nil options
// mean the defaults.
func Open(ctx context.Context, address string, o *remote.Options) (*remote.Store, error) {
	a, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", blob.ErrAddress, blob.Redact(address), err)
	}
	v, err := connect(a.Bucket, a.Options["account"])
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", blob.Redact(address), err)
	}
	return remote.New(v, a.Prefix, blob.Redact(address), o)
}

// letters are the characters of the name of an account.
const letters = "abcdefghijklmnopqrstuvwxyz0123456789"

func parse(text string) (*remote.Address, error) {
	a, err := remote.ParseAddress(text, "azblob", connectionEnv, "account")
	if err == nil && strings.Trim(a.Options["account"], letters) != "" {
		err = errors.New("the name of an account has small letters and digits only")
	}
	return a, err
}

// connect returns a container. If account is empty, the environment names the account.
func connect(name, account string) (*service, error) {
	opts := &container.ClientOptions{ClientOptions: policy.ClientOptions{
		Retry:     policy.RetryOptions{MaxRetries: -1}, // package remote repeats requests
		Transport: &http.Client{Transport: transport()},
	}}

	v := &service{name: name}
	var err error
	if connection := os.Getenv(connectionEnv); connection != "" && account == "" {
		v.client, err = container.NewClientFromConnectionString(connection, name, opts)
		if err != nil {
			err = fmt.Errorf("%s is not a connection string", connectionEnv) // its own error may repeat the secret
		}
		return v, err
	}

	if account == "" {
		account = os.Getenv(accountEnv)
	}
	if account == "" {
		return nil, fmt.Errorf("the storage account is not known: set %s or %s, or add ?account=… to the address", connectionEnv, accountEnv)
	}

	address := (&url.URL{Scheme: "https", Host: account + ".blob.core.windows.net", Path: "/" + name}).String()
	switch key, sas := os.Getenv(keyEnv), os.Getenv(sasEnv); {
	case key != "":
		var shared *container.SharedKeyCredential
		if shared, err = container.NewSharedKeyCredential(account, key); err != nil {
			return nil, fmt.Errorf("%s is not the key of an account", keyEnv)
		}
		v.client, err = container.NewClientWithSharedKeyCredential(address, shared, opts)
	case sas != "":
		v.client, err = container.NewClientWithNoCredential(address+"?"+strings.TrimPrefix(sas, "?"), opts)
	default:
		if v.token, err = defaultCredential(); err == nil {
			v.client, err = container.NewClient(address, v.token, opts)
		}
	}
	if err != nil {
		return nil, explain(err)
	}
	return v, nil
}

// defaultCredential returns the credential of the default chain. The credential keeps tokens,
// so all stores share it.
var defaultCredential = sync.OnceValues(func() (azcore.TokenCredential, error) { return azidentity.NewDefaultAzureCredential(nil) })

// transport returns the connections that all stores share.
var transport = sync.OnceValue(remote.NewTransport)
