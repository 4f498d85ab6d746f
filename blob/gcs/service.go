package gcs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

const (
	writerKey   = "cairn-writer" // the metadata with Condition.Writer
	contentType = "application/octet-stream"
	// listKind is the kind of a list of objects.
	listKind = "storage#objects"
	// pageSize is the most objects that a list returns.
	pageSize = 1000
)

// service is a bucket.
type service struct {
	client      *client
	bucket      string
	emulator    string // its address, or empty
	conditional bool
}

var (
	_ remote.Service       = (*service)(nil)
	_ remote.Neighbour     = (*service)(nil)
	_ remote.Summer        = (*service)(nil)
	_ remote.FolderService = (*service)(nil)
)

func (v *service) Limits() remote.Limits {
	return remote.Limits{MinPart: 1 << 20, MaxPart: 1 << 30, Parts: 10_000, Removes: 1, Conditional: v.conditional}
}

// Close does nothing: the client belongs to all stores.
func (v *service) Close() error { return nil }

// Host returns the address of an emulator. Buckets of Google have different names.
func (v *service) Host() string { return v.emulator }

func (v *service) Head(ctx context.Context, key string) (remote.Object, error) {
	a, err := v.describe(ctx, key)
	if err != nil {
		return remote.Object{}, err
	}
	return a.object(), nil
}

func (v *service) describe(ctx context.Context, key string) (*attrs, error) {
	a := new(attrs)
	err := v.client.call(ctx, http.MethodGet, objectPath(v.bucket, key), url.Values{"projection": {"noAcl"}}, nil, a)
	return a, explain(err)
}

func (v *service) Get(ctx context.Context, key, version string, p []byte, off int64) (int, remote.Object, error) {
	var generation int64
	if version != "" {
		var err error
		if generation, err = strconv.ParseInt(version, 10, 64); err != nil {
			return 0, remote.Object{}, remote.ErrCondition
		}
	}

	remote.Progress(ctx) // an answer that does not come has stalled, too
	a, body, err := v.client.read(ctx, v.bucket, key, generation, off, int64(len(p)))
	if err = explain(err); errors.Is(err, errBeyond) {
		o, err := v.Head(ctx, key)
		if err == nil && version != "" && o.Version != version {
			err = remote.ErrCondition
		}
		return 0, o, err
	}
	if err != nil {
		if version != "" && errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", remote.ErrCondition, err)
		}
		return 0, remote.Object{}, err
	}

	defer body.Close()

	o := a.object()
	n, err := remote.ReadFull(ctx, body, p)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF: // the object ends, or package remote sees that it does not
		err = nil
	case err != nil:
		return n, o, explain(err)
	}

	if sum, ok := parseSum(a.CRC32C); ok && int64(n) == o.Size && crc32c.Checksum(p[:n]) != sum {
		err = &remote.Error{Err: errors.New("the bytes that arrived have another CRC-32C than the object"), Retry: true}
	}
	return n, o, err
}

func (v *service) Put(ctx context.Context, key string, body []byte, sum uint32, c remote.Condition) (remote.Object, error) {
	query, err := conditions(c)
	if err != nil {
		return remote.Object{}, err
	}

	a := v.written(c)
	a.Name, a.CRC32C = key, formatSum(sum)
	made, err := v.client.insert(ctx, v.bucket, a, body, query)
	if err != nil {
		return remote.Object{}, explain(err)
	}
	return checked(made, sum)
}

// written describes an object that is about to be written.
func (v *service) written(c remote.Condition) *attrs {
	a := &attrs{Bucket: v.bucket, ContentType: contentType}
	if c.Writer != "" {
		a.Metadata = map[string]string{writerKey: c.Writer}
	}
	return a
}

// checked describes an object that was written. A service that ignores the checksum of
// the request is found out.
func checked(a *attrs, sum uint32) (remote.Object, error) {
	if got, ok := parseSum(a.CRC32C); !ok || got != sum {
		return remote.Object{}, fmt.Errorf("the service has stored bytes with the CRC-32C %q instead of %q", a.CRC32C, formatSum(sum))
	}
	return a.object(), nil
}

// conditions returns the options of a write with a condition.
func conditions(c remote.Condition) (url.Values, error) {
	switch {
	case c.IfAbsent:
		return url.Values{"ifGenerationMatch": {"0"}}, nil
	case c.IfVersion != "":
		if generation, err := strconv.ParseInt(c.IfVersion, 10, 64); err != nil || generation == 0 {
			return nil, remote.ErrCondition
		}
		return url.Values{"ifGenerationMatch": {c.IfVersion}}, nil
	}
	return url.Values{}, nil
}

