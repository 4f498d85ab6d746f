package cache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

// childEnv names the entry of children that a copy of this test runs instead of its tests.
const childEnv = "CAIRN_BLOB_CACHE_CHILD"

// children are functions for copies of this test. They get arguments.
var children = map[string]func(args []string) error{}

func TestMain(m *testing.M) {
	if run := children[os.Getenv(childEnv)]; run != nil {
		if err := run(os.Args[1:]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// service is a folder of objects with versions. It logs reads to a file, because several
// processes use it.
type service struct {
	*file.Store
	log   string // empty: reads are not logged
	delay time.Duration
}

func openService(dir, log string) (*service, error) {
	s, err := file.Open(dir, nil)
	return &service{Store: s, log: log}, err
}

func (s *service) Versions() bool { return true }

func (s *service) note(op string, n int) error {
	if s.log == "" {
		return nil
	}
	f, err := os.OpenFile(s.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s %d\n", op, n)
	return err
}

func (s *service) Stat(ctx context.Context, name string) (blob.Info, error) {
	if err := s.note("stat", 0); err != nil {
		return blob.Info{}, err
	}
	return s.stat(ctx, name)
}

func (s *service) stat(ctx context.Context, name string) (blob.Info, error) {
	info, err := s.Store.Stat(ctx, name)
	info.Version = info.ModTime.Format(time.RFC3339Nano)
	return info, err
}

func (s *service) Open(ctx context.Context, name string) (blob.Reader, error) {
	r, err := s.open(ctx, name)
	if err != nil {
		return nil, err
	}
	r.known.Store(true)
	return r, nil
}

// OpenKnown returns a reader that does not know its version before its first read.
func (s *service) OpenKnown(ctx context.Context, o blob.Info) (blob.Reader, error) {
	r, err := s.open(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	if o.Version != "" {
		if r.version != o.Version {
			return nil, errors.Join(blob.ErrChanged, r.Close())
		}
		r.known.Store(true)
	}
	return r, nil
}

func (s *service) open(ctx context.Context, name string) (*serviceReader, error) {
	info, err := s.stat(ctx, name)
	if err != nil {
		return nil, err
	}
	r, err := s.Store.Open(ctx, name)
	return &serviceReader{Reader: r, s: s, version: info.Version}, err
}

type serviceReader struct {
	blob.Reader
	s       *service
	version string
	known   atomic.Bool
}

func (r *serviceReader) Version() string {
	if !r.known.Load() {
		return ""
	}
	return r.version
}

func (r *serviceReader) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := r.s.note("read", len(p)); err != nil {
		return err
	}
	if err := sleep(ctx, r.s.delay); err != nil {
		return err
	}
	err := r.Reader.ReadAt(ctx, p, off)
	r.known.Store(true)
	return err
}
