package s3

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/work"
)

const (
	// writerKey is the metadata with Condition.Writer.
	writerKey = "cairn-writer"
	// listKind is the root of a list of objects.
	listKind = "ListBucketResult"
	// maxParts bounds the parts of an object.
	maxParts = 10_000
)

// service is a bucket.
type service struct {
	client    *client
	address   *address
	bucket    string
	amazon    bool // not another service with the same interface
	copyBytes int64

	plainMu sync.Mutex
	plain   *s3.Client // guarded by plainMu; see plainClient
}

var (
	_ remote.Service       = (*service)(nil)
	_ remote.FolderService = (*service)(nil)
	_ remote.UploadSizer   = (*service)(nil)
)

func (v *service) Limits() remote.Limits {
	return remote.Limits{MinPart: 5 << 20, MaxPart: 5 << 30, Parts: maxParts, Removes: 1000, Conditional: v.amazon, Probe: &v.client.probe}
}

func (v *service) Close() error { return nil }

// Host returns the endpoint, which is empty for Amazon: the names of its buckets are unique.
func (v *service) Host() string { return v.address.endpoint }

// unsigned leaves the hash of the body out of the signature. The service checks the
// CRC-32C of the body instead, which takes a tenth of the time.
func unsigned(o *s3.Options) {
	o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
}

func (v *service) Head(ctx context.Context, key string) (remote.Object, error) {
	out, err := v.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &v.bucket, Key: &key})
	if err != nil {
		return remote.Object{}, v.reason(ctx, key, err)
	}
	return remote.Object{
		Key: key, Size: aws.ToInt64(out.ContentLength), ModTime: aws.ToTime(out.LastModified), Version: aws.ToString(out.ETag),
		Writer: out.Metadata[writerKey],
	}, nil
}

// reason returns the error of a request for the head of an object. The answer has no body, so
// it does not explain wrong credentials or a wrong address: the answer to a request for the
// object does.
func (v *service) reason(ctx context.Context, key string, err error) error {
	if status := statusOf(err); status != http.StatusBadRequest && status != http.StatusForbidden {
		return explain(err)
	}
	out, again := v.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &v.bucket, Key: &key, Range: aws.String("bytes=0-0")})
	if again == nil {
		out.Body.Close()
		return explain(err)
	}
	return explain(again)
}

func (v *service) Get(ctx context.Context, key, version string, p []byte, off int64) (int, remote.Object, error) {
	in := &s3.GetObjectInput{Bucket: &v.bucket, Key: &key, Range: byteRange(off, len(p))}
	if version != "" {
		in.IfMatch = &version
	}
	remote.Progress(ctx) // an answer that does not come has stalled, too
	out, err := v.client.GetObject(ctx, in)
	if err != nil {
		if err = explain(err); !errors.Is(err, errBeyond) {
			return 0, remote.Object{}, err
		}
		o, err := v.Head(ctx, key)
		return 0, o, err
	}
	defer out.Body.Close()

	o := remote.Object{Key: key, ModTime: aws.ToTime(out.LastModified), Version: aws.ToString(out.ETag), Writer: out.Metadata[writerKey]}
	var ok bool
	if o.Size, ok = sizeOf(aws.ToString(out.ContentRange), off); !ok {
		err := fmt.Errorf("the answer is for the range %q, not for %s", aws.ToString(out.ContentRange), *in.Range)
		return 0, o, &remote.Error{Err: err, Hint: hintNotS3}
	}

	p = p[:min(int64(len(p)), o.Size-off)]
	n, err := remote.ReadFull(ctx, out.Body, p)
	if err != nil {
		return n, o, explain(fmt.Errorf("the answer ended after %d of %d bytes: %w", n, len(p), err))
	}
	return n, o, nil
}

func byteRange(off int64, n int) *string {
	return aws.String(fmt.Sprintf("bytes=%d-%d", off, off+int64(n)-1))
}

// sizeOf returns the size of an object by the field Content-Range of an answer, which
// must begin at off.
func sizeOf(field string, off int64) (int64, bool) {
	rest, ok := strings.CutPrefix(field, fmt.Sprintf("bytes %d-", off))
	if !ok {
		return 0, false
	}
	_, total, ok := strings.Cut(rest, "/")
	size, err := strconv.ParseInt(total, 10, 64)
	return size, ok && err == nil && size >= off
}

