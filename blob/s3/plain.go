package s3

import (
	"bytes"
	"context"
	"io"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/cairn-ckpt/cairn/blob/remote"
)

var _ remote.Plain = (*service)(nil)

// plainClient returns a client with the defaults of the SDK.
func (v *service) plainClient(ctx context.Context) (*s3.Client, error) {
	v.plainMu.Lock()
	defer v.plainMu.Unlock()
	if v.plain == nil {
		c, err := v.address.newClient(ctx, config.WithLogger(logging.Nop{}))
		if err != nil {
			return nil, err
		}
		v.plain = c
	}
	return v.plain, nil
}

// PlainPut implements [remote.Plain].
func (v *service) PlainPut(ctx context.Context, key string, body []byte) error {
	c, err := v.plainClient(ctx)
	if err != nil {
		return err
	}
	_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: &v.bucket, Key: &key, Body: bytes.NewReader(body)})
	return explain(err)
}

// PlainGet implements [remote.Plain].
func (v *service) PlainGet(ctx context.Context, key string, p []byte) error {
	return v.plainGet(ctx, &s3.GetObjectInput{Bucket: &v.bucket, Key: &key}, p)
}

// PlainRange implements [remote.Plain].
func (v *service) PlainRange(ctx context.Context, key string, p []byte, off int64) error {
	return v.plainGet(ctx, &s3.GetObjectInput{Bucket: &v.bucket, Key: &key, Range: byteRange(off, len(p))}, p)
}

func (v *service) plainGet(ctx context.Context, in *s3.GetObjectInput, p []byte) error {
	c, err := v.plainClient(ctx)
	if err != nil {
		return err
	}
	out, err := c.GetObject(ctx, in)
	if err != nil {
		return explain(err)
	}
	defer out.Body.Close()
	_, err = io.ReadFull(out.Body, p)
	return explain(err)
}