// list is a page of a list.
type list struct {
	Items         []attrs
	Prefixes      []string
	NextPageToken string
}

// list returns a page of the objects with keys that begin with prefix, and with a delimiter
// the folders instead of the objects in them. fields names the fields to return.
func (v *service) list(ctx context.Context, prefix, delimiter, token, fields string) (*list, error) {
	query := url.Values{
		"prefix": {prefix}, "projection": {"noAcl"}, "maxResults": {strconv.Itoa(pageSize)},
		"fields": {"kind,nextPageToken," + fields}, // remote.Expect looks at the kind
	}
	if delimiter != "" {
		query.Set("delimiter", delimiter)
	}
	if token != "" {
		query.Set("pageToken", token)
	}

	page := new(list)
	err := explain(v.client.call(remote.Expect(ctx, listKind), http.MethodGet, objectPath(v.bucket, ""), query, nil, page))
	if e := (*remote.Error)(nil); errors.Is(err, fs.ErrNotExist) && errors.As(err, &e) {
		e.Hint = hintBucket // only a bucket has a list
	}
	return page, err
}

func (v *service) List(ctx context.Context, prefix, token string) ([]remote.Object, string, error) {
	page, err := v.list(ctx, prefix, "", token, "items(name,size,updated,generation)")
	if err != nil {
		return nil, "", err
	}
	objects := make([]remote.Object, len(page.Items))
	for i := range page.Items {
		objects[i] = page.Items[i].object()
	}
	return objects, page.NextPageToken, nil
}

func (v *service) Folders(ctx context.Context, prefix, token string) ([]string, string, error) {
	page, err := v.list(ctx, prefix, "/", token, "prefixes")
	if err != nil {
		return nil, "", err
	}
	return page.Prefixes, page.NextPageToken, nil
}

func (v *service) Remove(ctx context.Context, keys []string) error {
	for _, key := range keys {
		err := explain(v.client.call(ctx, http.MethodDelete, objectPath(v.bucket, key), nil, nil, nil))
		if hint := (*remote.Error)(nil); errors.As(err, &hint) && hint.Hint == "" && errors.Is(err, fs.ErrNotExist) {
			continue // the bucket exists, and the object does not
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (v *service) RemoveVersion(ctx context.Context, key, version string) error {
	query, err := conditions(remote.Condition{IfVersion: version})
	if err != nil {
		return err
	}
	return explain(v.client.call(ctx, http.MethodDelete, objectPath(v.bucket, key), query, nil, nil))
}

// Copy makes several requests if the objects are in different places.
func (v *service) Copy(ctx context.Context, from remote.Source, key string, c remote.Condition) (remote.Object, error) {
	query, err := conditions(c)
	if err != nil {
		return remote.Object{}, err
	}

	if from.Version != "" {
		if _, err := strconv.ParseInt(from.Version, 10, 64); err != nil {
			return remote.Object{}, remote.ErrCondition
		}
		query.Set("sourceGeneration", from.Version)
	}

	path := objectPath(cmp.Or(from.Bucket, v.bucket), from.Key) + "/rewriteTo" + strings.TrimPrefix(objectPath(v.bucket, key), apiPath)
	for {
		var answer struct {
			Done         bool
			RewriteToken string
			Resource     attrs
		}
		if err := v.client.call(ctx, http.MethodPost, path, query, v.written(c), &answer); err != nil {
			return remote.Object{}, explain(err)
		}

		if answer.Done {
			return answer.Resource.object(), nil
		}
		query.Set("rewriteToken", answer.RewriteToken)
	}
}

// SourceBucket implements [remote.Neighbour]. All stores share a client.
func (v *service) SourceBucket(other remote.Service) (string, bool) {
	o, ok := other.(*service)
	if !ok || o.client != v.client {
		return "", false
	}
	return o.bucket, true
}

// Sum implements [remote.Summer].
func (v *service) Sum(ctx context.Context, key string) (uint32, bool, error) {
	a, err := v.describe(ctx, key)
	if err != nil {
		return 0, false, err
	}
	sum, ok := parseSum(a.CRC32C)
	return sum, ok, nil
}