func (v *service) Put(ctx context.Context, key string, body []byte, sum uint32, c remote.Condition) (remote.Object, error) {
	absent, match := conditions(c)
	out, err := v.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &v.bucket, Key: &key, Body: remote.NewBody(ctx, body), ContentLength: aws.Int64(int64(len(body))), ChecksumCRC32C: encoded(sum),
		IfNoneMatch: absent, IfMatch: match, Metadata: map[string]string{writerKey: c.Writer},
	}, unsigned)
	if err != nil {
		return remote.Object{}, explain(err)
	}

	if err := checkStored(out.ChecksumCRC32C, sum); err != nil {
		return remote.Object{}, err
	}
	return remote.Object{Key: key, Size: int64(len(body)), ModTime: time.Now(), Version: aws.ToString(out.ETag), Writer: c.Writer}, nil
}

func conditions(c remote.Condition) (absent, match *string) {
	if c.IfAbsent {
		absent = aws.String("*")
	}
	if c.IfVersion != "" {
		match = aws.String(c.IfVersion)
	}
	return absent, match
}

// encoded returns a checksum as the service wants it.
func encoded(sum uint32) *string {
	return aws.String(base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum)))
}

// checkStored compares the checksum that the service has computed, if it says so, with
// the checksum of the bytes.
func checkStored(got *string, sum uint32) error {
	if want := encoded(sum); got != nil && *got != *want {
		return &remote.Error{Err: fmt.Errorf("the service has stored bytes with the CRC-32C %q, not %q", *got, *want), Hint: hintNotS3}
	}
	return nil
}

func (v *service) Begin(ctx context.Context, key, writer string) (remote.Upload, error) {
	out, err := v.client.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{
		Bucket: &v.bucket, Key: &key, ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c, ChecksumType: types.ChecksumTypeFullObject,
		Metadata: map[string]string{writerKey: writer},
	})
	if err != nil {
		return nil, explain(err)
	}
	return &upload{v: v, key: key, id: aws.ToString(out.UploadId), parts: map[int]types.CompletedPart{}}, nil
}

// upload is a multipart upload.
type upload struct {
	v   *service
	key string
	id  string

	mu    sync.Mutex
	parts map[int]types.CompletedPart // guarded by mu
}

func (u *upload) Part(ctx context.Context, number int, body []byte, sum uint32) error {
	n := aws.Int32(int32(number + 1)) // the service counts from 1
	out, err := u.v.client.UploadPart(ctx, &s3.UploadPartInput{
		Bucket: &u.v.bucket, Key: &u.key, UploadId: &u.id, PartNumber: n, Body: remote.NewBody(ctx, body),
		ContentLength: aws.Int64(int64(len(body))), ChecksumCRC32C: encoded(sum),
	}, unsigned)
	if err != nil {
		return u.reason(ctx, err)
	}

	if err := checkStored(out.ChecksumCRC32C, sum); err != nil {
		return err
	}

	u.mu.Lock()
	defer u.mu.Unlock()
	u.parts[number] = types.CompletedPart{PartNumber: n, ETag: out.ETag, ChecksumCRC32C: encoded(sum)}
	return nil
}

// reason returns the error of a part. A service that refuses a part may close the connection
// before it has read all bytes, and then its answer is lost: reason asks it whether the upload
// exists.
func (u *upload) reason(ctx context.Context, err error) error {
	if statusOf(err) == 0 && ctx.Err() == nil {
		_, again := u.v.client.ListParts(ctx, &s3.ListPartsInput{Bucket: &u.v.bucket, Key: &u.key, UploadId: &u.id, MaxParts: aws.Int32(1)})
		if again = explain(again); errors.Is(again, fs.ErrNotExist) {
			return again
		}
	}
	return explain(err)
}

func (u *upload) Complete(ctx context.Context, n int, size int64, sum uint32, c remote.Condition) (remote.Object, error) {
	u.mu.Lock()
	parts := make([]types.CompletedPart, n)
	for i := range parts {
		parts[i] = u.parts[i]
	}
	u.mu.Unlock()

	absent, match := conditions(c)
	out, err := u.v.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
		Bucket: &u.v.bucket, Key: &u.key, UploadId: &u.id, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
		ChecksumCRC32C: encoded(sum), ChecksumType: types.ChecksumTypeFullObject, MpuObjectSize: &size, IfNoneMatch: absent, IfMatch: match,
	})
	if err != nil {
		return remote.Object{}, explain(err)
	}
	return remote.Object{Key: u.key, Size: size, ModTime: time.Now(), Version: aws.ToString(out.ETag), Writer: c.Writer}, nil
}

func (u *upload) Abort(ctx context.Context) error {
	return u.v.AbortUpload(ctx, remote.PendingUpload{Key: u.key, ID: u.id})
}

func (v *service) AbortUpload(ctx context.Context, u remote.PendingUpload) error {
	_, err := v.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &v.bucket, Key: &u.Key, UploadId: &u.ID})
	return explain(err)
}

