package fault_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/blobtest"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errNo = errors.New("no")

func TestStore(t *testing.T) {
	blobtest.Run(t, func(*testing.T) blob.Store { return fault.New(new(mem.Store)) })
}

// seeded returns a store that holds x.
func seeded(t *testing.T) *mem.Store {
	t.Helper()
	s := new(mem.Store)
	if _, err := blob.WriteAll(t.Context(), s, "x", []byte("hello"), nil); err != nil {
		t.Fatal(err)
	}
	return s
}

// touch does every operation once, in a fixed order, and returns their errors.
func touch(ctx context.Context, s *fault.Store) map[string]error {
	errs := map[string]error{}
	r, err := s.Open(ctx, "x")
	if errs["open"] = err; err == nil {
		errs["read"] = r.ReadAt(ctx, make([]byte, 5), 0)
		r.Close()
	}
	_, errs["stat"] = s.Stat(ctx, "x")
	for _, err := range s.List(ctx, "") {
		errs["list"] = errors.Join(errs["list"], err)
	}
	w, err := s.Create(ctx, "y", nil)
	if errs["create"] = err; err == nil {
		errs["write"] = w.WriteAt(ctx, []byte("hi"), 0)
		_, errs["commit"] = w.Commit(ctx)
		w.Abort()
	}
	if w, err := s.Create(ctx, "z", nil); err == nil {
		errs["abort"] = w.Abort()
	}
	errs["remove"] = s.Remove(ctx, "y")
	_, errs["sweep"] = s.SweepTemp(ctx, "", 0)
	return errs
}

func TestOpsLogsEveryOperation(t *testing.T) {
	s := fault.New(seeded(t))
	for op, err := range touch(t.Context(), s) {
		if err != nil {
			t.Errorf("%s = %v; want nil", op, err)
		}
	}
	want := strings.TrimLeft(`
open "x"
read "x" 0+5
stat "x"
list ""
create "y"
write "y" 0+2
commit "y"
create "z"
abort "z"
remove "y"
sweep ""
`, "\n")
	ops := s.Ops()
	if diff := cmp.Diff(want, ops.String()); diff != "" {
		t.Errorf("Ops, -want +got:\n%s", diff)
	}
	for kinds, want := range map[fault.Op]int64{fault.Any: 11, fault.Mutating: 7, fault.Reading: 4, fault.Create: 2} {
		if got := ops.Count(kinds); got != want {
			t.Errorf("Count(%v) = %d; want %d", kinds, got, want)
		}
	}
	for kinds, want := range map[fault.Op]int64{fault.Any: 7, fault.Read: 5, fault.Write: 2, fault.Stat: 0} {
		if got := ops.Bytes(kinds); got != want {
			t.Errorf("Bytes(%v) = %d; want %d", kinds, got, want)
		}
	}
}

func TestFailByKind(t *testing.T) {
	for op := range touch(t.Context(), fault.New(seeded(t))) {
		for _, do := range []fault.Action{fault.Fail(errNo), fault.FailLate(errNo)} {
			s := fault.New(seeded(t), fault.Rule{On: kind(op), Times: -1, Do: do})
			err := touch(t.Context(), s)[op]
			e, ok := errors.AsType[*blob.Error](err)
			if !errors.Is(err, errNo) || !ok || e.Op != op {
				t.Errorf("%s with a rule against it = %v; want a *blob.Error that wraps %v", op, err, errNo)
			}
		}
	}
}

// kind returns the Op of that name.
func kind(name string) fault.Op {
	for op := fault.Op(1); ; op <<= 1 {
		if op.String() == name {
			return op
		}
	}
}

func TestRuleCountsMatchingOperations(t *testing.T) {
	ctx := t.Context()
	s := fault.New(seeded(t), fault.Rule{On: fault.Stat | fault.Open, Match: fault.Named("x"), Nth: 2, Times: 2, Do: fault.Fail(errNo)})
	var got []bool
	for range 5 {
		s.Stat(ctx, "other")
		_, err := s.Stat(ctx, "x")
		got = append(got, errors.Is(err, errNo))
	}
	if diff := cmp.Diff([]bool{false, true, true, false, false}, got); diff != "" {
		t.Errorf("Stat of x failed, -want +got:\n%s", diff)
	}
}

func TestFailedCommitLeavesNoObjectAndFailedLateDoes(t *testing.T) {
	for _, c := range []struct {
		do   fault.Action
		want error
	}{{fault.Fail(errNo), fs.ErrNotExist}, {fault.FailLate(errNo), nil}, {fault.Crash(), fs.ErrNotExist}, {fault.CrashLate(), nil}} {
		inner := seeded(t)
		s := fault.New(inner, fault.Rule{On: fault.Commit, Do: c.do})
		if _, err := blob.WriteAll(t.Context(), s, "y", []byte("hi"), nil); err == nil {
			t.Error("WriteAll = nil; want an error")
		}
		if _, err := inner.Stat(t.Context(), "y"); !errors.Is(err, c.want) {
			t.Errorf("Stat behind %+v = %v; want %v", c.do, err, c.want)
		}
	}
}

