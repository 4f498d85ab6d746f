package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/storage"
)

// reclaiming is a store that knows whether it may free the space of removed objects.
type reclaiming struct {
	mem.Store

	mu      sync.Mutex
	holds   int     // guarded by mu
	failing bool    // guarded by mu; the ranks remove their files, one after the other
	largest int64   // guarded by mu; of the calls of DeferReclaim
	errs    []error // guarded by mu
}

func (s *reclaiming) DeferReclaim(_ context.Context, n int64) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds++
	s.largest = max(s.largest, n)
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.holds--
	})
}

// check notes an error if the store might free space now.
func (s *reclaiming) check(op, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds == 0 && !s.failing && strings.HasSuffix(name, ".safetensors") {
		s.errs = append(s.errs, fmt.Errorf("%s %s while space may be freed", op, name))
	}
}

func (s *reclaiming) Create(ctx context.Context, name string, o *blob.CreateOptions) (blob.Writer, error) {
	s.check("create", name)
	return s.Store.Create(ctx, name, o)
}

func (s *reclaiming) Remove(ctx context.Context, name string) error {
	s.check("remove", name)
	return s.Store.Remove(ctx, name)
}

// From before the first write of any rank until the end of a save, also of one that fails, the
// store of the coordinator does not free space. It receives the size of the save, also if
// the plan is an old one.
func TestSaveDefersReclaim(t *testing.T) {
	s := new(reclaiming)
	caches := make([]plan.Cache, world)
	for i, fails := range []bool{false, false, true, false} {
		s.largest, s.failing = 0, fails
		errs := onRanks(t, func(ctx context.Context, g *inproc.Group) error {
			job := saveJob(t, g, s, fmt.Sprint("save", i), byte(i))
			job.Cache = &caches[g.Rank()]
			if fails && g.Rank() == 2 {
				job.Verify = func() error { return errOnPurpose }
			}
			if g.Rank() == 0 {
				job.Writer = storage.PassWriter{Writer: job.Writer}
			}
			_, err := protocol.Save(ctx, job)
			return err
		})
		if err := errors.Join(errs...); (err != nil) != fails {
			t.Fatalf("save %d = %v", i, err)
		}
		if s.holds != 0 {
			t.Errorf("%d calls of DeferReclaim have not ended after save %d", s.holds, i)
		}
		// x, b, and the values that ranks hold.
		if want := int64(16*6*4 + 5*8 + 20_000); s.largest < want || s.largest > want+1000 {
			t.Errorf("the store of save %d was told of %d bytes; want about %d", i, s.largest, want)
		}
	}
	if err := errors.Join(s.errs...); err != nil {
		t.Error(err)
	}
}