// Uploads lists all folders below prefix, because the service has no cheaper list.
func (v *service) Uploads(ctx context.Context, prefix string, deep bool, token string) ([]remote.PendingUpload, string, error) {
	in := &s3.ListMultipartUploadsInput{Bucket: &v.bucket, Prefix: &prefix}
	if key, id, ok := strings.Cut(token, "\x00"); ok {
		in.KeyMarker, in.UploadIdMarker = &key, &id
	}

	out, err := v.client.ListMultipartUploads(remote.Expect(ctx, "ListMultipartUploadsResult"), in)
	if err != nil {
		return nil, "", explain(err)
	}

	var page []remote.PendingUpload
	for _, u := range out.Uploads {
		page = append(page, remote.PendingUpload{Key: aws.ToString(u.Key), ID: aws.ToString(u.UploadId), Begun: aws.ToTime(u.Initiated)})
	}

	next, err := tokenOf(out.IsTruncated, out.NextKeyMarker)
	if next != "" {
		next += "\x00" + aws.ToString(out.NextUploadIdMarker)
	}
	return page, next, err
}

// UploadSize implements [remote.UploadSizer]. It takes a request for each 1000 parts.
func (v *service) UploadSize(ctx context.Context, u remote.PendingUpload) (int64, error) {
	var size int64
	var seen remote.PageTokens
	in := &s3.ListPartsInput{Bucket: &v.bucket, Key: &u.Key, UploadId: &u.ID}
	for {
		out, err := v.client.ListParts(remote.Expect(ctx, "ListPartsResult"), in)
		if err != nil {
			return 0, explain(err)
		}

		for _, p := range out.Parts {
			size += aws.ToInt64(p.Size)
		}

		next, err := tokenOf(out.IsTruncated, out.NextPartNumberMarker)
		if err == nil && next != "" {
			err = seen.Next(next)
		}
		if err != nil || next == "" {
			return size, err
		}
		in.PartNumberMarker = &next
	}
}

// tokenOf returns the token of the next page of a list, which is empty at its end.
func tokenOf(truncated *bool, token *string) (string, error) {
	if !aws.ToBool(truncated) {
		return "", nil
	}
	if aws.ToString(token) == "" {
		return "", &remote.Error{Err: errors.New("the answer says that the list goes on, but not where"), Hint: hintNotS3}
	}
	return *token, nil
}

func (v *service) List(ctx context.Context, prefix, token string) ([]remote.Object, string, error) {
	in := &s3.ListObjectsV2Input{Bucket: &v.bucket, Prefix: &prefix}
	if token != "" {
		in.ContinuationToken = &token
	}

	out, err := v.client.ListObjectsV2(remote.Expect(ctx, listKind), in)
	if err != nil {
		return nil, "", explain(err)
	}

	var page []remote.Object
	for _, o := range out.Contents {
		page = append(page, remote.Object{
			Key: aws.ToString(o.Key), Size: aws.ToInt64(o.Size), ModTime: aws.ToTime(o.LastModified), Version: aws.ToString(o.ETag),
		})
	}

	next, err := tokenOf(out.IsTruncated, out.NextContinuationToken)
	return page, next, err
}

func (v *service) Folders(ctx context.Context, prefix, token string) ([]string, string, error) {
	in := &s3.ListObjectsV2Input{Bucket: &v.bucket, Prefix: &prefix, Delimiter: aws.String("/")}
	if token != "" {
		in.ContinuationToken = &token
	}

	out, err := v.client.ListObjectsV2(remote.Expect(ctx, listKind), in)
	if err != nil {
		return nil, "", explain(err)
	}

	var page []string
	for _, p := range out.CommonPrefixes {
		page = append(page, aws.ToString(p.Prefix))
	}

	next, err := tokenOf(out.IsTruncated, out.NextContinuationToken)
	return page, next, err
}

func (v *service) Remove(ctx context.Context, keys []string) error {
	if len(keys) == 1 {
		_, err := v.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &v.bucket, Key: &keys[0]})
		return explain(err)
	}

	in := &s3.DeleteObjectsInput{Bucket: &v.bucket, Delete: &types.Delete{Quiet: aws.Bool(true)}}
	for i := range keys {
		in.Delete.Objects = append(in.Delete.Objects, types.ObjectIdentifier{Key: &keys[i]})
	}

	out, err := v.client.DeleteObjects(remote.Expect(ctx, "DeleteResult"), in)
	if err != nil {
		return explain(err)
	}

	for _, e := range out.Errors {
		return fmt.Errorf("%s: %s: %s", aws.ToString(e.Key), aws.ToString(e.Code), aws.ToString(e.Message))
	}

	return nil
}

func (v *service) RemoveVersion(ctx context.Context, key, version string) error {
	_, err := v.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &v.bucket, Key: &key, IfMatch: &version})
	return explain(err)
}

