package azure

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/cairn-ckpt/cairn/blob/remote"
)

// uncommitted is the ID of the pending upload of an object. The service has one list of
// blocks for each object, which all its writers share.
const uncommitted = "uncommitted"

// upload is an object that is sent in blocks. The names of its blocks begin with its ID,
// so that the blocks of other writers have other names.
type upload struct {
	v       *service
	key, id string
}

var _ remote.Upload = (*upload)(nil)

// Begin makes no request.
func (v *service) Begin(ctx context.Context, key, writer string) (remote.Upload, error) {
	return &upload{v: v, key: key, id: rand.Text()}, nil
}

// block returns the name of a block. All have the same length, as the service wants it.
func (u *upload) block(number int) string {
	return base64.StdEncoding.EncodeToString(fmt.Appendf(nil, "%s-%05d", u.id, number))
}

func (u *upload) client() *blockblob.Client { return u.v.client.NewBlockBlobClient(u.key) }

// Part sends the CRC-64 of body with it, which the service checks.
func (u *upload) Part(ctx context.Context, number int, body []byte, sum uint32) error {
	_, err := u.client().StageBlock(ctx, u.block(number), streaming.NopCloser(remote.NewBody(ctx, body)), &blockblob.StageBlockOptions{TransactionalValidation: checksum(body)})
	return explain(err)
}

func (u *upload) Complete(ctx context.Context, n int, size int64, sum uint32, c remote.Condition) (remote.Object, error) {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = u.block(i)
	}

	r, err := u.client().CommitBlockList(ctx, ids, &blockblob.CommitBlockListOptions{
		Metadata: notes(c.Writer, sumText(sum)), HTTPHeaders: &blob.HTTPHeaders{BlobContentType: to.Ptr(contentType)}, AccessConditions: conditions(c),
	})
	err = explain(err)
	if errors.Is(err, errBlocks) && (c.IfAbsent || c.IfVersion != "") {
		err = fmt.Errorf("%w: %w", remote.ErrCondition, err) // the other writer has changed the object
	}
	if err != nil {
		return remote.Object{}, err
	}
	return remote.Object{Key: u.key, Size: size, ModTime: deref(r.LastModified), Version: version(r.ETag), Writer: c.Writer}, nil
}

// Abort removes the blocks, unless another writer has blocks too. Then they stay until
// the object is committed, or for a week.
func (u *upload) Abort(ctx context.Context) error {
	list, err := u.v.blocks(ctx, u.key)
	if err != nil {
		return err
	}

	for _, b := range list {
		if id, err := base64.StdEncoding.DecodeString(deref(b.Name)); err != nil || !strings.HasPrefix(string(id), u.id) {
			return nil
		}
	}

	if len(list) == 0 {
		return nil
	}
	return u.v.discard(ctx, u.key)
}

// blocks returns the blocks of an object that has not been committed yet. If the object
// exists, it returns no blocks: its next writer replaces them.
func (v *service) blocks(ctx context.Context, key string) ([]*blockblob.Block, error) {
	r, err := v.client.NewBlockBlobClient(key).GetBlockList(remote.Expect(ctx, "BlockList"), blockblob.BlockListTypeAll, nil)
	if err = explain(err); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil || r.ETag != nil && len(r.UncommittedBlocks) == 0 || len(r.CommittedBlocks) > 0 {
		return nil, err
	}
	return r.UncommittedBlocks, nil
}

// discard removes the blocks of an object that has not been committed. The condition
// protects an object that has been committed meanwhile.
func (v *service) discard(ctx context.Context, key string) error {
	_, err := v.client.NewBlobClient(key).Delete(ctx, &blob.DeleteOptions{AccessConditions: conditions(remote.Condition{IfAbsent: true})})
	if err = explain(err); errors.Is(err, fs.ErrNotExist) || errors.Is(err, remote.ErrCondition) {
		return nil
	}
	return err
}

// Uploads lists the objects of a folder, because the service cannot list uncommitted objects
// alone. Such objects are empty.
func (v *service) Uploads(ctx context.Context, prefix string, deep bool, token string) ([]remote.PendingUpload, string, error) {
	items, next, err := v.listUncommitted(ctx, prefix, deep, token)
	if err != nil {
		return nil, "", err
	}

	var page []remote.PendingUpload
	for _, b := range items {
		if b.Name == nil || b.Properties == nil {
			return nil, "", errNoList
		}
		if deref(b.Properties.ContentLength) > 0 {
			continue
		}

		list, err := v.blocks(ctx, deref(b.Name))
		if err != nil {
			return nil, "", err
		}
		if len(list) == 0 {
			continue
		}

		u := remote.PendingUpload{Key: deref(b.Name), ID: uncommitted, Begun: deref(b.Properties.LastModified)}
		for _, b := range list {
			u.Size += deref(b.Size)
		}

		page = append(page, u)
	}

	return page, next, nil
}

// listUncommitted lists the objects of a folder, and those below it if deep is true,
// including objects that are not committed.
func (v *service) listUncommitted(ctx context.Context, prefix string, deep bool, token string) ([]*container.BlobItem, string, error) {
	var marker *string
	if token != "" {
		marker = &token
	}

	include := container.ListBlobsInclude{UncommittedBlobs: true}
	if deep {
		r, err := v.client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{Prefix: &prefix, Marker: marker, Include: include}).NextPage(remote.Expect(ctx, listKind))
		switch {
		case err != nil:
			return nil, "", explain(err)
		case r.Segment == nil:
			return nil, "", errNoList
		}
		return r.Segment.BlobItems, deref(r.NextMarker), nil
	}

	r, err := v.client.NewListBlobsHierarchyPager("/", &container.ListBlobsHierarchyOptions{Prefix: &prefix, Marker: marker, Include: include}).NextPage(remote.Expect(ctx, listKind))
	switch {
	case err != nil:
		return nil, "", explain(err)
	case r.Segment == nil:
		return nil, "", errNoList
	}

	return r.Segment.BlobItems, deref(r.NextMarker), nil
}

func (v *service) AbortUpload(ctx context.Context, u remote.PendingUpload) error {
	return v.discard(ctx, u.Key)
}
