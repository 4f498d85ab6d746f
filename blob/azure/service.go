package azure

import (
	"context"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"

	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

const (
	// writerKey and sumKey are the metadata with Condition.Writer and with the CRC-32C of
	// the object, which the service does not know. Their names are identifiers.
	writerKey   = "cairn_writer"
	sumKey      = "cairn_crc32c"
	contentType = "application/octet-stream"
	// listKind is the root of a list of objects.
	listKind = "EnumerationResults"
	// maxCopy is the size of the largest object that the service copies in one request.
	maxCopy = 256 << 20
	// copyTime is how long the service may read the source of a copy.
	copyTime = time.Hour
)

// crc64Table is the table of the checksum with which the service checks requests.
var crc64Table = crc64.MakeTable(0x9A6C9329AC4BC9B5)

// service is a container.
type service struct {
	client *container.Client
	name   string
	token  azcore.TokenCredential // nil: the client has a key or a SAS token
}

var (
	_ remote.Service       = (*service)(nil)
	_ remote.FolderService = (*service)(nil)
	_ remote.Neighbour     = (*service)(nil)
	_ remote.Summer        = (*service)(nil)
)

func (v *service) Limits() remote.Limits {
	return remote.Limits{MinPart: 1 << 20, MaxPart: 4000 << 20, Parts: 50_000, Removes: 1, Conditional: true}
}

// Close does nothing: the connections belong to all stores.
func (v *service) Close() error { return nil }

// Host returns the address of the container without its query, which may be a SAS token.
func (v *service) Host() string {
	host, _, _ := strings.Cut(v.client.URL(), "?")
	return host
}

func (v *service) Head(ctx context.Context, key string) (remote.Object, error) {
	r, err := v.client.NewBlockBlobClient(key).GetProperties(ctx, nil)
	if err != nil {
		return remote.Object{}, explain(err)
	}
	return remote.Object{
		Key: key, Size: deref(r.ContentLength), ModTime: deref(r.LastModified), Version: version(r.ETag), Writer: metadata(r.Metadata, writerKey),
	}, nil
}

func (v *service) Get(ctx context.Context, key, only string, p []byte, off int64) (int, remote.Object, error) {
	remote.Progress(ctx) // an answer that does not come has stalled, too
	r, err := v.client.NewBlockBlobClient(key).DownloadStream(ctx, &blob.DownloadStreamOptions{
		Range: blob.HTTPRange{Offset: off, Count: int64(len(p))}, AccessConditions: conditions(remote.Condition{IfVersion: only}),
	})
	if err != nil {
		if err = explain(err); !errors.Is(err, errBeyond) {
			return 0, remote.Object{}, err
		}
		o, err := v.Head(ctx, key)
		return 0, o, err
	}
	defer r.Body.Close()
	o := remote.Object{
		Key: key, Size: deref(r.ContentLength), ModTime: deref(r.LastModified), Version: version(r.ETag), Writer: metadata(r.Metadata, writerKey),
	}
	if _, total, ok := strings.Cut(deref(r.ContentRange), "/"); ok {
		if o.Size, err = strconv.ParseInt(total, 10, 64); err != nil {
			return 0, o, fmt.Errorf("the service answers with the range %q", *r.ContentRange)
		}
	}
	n, err := remote.ReadFull(ctx, r.Body, p)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF: // the object ends, or package remote sees that it does not
		err = nil
	case err != nil:
		return n, o, explain(err)
	}
	if sum := metadata(r.Metadata, sumKey); sum != "" && int64(n) == o.Size && sumText(crc32c.Checksum(p[:n])) != sum {
		err = &remote.Error{Err: errors.New("the bytes that arrived have another CRC-32C than the object"), Retry: true}
	}
	return n, o, err
}

// Put sends the CRC-64 of body with it, which the service checks.
func (v *service) Put(ctx context.Context, key string, body []byte, sum uint32, c remote.Condition) (remote.Object, error) {
	r, err := v.client.NewBlockBlobClient(key).Upload(ctx, streaming.NopCloser(remote.NewBody(ctx, body)), &blockblob.UploadOptions{
		Metadata: notes(c.Writer, sumText(sum)), HTTPHeaders: &blob.HTTPHeaders{BlobContentType: to.Ptr(contentType)},
		AccessConditions: conditions(c), TransactionalValidation: checksum(body),
	})
	if err != nil {
		return remote.Object{}, explain(err)
	}
	return remote.Object{Key: key, Size: int64(len(body)), ModTime: deref(r.LastModified), Version: version(r.ETag), Writer: c.Writer}, nil
}

func (v *service) List(ctx context.Context, prefix, token string) ([]remote.Object, string, error) {
	opts := &container.ListBlobsFlatOptions{Prefix: &prefix}
	if token != "" {
		opts.Marker = &token
	}
	r, err := v.client.NewListBlobsFlatPager(opts).NextPage(remote.Expect(ctx, listKind))
	if err != nil {
		return nil, "", explain(err)
	}
	if r.Segment == nil {
		return nil, "", errNoList
	}
	var page []remote.Object
	for _, b := range r.Segment.BlobItems {
		if b.Name == nil || b.Properties == nil {
			return nil, "", errNoList
		}
		if deref(b.Properties.ResourceType) == "directory" {
			continue // of an account with a hierarchical namespace
		}
		page = append(page, remote.Object{
			Key: deref(b.Name), Size: deref(b.Properties.ContentLength), ModTime: deref(b.Properties.LastModified), Version: version(b.Properties.ETag),
		})
	}
	return page, deref(r.NextMarker), nil
}