const (
	// copyBytes is the default of remote.Options.CopyBytes.
	copyBytes = 256 << 20
	// parallelCopies bounds the requests of a copy in parts.
	parallelCopies = 16
)

func (v *service) Copy(ctx context.Context, from remote.Source, key string, c remote.Condition) (remote.Object, error) {
	source := from.Bucket + "/" + (&url.URL{Path: from.Key}).EscapedPath()
	var match *string
	if from.Version != "" {
		match = &from.Version
	}
	if from.Size > v.copyBytes {
		return v.copyParts(ctx, from, source, match, key, c)
	}

	absent, version := conditions(c)
	out, err := v.client.CopyObject(ctx, &s3.CopyObjectInput{
		Bucket: &v.bucket, Key: &key, CopySource: &source, CopySourceIfMatch: match, IfNoneMatch: absent, IfMatch: version,
		MetadataDirective: types.MetadataDirectiveReplace, Metadata: map[string]string{writerKey: c.Writer},
		ChecksumAlgorithm: types.ChecksumAlgorithmCrc32c,
	})
	if err != nil {
		return remote.Object{}, explain(err)
	}

	o := remote.Object{Key: key, Size: from.Size, ModTime: time.Now(), Writer: c.Writer}
	if out.CopyObjectResult != nil {
		o.Version = aws.ToString(out.CopyObjectResult.ETag)
	}
	return o, nil
}

// copyParts copies an object by a request for each part. Amazon computes the CRC-32C of the
// parts and of the object. Other services are not asked for it: versitygw takes the checksum of the
// whole source for each part.
func (v *service) copyParts(ctx context.Context, from remote.Source, source string, match *string, key string, c remote.Condition) (remote.Object, error) {
	begin := &s3.CreateMultipartUploadInput{Bucket: &v.bucket, Key: &key, Metadata: map[string]string{writerKey: c.Writer}}
	var kind types.ChecksumType
	if v.amazon {
		kind = types.ChecksumTypeFullObject
		begin.ChecksumAlgorithm, begin.ChecksumType = types.ChecksumAlgorithmCrc32c, kind
	}

	out, err := v.client.CreateMultipartUpload(ctx, begin)
	if err != nil {
		return remote.Object{}, explain(err)
	}

	size := max(v.copyBytes, (from.Size+maxParts-1)/maxParts)
	parts := make([]types.CompletedPart, (from.Size+size-1)/size)
	err = work.Each(ctx, len(parts), parallelCopies, func(ctx context.Context, i int) error {
		off, n := int64(i)*size, aws.Int32(int32(i+1))
		part, err := v.client.UploadPartCopy(ctx, &s3.UploadPartCopyInput{
			Bucket: &v.bucket, Key: &key, UploadId: out.UploadId, PartNumber: n, CopySource: &source, CopySourceIfMatch: match,
			CopySourceRange: aws.String(fmt.Sprintf("bytes=%d-%d", off, min(off+size, from.Size)-1)),
		})
		if err == nil {
			parts[i] = types.CompletedPart{PartNumber: n, ETag: part.CopyPartResult.ETag, ChecksumCRC32C: part.CopyPartResult.ChecksumCRC32C}
		}
		return err
	})

	var end *s3.CompleteMultipartUploadOutput
	if err == nil {
		absent, version := conditions(c)
		end, err = v.client.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{
			Bucket: &v.bucket, Key: &key, UploadId: out.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
			ChecksumType: kind, MpuObjectSize: &from.Size, IfNoneMatch: absent, IfMatch: version,
		})
	}
	if err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return remote.Object{}, errors.Join(explain(err), ignoreMissing(v.AbortUpload(stop, remote.PendingUpload{Key: key, ID: aws.ToString(out.UploadId)})))
	}
	return remote.Object{Key: key, Size: from.Size, ModTime: time.Now(), Version: aws.ToString(end.ETag), Writer: c.Writer}, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// SourceBucket implements [remote.Neighbour]. Stores of one service share a client.
func (v *service) SourceBucket(other remote.Service) (string, bool) {
	o, ok := other.(*service)
	if !ok || o.client != v.client {
		return "", false
	}
	return o.bucket, true
}

// Sum implements [remote.Summer].
func (v *service) Sum(ctx context.Context, key string) (uint32, bool, error) {
	out, err := v.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &v.bucket, Key: &key, ChecksumMode: types.ChecksumModeEnabled})
	if err != nil {
		return 0, false, explain(err)
	}
	b, err := base64.StdEncoding.DecodeString(aws.ToString(out.ChecksumCRC32C))
	if err != nil || len(b) != 4 || out.ChecksumType == types.ChecksumTypeComposite {
		return 0, false, nil // a checksum of the parts, or no checksum
	}
	return binary.BigEndian.Uint32(b), true, nil
}
