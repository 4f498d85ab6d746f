package verify_test

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/verify"
)

func TestReportIsTheSameInAnyOrder(t *testing.T) {
	problems := []storage.VerifyProblem{
		{File: "a", Text: "gone"}, {File: "a", FQN: "x", Text: "bytes"}, {File: "a", FQN: "x", Text: "shape"}, {File: "b", FQN: "a", Text: "bytes"},
	}
	var told int64
	f := verify.New(func(n int64) { told += n })
	var wg sync.WaitGroup
	for _, p := range problems {
		wg.Go(func() {
			f.Tell(10)
			f.Problem(p.File, p.FQN, p.Text)
			f.Chunks(2)
			f.File(10, 3)
		})
	}
	wg.Wait()
	want := &storage.VerifyReport{Files: 4, Chunks: 8, Bytes: 40, Unsummed: 12, Problems: problems}
	if d := cmp.Diff(want, f.Report()); d != "" || told != 40 {
		t.Errorf("%d bytes were told of; report (-want +got):\n%s", told, d)
	}
}

func TestNothingFound(t *testing.T) {
	f := verify.New(nil)
	f.Tell(1)
	if d := cmp.Diff(&storage.VerifyReport{Problems: []storage.VerifyProblem{}}, f.Report()); d != "" {
		t.Errorf("report (-want +got):\n%s", d)
	}
}

// A file that is gone is one problem, whichever check was first.
func TestFindingsOfAFileThatIsGone(t *testing.T) {
	for _, names := range [][]string{nil, {"x"}, {"x", "y"}} {
		f := verify.New(nil)
		f.Problem("a", "x", "no such file")
		f.Gone("a", names)
		f.Problem("a", "y", "no such file")
		f.Problem("b", "x", "another")
		got := f.Report().Problems
		want := []storage.VerifyProblem{{File: "a", FQNs: names, Text: "the file is gone"}, {File: "b", FQN: "x", Text: "another"}}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("problems (-want +got):\n%s", d)
		}
	}
}
