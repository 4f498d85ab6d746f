package remote

import (
	"context"
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
)

// Neighbour is implemented by services that copy objects of another bucket.
type Neighbour interface {
	// SourceBucket returns the bucket of another service. ok is false if Copy cannot copy
	// from it: it is of another kind, at another endpoint, or used with other
	// credentials.
	SourceBucket(other Service) (bucket string, ok bool)
}

// Summer is implemented by services that keep a CRC-32C of each object.
type Summer interface {
	// Sum returns the CRC-32C of an object, by one request. ok is false if the service
	// does not have it for this object.
	Sum(ctx context.Context, key string) (sum uint32, ok bool, err error)
}

var (
	_ blob.Copier = (*Store)(nil)
	_ blob.Summer = (*Store)(nil)
)

// CopyFrom implements [blob.Copier].
func (s *Store) CopyFrom(ctx context.Context, from blob.Store, o blob.Info, name string) (blob.Info, error) {
	if err := check(ctx, name); err != nil {
		return blob.Info{}, s.fail("copy", name, err)
	}
	source, ok := s.sourceOf(from, o)
	if !ok {
		return blob.Info{}, s.fail("copy", name, fmt.Errorf("%w: %s is not in the same service", errors.ErrUnsupported, from))
	}
	w := &writer{s: s, name: name, key: s.prefix + name, id: newWriter()}
	done, err := w.publish(ctx, int(o.Size), func(ctx context.Context) (Object, error) {
		return s.service.Copy(ctx, source, w.key, Condition{Writer: w.id})
	})
	if errors.Is(err, ErrCondition) {
		err = fmt.Errorf("%s in %s: %w", o.Name, from, blob.ErrChanged)
	}
	if err != nil {
		return blob.Info{}, s.fail("copy", name, err)
	}
	return s.info(done), nil
}

// sourceOf returns an object of another store for a copy, if that is in the same service.
func (s *Store) sourceOf(from blob.Store, o blob.Info) (Source, bool) {
	inner, name := blob.Locate(from, o.Name)
	src, ok := inner.(*Store)
	n, can := s.service.(Neighbour)
	if !ok || !can {
		return Source{}, false
	}
	bucket, ok := n.SourceBucket(src.service)
	return Source{Bucket: bucket, Key: src.prefix + name, Version: o.Version, Size: o.Size}, ok
}

// Sum implements [blob.Summer].
func (s *Store) Sum(ctx context.Context, name string) (sum uint32, ok bool, err error) {
	if err := check(ctx, name); err != nil {
		return 0, false, s.fail("stat", name, err)
	}
	v, can := s.service.(Summer)
	if !can {
		return 0, false, nil
	}
	_, err = s.repeat(ctx, "stat", s.prefix+name, 0, func(ctx context.Context) (err error) {
		sum, ok, err = v.Sum(ctx, s.prefix+name)
		return err
	})
	if err != nil {
		return 0, false, s.fail("stat", name, err)
	}
	return sum, ok, nil
}
