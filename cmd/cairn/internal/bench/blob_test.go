package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// memoryService is a service in memory. blob/conformance tests drivers against servers.
type memoryService struct {
	remote.Service // nil: all other requests panic
	mu             sync.Mutex
	objects        map[string][]byte // guarded by mu
	most           map[string]int    // guarded by mu; objects that were there at once, by the beginning of their names
}

func (s *memoryService) Limits() remote.Limits {
	return remote.Limits{MinPart: 5 << 20, MaxPart: 5 << 30, Parts: 10_000, Removes: 1000}
}

func (s *memoryService) Put(ctx context.Context, key string, body []byte, _ uint32, c remote.Condition) (remote.Object, error) {
	remote.CountRequest(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = bytes.Clone(body)
	s.most[key[:strings.LastIndexAny(key, "-/")]]++
	return remote.Object{Key: key, Size: int64(len(body)), Version: "1", Writer: c.Writer}, nil
}

func (s *memoryService) Get(ctx context.Context, key, _ string, p []byte, off int64) (int, remote.Object, error) {
	remote.CountRequest(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.objects[key]
	if !ok {
		return 0, remote.Object{}, fs.ErrNotExist
	}
	return copy(p, data[off:]), remote.Object{Key: key, Size: int64(len(data)), Version: "1"}, nil
}

func (s *memoryService) Head(ctx context.Context, key string) (remote.Object, error) {
	remote.CountRequest(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	data, ok := s.objects[key]
	if !ok {
		return remote.Object{}, fs.ErrNotExist
	}
	return remote.Object{Key: key, Size: int64(len(data)), Version: "1"}, nil
}

func (s *memoryService) Begin(_ context.Context, key, writer string) (remote.Upload, error) {
	return &memoryUpload{s: s, key: key, parts: map[int][]byte{}}, nil
}

func (s *memoryService) List(_ context.Context, prefix, _ string) (page []remote.Object, _ string, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.objects {
		if strings.HasPrefix(key, prefix) {
			page = append(page, remote.Object{Key: key})
		}
	}
	return page, "", nil
}

func (s *memoryService) Remove(_ context.Context, keys []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		delete(s.objects, key)
	}
	return nil
}

func (s *memoryService) Uploads(context.Context, string, bool, string) ([]remote.PendingUpload, string, error) {
	return nil, "", nil
}

type memoryUpload struct {
	s     *memoryService
	key   string
	mu    sync.Mutex
	parts map[int][]byte // guarded by mu
}

func (u *memoryUpload) Part(ctx context.Context, number int, body []byte, _ uint32) error {
	remote.CountRequest(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.parts[number] = bytes.Clone(body)
	return nil
}

func (u *memoryUpload) Complete(ctx context.Context, n int, _ int64, sum uint32, c remote.Condition) (remote.Object, error) {
	var all []byte
	for i := range n {
		all = append(all, u.parts[i]...)
	}
	return u.s.Put(ctx, u.key, all, sum, c)
}

func (u *memoryUpload) Abort(context.Context) error { return nil }

func TestBlob(t *testing.T) {
	v := &memoryService{objects: map[string][]byte{"run/mine": nil}, most: map[string]int{}}
	s := must.Get(remote.New(v, "run", "mem://run", nil))(t)
	r := must.Get(Blob(t.Context(), BlobOptions{Store: s, Bytes: 20 << 20, Streams: []int{1, 3}, Repeat: 2}))(t)
	if len(r.Rows) != 2 || r.Rows[0].Streams != 1 || r.Rows[1].Streams != 3 || r.Address != "mem://run" || r.Repeat != 2 {
		t.Errorf("the result is %+v", r)
	}
	for _, row := range r.Rows {
		if min(row.PlainPut, row.Put, row.PlainGet, row.Get, row.PlainRanges, row.Ranges) <= 0 {
			t.Errorf("a figure of %+v is missing", row)
		}
	}
	if r.PutRatio != r.BestPut/r.BestPlainPut || r.GetRatio != r.BestGet/r.BestPlainGet || r.RangesRatio != r.BestRanges/r.BestPlainRanges ||
		r.BestPut < r.Rows[1].Put || r.BestGet < r.Rows[0].Get || r.BestRanges < r.Rows[1].Ranges {
		t.Errorf("the best of the rows is %+v", r)
	}
	// Two rounds for each number of streams: an upload of three parts and its end, and two downloads.
	if r.Traffic.Sent != 80<<20 || r.Traffic.Received != 160<<20 || r.Traffic.Retries != 0 || r.Traffic.Requests < 4*6 {
		t.Errorf("the traffic is %+v", r.Traffic)
	}
	// Three blocks of 8 MiB, of which a reader that finds one asks for the version.
	if c := r.Cache; c.Readers != 4 || min(c.Alone.Rate, c.Shared.Rate, c.Warm.Rate) <= 0 || c.Alone.Received != 80<<20 ||
		c.Shared.Received != 20<<20 || c.Shared.Requests > 3+4 || c.Warm.Received != 0 || c.Warm.Requests != 4 {
		t.Errorf("the readers: %+v", c)
	}
	if len(v.objects) != 1 {
		t.Errorf("%d objects are left; want the one that was there", len(v.objects))
	}
	plain := 0
	for name, n := range v.most {
		if strings.HasSuffix(name, "/plain-3") {
			plain += n
		}
	}
	if plain != 2*3 {
		t.Errorf("%d plain objects of three streams; want 6: %v", plain, fmt.Sprint(v.most))
	}
	if _, err := Blob(t.Context(), BlobOptions{Store: new(mem.Store), Bytes: 1 << 20, Streams: []int{1}}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Blob of a store that is no service = %v", err)
	}
}
