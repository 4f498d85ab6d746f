// Package conformance runs real object storage servers on this machine, for tests and for
// trying things out: versitygw for S3, fake-gcs-server for Google Cloud Storage and
// Azurite for Azure. Its tests run the contract of blob.Store, faults and crashes against
// them.
package conformance

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

// Credentials of the S3 server. It listens on loopback only. The reader may read the bucket
// and not change it.
const (
	AccessKey       = "conformance"
	SecretKey       = "conformance-secret"
	ReaderAccessKey = "reader"
	ReaderSecretKey = "reader-secret"
)

const readerPolicy = `{"Statement": [{"Effect": "Allow", "Principal": {"AWS": ["reader"]},
	"Action": ["s3:GetObject", "s3:ListBucket"], "Resource": ["arn:aws:s3:::bucket", "arn:aws:s3:::bucket/*"]}]}`

// ServeS3 runs an S3 server with an empty bucket in dir until ctx ends. A process can run
// one such server. ready is called with the endpoint and the name of the bucket.
func ServeS3(ctx context.Context, dir string, ready func(endpoint, bucket string)) error {
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
			IAMService: users, RootUserAccess: AccessKey, RootUserSecret: SecretKey, Ports: []string{address}, Region: "us-east-1",
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
	users, err := auth.NewInternal(auth.Account{Access: AccessKey, Secret: SecretKey, Role: auth.RoleAdmin}, dir)
	if err != nil {
		return nil, err
	}
	return users, users.CreateAccount(auth.Account{Access: ReaderAccessKey, Secret: ReaderSecretKey, Role: auth.RoleUser})
}

// freeAddress returns an address of the loopback on which nothing listens.
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