// Folders implements [remote.FolderService].
func (v *service) Folders(ctx context.Context, prefix, token string) ([]string, string, error) {
	opts := &container.ListBlobsHierarchyOptions{Prefix: &prefix}
	if token != "" {
		opts.Marker = &token
	}
	r, err := v.client.NewListBlobsHierarchyPager("/", opts).NextPage(remote.Expect(ctx, listKind))
	if err != nil {
		return nil, "", explain(err)
	}
	if r.Segment == nil {
		return nil, "", errNoList
	}
	var page []string
	for _, p := range r.Segment.BlobPrefixes {
		if p.Name == nil {
			return nil, "", errNoList
		}
		page = append(page, deref(p.Name))
	}
	return page, deref(r.NextMarker), nil
}

func (v *service) Remove(ctx context.Context, keys []string) error {
	for _, key := range keys {
		_, err := v.client.NewBlobClient(key).Delete(ctx, &blob.DeleteOptions{DeleteSnapshots: to.Ptr(blob.DeleteSnapshotsOptionTypeInclude)})
		if err != nil {
			return explain(err)
		}
	}
	return nil
}

func (v *service) RemoveVersion(ctx context.Context, key, version string) error {
	_, err := v.client.NewBlobClient(key).Delete(ctx, &blob.DeleteOptions{
		DeleteSnapshots: to.Ptr(blob.DeleteSnapshotsOptionTypeInclude), AccessConditions: conditions(remote.Condition{IfVersion: version}),
	})
	return explain(err)
}

// Copy copies objects of up to 256 MiB. The service could copy larger ones, but they
// would be visible before they are complete.
func (v *service) Copy(ctx context.Context, from remote.Source, key string, c remote.Condition) (remote.Object, error) {
	if from.Size > maxCopy || from.Bucket != "" && from.Bucket != v.name {
		return remote.Object{}, fmt.Errorf("the service copies objects of one container and of up to %d bytes: %w", maxCopy, errors.ErrUnsupported)
	}
	source := v.client.NewBlobClient(from.Key)
	was, err := source.GetProperties(ctx, &blob.GetPropertiesOptions{AccessConditions: conditions(remote.Condition{IfVersion: from.Version})})
	if err != nil {
		return remote.Object{}, explain(err)
	}
	opts := &blob.CopyFromURLOptions{
		Metadata: notes(c.Writer, metadata(was.Metadata, sumKey)), BlobAccessConditions: conditions(c),
		SourceModifiedAccessConditions: &blob.SourceModifiedAccessConditions{SourceIfMatch: was.ETag},
	}
	address, err := v.authorize(ctx, source, opts)
	if err != nil {
		return remote.Object{}, explain(err)
	}
	r, err := v.client.NewBlobClient(key).CopyFromURL(ctx, address, opts)
	if err != nil {
		return remote.Object{}, explain(err)
	}
	return remote.Object{Key: key, Size: deref(was.ContentLength), ModTime: deref(r.LastModified), Version: version(r.ETag), Writer: c.Writer}, nil
}

// SourceBucket implements [remote.Neighbour]: the same container, with the same account.
func (v *service) SourceBucket(other remote.Service) (string, bool) {
	o, ok := other.(*service)
	return v.name, ok && o.client.URL() == v.client.URL()
}

// Sum implements [remote.Summer].
func (v *service) Sum(ctx context.Context, key string) (uint32, bool, error) {
	r, err := v.client.NewBlobClient(key).GetProperties(ctx, nil)
	if err != nil {
		return 0, false, explain(err)
	}
	sum, err := strconv.ParseUint(metadata(r.Metadata, sumKey), 16, 32)
	return uint32(sum), err == nil, nil
}

// authorize returns the address at which the service may read the source of a copy.
func (v *service) authorize(ctx context.Context, source *blob.Client, opts *blob.CopyFromURLOptions) (string, error) {
	if v.token != nil {
		t, err := v.token.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{"https://storage.azure.com/.default"}})
		opts.CopySourceAuthorization = to.Ptr("Bearer " + t.Token)
		return source.URL(), err
	}
	if strings.Contains(source.URL(), "?") {
		return source.URL(), nil // it has the SAS token
	}
	return source.GetSASURL(sas.BlobPermissions{Read: true}, time.Now().Add(copyTime), nil)
}

// conditions returns a condition as the service wants it.
func conditions(c remote.Condition) *blob.AccessConditions {
	m := &blob.ModifiedAccessConditions{}
	if c.IfAbsent {
		m.IfNoneMatch = to.Ptr(azcore.ETagAny)
	}
	if c.IfVersion != "" {
		m.IfMatch = to.Ptr(azcore.ETag(`"` + c.IfVersion + `"`))
	}
	return &blob.AccessConditions{ModifiedAccessConditions: m}
}

// version returns an ETag without the quotes, which lists do not have.
func version(e *azcore.ETag) string { return strings.Trim(string(deref(e)), `"`) }

func checksum(p []byte) blob.TransferValidationType {
	return blob.TransferValidationTypeCRC64(crc64.Checksum(p, crc64Table))
}

func sumText(sum uint32) string { return fmt.Sprintf("%08x", sum) }

// notes returns the metadata of an object.
func notes(writer, sum string) map[string]*string {
	out := map[string]*string{}
	if writer != "" {
		out[writerKey] = &writer
	}
	if sum != "" {
		out[sumKey] = &sum
	}
	return out
}

// metadata returns a value. Headers do not keep the case of the names.
func metadata(m map[string]*string, key string) string {
	for k, value := range m {
		if strings.EqualFold(k, key) {
			return deref(value)
		}
	}
	return ""
}

func deref[T any](p *T) (zero T) {
	if p == nil {
		return zero
	}
	return *p
}