func TestAllOperationsFailAfterACrash(t *testing.T) {
	inner := seeded(t)
	s := fault.New(inner, fault.Rule{On: fault.Remove, Do: fault.Crash()})
	ctx := t.Context()
	w := must.Get(s.Create(ctx, "y", nil))(t)
	r := must.Get(s.Open(ctx, "x"))(t)
	defer r.Close()
	if err := s.Remove(ctx, "x"); !errors.Is(err, fault.ErrCrashed) || !s.Crashed() {
		t.Errorf("Remove = %v, Crashed = %v; want ErrCrashed", err, s.Crashed())
	}
	before := s.Ops().Count(fault.Any)
	errs := touch(ctx, s)
	errs["read"] = r.ReadAt(ctx, make([]byte, 1), 0)
	errs["write"] = w.WriteAt(ctx, []byte("hi"), 0)
	errs["abort"] = w.Abort()
	for op, err := range errs {
		if !errors.Is(err, fault.ErrCrashed) {
			t.Errorf("%s after the crash = %v; want ErrCrashed", op, err)
		}
	}
	if after := s.Ops().Count(fault.Any); after != before {
		t.Errorf("%d operations after the crash; want them uncounted", after-before)
	}
	if _, err := inner.Stat(ctx, "x"); err != nil {
		t.Errorf("Stat of x = %v; want it still there", err)
	}
}

func TestCrashInTheMiddleOfAList(t *testing.T) {
	inner := seeded(t)
	if _, err := blob.WriteAll(t.Context(), inner, "y", nil, nil); err != nil {
		t.Fatal(err)
	}
	s := fault.New(inner, fault.CrashAt(1))
	var last error
	n := 0
	for _, err := range s.List(t.Context(), "") {
		last = err
		n++
		s.Remove(t.Context(), "x")
	}
	if n != 2 || !errors.Is(last, fault.ErrCrashed) {
		t.Errorf("List yielded %d times, last %v; want 2 and ErrCrashed", n, last)
	}
}

// TestCrashAtEveryOperation runs the loop of the package comment: two objects
// are written, the second refers to the first.
func TestCrashAtEveryOperation(t *testing.T) {
	for _, rule := range []func(int64) fault.Rule{fault.CrashAt, fault.CrashLateAt} {
		n := int64(1)
		for ; ; n++ {
			inner := new(mem.Store)
			s := fault.New(inner, rule(n))
			err := writeTwo(t.Context(), s)
			_, data := inner.Stat(t.Context(), "data")
			_, record := inner.Stat(t.Context(), "record")
			if record == nil && data != nil {
				t.Errorf("crash at %d: the record is there without the data", n)
			}
			if err == nil && record != nil {
				t.Errorf("crash at %d: success without a record", n)
			}
			if !s.Crashed() {
				break
			}
			if !errors.Is(err, fault.ErrCrashed) {
				t.Errorf("crash at %d: %v; want ErrCrashed", n, err)
			}
		}
		if n != 7 {
			t.Errorf("the work ended before operation %d; want 7: two objects take six", n)
		}
	}
}

func writeTwo(ctx context.Context, s blob.Store) error {
	for _, name := range []string{"data", "record"} {
		if _, err := blob.WriteAll(ctx, s, name, []byte(name), nil); err != nil {
			return err
		}
	}
	return nil
}

func TestCrashLeavesTheTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	inner := must.Get(file.Open(dir, nil))(t)
	s := fault.New(inner, fault.Rule{On: fault.Commit, Do: fault.Crash()})
	if _, err := blob.WriteAll(t.Context(), s, "x", []byte("hi"), nil); !errors.Is(err, fault.ErrCrashed) {
		t.Errorf("WriteAll = %v; want ErrCrashed", err)
	}
	for info := range inner.List(t.Context(), "") {
		t.Errorf("List has %+v; want nothing", info)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the directory holds %v, %v; want the temporary file", left, err)
	}
}

func TestDelayEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fault.New(seeded(t), fault.Rule{On: fault.Stat, Times: -1, Do: fault.Delay(time.Hour)})
		start := time.Now()
		if _, err := s.Stat(t.Context(), "x"); err != nil || time.Since(start) != time.Hour {
			t.Errorf("Stat = %v after %v; want nil after an hour", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errNo)
		defer cancel()
		start = time.Now()
		if _, err := s.Stat(ctx, "x"); !errors.Is(err, errNo) || time.Since(start) != time.Minute {
			t.Errorf("Stat = %v after %v; want %v after a minute", err, time.Since(start), errNo)
		}
	})
}

func TestCrashReachesDelayedOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := seeded(t)
		s := fault.New(inner, fault.Rule{On: fault.Remove, Do: fault.Delay(time.Hour)}, fault.Rule{On: fault.Stat, Do: fault.Crash()})
		done := make(chan error)
		go func() { done <- s.Remove(t.Context(), "x") }()
		synctest.Wait()
		s.Stat(t.Context(), "x")
		if err := <-done; !errors.Is(err, fault.ErrCrashed) {
			t.Errorf("Remove = %v; want ErrCrashed", err)
		}
		if _, err := inner.Stat(t.Context(), "x"); err != nil {
			t.Errorf("Stat of x = %v; want it still there", err)
		}
	})
}
