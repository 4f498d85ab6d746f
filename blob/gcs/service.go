package gcs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"

	"cloud.google.com/go/storage"
	"google.golang.org/api/iterator"

	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
)

const (
	// writerKey is the metadata with Condition.Writer. Headers spell it as writerHeader.
	writerKey    = "cairn-writer"
	writerHeader = "Cairn-Writer"
	contentType  = "application/octet-stream"
	// listKind is the kind of a list of objects.
	listKind = "storage#objects"
	// pageSize is the most objects that a list returns.
	pageSize = 1000
)

// service is a bucket.
type service struct {
	client      *storage.Client
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

func (v *service) object(key string) *storage.ObjectHandle {
	return v.client.Bucket(v.bucket).Object(key)
}

func (v *service) Head(ctx context.Context, key string) (remote.Object, error) {
	a, err := v.object(key).Attrs(ctx)
	if err != nil {
		return remote.Object{}, explain(err)
	}
	return describeObject(a), nil
}

func describeObject(a *storage.ObjectAttrs) remote.Object {
	return remote.Object{Key: a.Name, Size: a.Size, ModTime: a.Updated, Version: strconv.FormatInt(a.Generation, 10), Writer: a.Metadata[writerKey]}
}

func (v *service) Get(ctx context.Context, key, version string, p []byte, off int64) (int, remote.Object, error) {
	h := v.object(key).ReadCompressed(true)
	if version != "" {
		generation, err := strconv.ParseInt(version, 10, 64)
		if err != nil {
			return 0, remote.Object{}, remote.ErrCondition
		}
		h = h.Generation(generation)
	}
	remote.Progress(ctx) // an answer that does not come has stalled, too
	r, err := h.NewRangeReader(withOnce(ctx), off, int64(len(p)))
	if err != nil {
		n, o, err := v.getNothing(ctx, h, explain(err))
		if version != "" && errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", remote.ErrCondition, err)
		}
		return n, o, err
	}
	defer r.Close()
	o := remote.Object{
		Key: key, Size: r.Attrs.Size, ModTime: r.Attrs.LastModified, Version: strconv.FormatInt(r.Attrs.Generation, 10), Writer: r.Metadata()[writerHeader],
	}
	n, err := remote.ReadFull(ctx, r, p)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF: // the object ends, or package remote sees that it does not
		err = nil
	case err != nil:
		return n, o, explain(err)
	}
	if sum := r.Attrs.CRC32C; sum != 0 && int64(n) == o.Size && crc32c.Checksum(p[:n]) != sum {
		err = &remote.Error{Err: errors.New("the bytes that arrived have another CRC-32C than the object"), Retry: true}
	}
	return n, o, err
}

// getNothing returns the result of Get for an object that ends before the range.
func (v *service) getNothing(ctx context.Context, h *storage.ObjectHandle, err error) (int, remote.Object, error) {
	if !errors.Is(err, errBeyond) {
		return 0, remote.Object{}, err
	}
	a, err := h.Attrs(ctx)
	if err != nil {
		return 0, remote.Object{}, explain(err)
	}
	return 0, describeObject(a), nil
}

func (v *service) Put(ctx context.Context, key string, body []byte, sum uint32, c remote.Condition) (remote.Object, error) {
	h, err := conditional(v.object(key), c)
	if err != nil {
		return remote.Object{}, err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the request if Write fails
	defer cancel()
	w := h.NewWriter(ctx)
	w.ChunkSize = 0 // one request
	w.ContentType = contentType
	w.CRC32C, w.SendCRC32C = sum, true
	if c.Writer != "" {
		w.Metadata = map[string]string{writerKey: c.Writer}
	}
	if len(body) > 0 {
		if _, err := w.Write(body); err != nil {
			return remote.Object{}, explain(err)
		}
	}
	if err := w.Close(); err != nil {
		return remote.Object{}, explain(err)
	}
	return checked(w.Attrs(), sum)
}

// checked describes an object that was written. A service that ignores the checksum of
// the request is found out.
func checked(a *storage.ObjectAttrs, sum uint32) (remote.Object, error) {
	if a.CRC32C != sum {
		return remote.Object{}, fmt.Errorf("the service has stored bytes with the CRC-32C %08x instead of %08x", a.CRC32C, sum)
	}
	return describeObject(a), nil
}

// conditional returns a handle whose writes have a condition.
func conditional(h *storage.ObjectHandle, c remote.Condition) (*storage.ObjectHandle, error) {
	switch {
	case c.IfAbsent:
		return h.If(storage.Conditions{DoesNotExist: true}), nil
	case c.IfVersion != "":
		generation, err := strconv.ParseInt(c.IfVersion, 10, 64)
		if err != nil || generation == 0 {
			return nil, remote.ErrCondition
		}
		return h.If(storage.Conditions{GenerationMatch: generation}), nil
	}
	return h, nil
}

func (v *service) List(ctx context.Context, prefix, token string) ([]remote.Object, string, error) {
	q := &storage.Query{Prefix: prefix, Projection: storage.ProjectionNoACL}
	if err := q.SetAttrSelection([]string{"Name", "Size", "Updated", "Generation"}); err != nil {
		return nil, "", err
	}
	var page []*storage.ObjectAttrs
	next, err := iterator.NewPager(v.client.Bucket(v.bucket).Objects(remote.Expect(ctx, listKind), q), pageSize, token).NextPage(&page)
	if err != nil {
		return nil, "", explain(err)
	}
	objects := make([]remote.Object, len(page))
	for i, a := range page {
		objects[i] = describeObject(a)
	}
	return objects, next, nil
}

func (v *service) Folders(ctx context.Context, prefix, token string) ([]string, string, error) {
	q := &storage.Query{Prefix: prefix, Delimiter: "/", Projection: storage.ProjectionNoACL}
	var page []*storage.ObjectAttrs
	next, err := iterator.NewPager(v.client.Bucket(v.bucket).Objects(remote.Expect(ctx, listKind), q), pageSize, token).NextPage(&page)
	if err != nil {
		return nil, "", explain(err)
	}
	var folders []string
	for _, a := range page {
		if a.Prefix != "" {
			folders = append(folders, a.Prefix)
		}
	}
	return folders, next, nil
}

func (v *service) Remove(ctx context.Context, keys []string) error {
	for _, key := range keys {
		if err := v.object(key).Delete(ctx); err != nil && !errors.Is(err, storage.ErrObjectNotExist) {
			return explain(err)
		}
	}
	return nil
}

// Copy may make several requests, if the objects are in different places.
func (v *service) Copy(ctx context.Context, from remote.Source, key string, c remote.Condition) (remote.Object, error) {
	source := v.object(from.Key)
	if from.Bucket != "" {
		source = v.client.Bucket(from.Bucket).Object(from.Key)
	}
	if from.Version != "" {
		generation, err := strconv.ParseInt(from.Version, 10, 64)
		if err != nil {
			return remote.Object{}, remote.ErrCondition
		}
		source = source.Generation(generation)
	}
	h, err := conditional(v.object(key), c)
	if err != nil {
		return remote.Object{}, err
	}
	copier := h.CopierFrom(source)
	copier.ContentType = contentType
	if c.Writer != "" {
		copier.Metadata = map[string]string{writerKey: c.Writer}
	}
	a, err := copier.Run(ctx)
	if err != nil {
		return remote.Object{}, explain(err)
	}
	return describeObject(a), nil
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
	a, err := v.object(key).Attrs(ctx)
	if err != nil {
		return 0, false, explain(err)
	}
	return a.CRC32C, a.CRC32C != 0 || a.Size == 0, nil // the SDK does not tell 0 from none
}
