package group

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

func TestValuesCrossUnchangedAndUncopied(t *testing.T) {
	for _, v := range [][]byte{nil, {}, {0}, []byte("{}"), {markValue}, {markFailures}, {markFailures, 1, 2}, {markValue, markValue}} {
		msg := valueMessage(v)
		got, ok := valueOf(msg)
		if !ok || !bytes.Equal(got, v) {
			t.Errorf("valueOf(valueMessage(%x)) = %x, %v; want the value", v, got, ok)
		}
		if len(v) > 0 && v[0] < markValue && &msg[0] != &v[0] {
			t.Errorf("valueMessage(%x) copied the value", v)
		}
	}
}

func TestFailuresCross(t *testing.T) {
	want := failures{
		0: NewRemoteError(errors.New("disk on fire")),
		7: NewRemoteError(fmt.Errorf("open: %w", fs.ErrNotExist)),
	}
	msg := want.message()
	if _, ok := valueOf(msg); ok {
		t.Error("valueOf took failures for a value")
	}
	got := must.Get(failuresOf(msg, 8))(t)
	if d := cmp.Diff(want, got, ignoreLocal); d != "" {
		t.Errorf("failures differ (-want +got):\n%s", d)
	}
}

func TestManyFailuresShareABudget(t *testing.T) {
	const n = 2000
	f := make(failures)
	for r := range n {
		f[r] = NewRemoteError(errors.New(strings.Repeat("x", maxText)))
	}
	msg := f.message()
	if len(msg) > textBudget+n*16 {
		t.Errorf("message has %d bytes; want about %d", len(msg), textBudget)
	}
	got, err := failuresOf(msg, n)
	if err != nil || len(got) != n || len(got[n-1].Text) < minText {
		t.Errorf("failuresOf = %d failures, %v; want %d, each with some text", len(got), err, n)
	}
}

func TestMalformedFailures(t *testing.T) {
	one := must.Get(NewRemoteError(errors.New("x")).MarshalBinary())(t)
	entry := func(rank byte) []byte { return append([]byte{rank}, one...) }
	for name, msg := range map[string][]byte{
		"empty":              nil,
		"a value":            []byte("{}"),
		"no count":           {markFailures},
		"no failures":        {markFailures, 0},
		"more than ranks":    {markFailures, 5},
		"fewer than claimed": append([]byte{markFailures, 2}, entry(0)...),
		"rank out of range":  append([]byte{markFailures, 1}, entry(4)...),
		"ranks out of order": concat([]byte{markFailures, 2}, entry(2), entry(1)),
		"a rank twice":       concat([]byte{markFailures, 2}, entry(2), entry(2)),
		"bytes after":        concat([]byte{markFailures, 1}, entry(0), []byte{0}),
		"a huge text":        {markFailures, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"a huge count":       {markFailures, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
	} {
		if f, err := failuresOf(msg, 4); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: failuresOf = %v, %v; want %v", name, f, err, wire.ErrMalformed)
		}
	}
}

func concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// A message that no step of ours sends must still end the step on all ranks,
// with the sender named.
func TestTallyOfMalformedMessages(t *testing.T) {
	other := failures{1: NewRemoteError(errors.New("not mine"))}.message()
	f := new(round).tally([][]byte{[]byte("ok"), {markFailures}, nil, other})
	if len(f) != 2 || f[1] == nil || f[3] == nil {
		t.Fatalf("tally = %v; want ranks 1 and 3", f)
	}
	r := &round{g: Solo(), step: "write"}
	const want = "write: verdict on the step: malformed encoding: byte 1: the input ends inside a varint"
	if err := r.failed([]byte{markFailures}); err.Error() != want {
		t.Errorf("failed = %q; want %q", err, want)
	}
}

func FuzzFailures(f *testing.F) {
	two := failures{
		0: NewRemoteError(errors.New("disk on fire")),
		7: NewRemoteError(fmt.Errorf("open: %w", fs.ErrNotExist)),
	}.message()
	f.Add(two, 8)
	f.Add(two, 7)
	f.Add([]byte{markFailures, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f}, 1)
	f.Add([]byte{markValue}, 1)
	f.Fuzz(func(t *testing.T, msg []byte, size int) {
		got, err := failuresOf(msg, min(max(size, 1), 1<<16))
		if err != nil {
			return
		}
		again, err := failuresOf(got.message(), min(max(size, 1), 1<<16))
		if err != nil {
			t.Fatalf("failuresOf of what was encoded = %v", err)
		}
		if len(again) != len(got) {
			t.Errorf("%d failures; %d when encoded again", len(got), len(again))
		}
		for rank, e := range got {
			limit := max(minText, min(maxText, textBudget/len(got)))
			if again[rank].Text != cut(e.Text, limit) || !cmp.Equal(again[rank].Codes, e.Codes) {
				t.Errorf("rank %d: %+v; %+v when encoded again", rank, e, again[rank])
			}
		}
	})
}

func TestInParallelRunsConcurrently(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		running.Add(4)
		bad := errors.New("bad")
		errs := inParallel(40, func(i int) error {
			if i < 4 { // each of the first four waits for the other three
				running.Done()
				running.Wait()
			}
			switch i {
			case 7:
				return bad
			case 30:
				panic("thirty")
			}
			return nil
		})
		for i, err := range errs {
			if want := map[int]error{7: bad, 30: ErrPanic}[i]; !errors.Is(err, want) {
				t.Errorf("error of call %d = %v; want %v", i, err, want)
			}
		}
	})
}

func FuzzDecodeOutcome(f *testing.F) {
	f.Add(EncodeOutcome([]byte("value"), nil))
	f.Add(EncodeOutcome([]byte{markFailures}, nil))
	f.Add(EncodeOutcome(nil, fs.ErrNotExist))
	f.Fuzz(func(t *testing.T, msg []byte) {
		v, err := DecodeOutcome(msg)
		if _, ok := err.(*RemoteError); err != nil && !ok {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Errorf("DecodeOutcome(%x) = %v; want %v", msg, err, wire.ErrMalformed)
			}
			return
		}
		again, got := DecodeOutcome(EncodeOutcome(v, err))
		if !bytes.Equal(again, v) || fmt.Sprint(got) != fmt.Sprint(err) {
			t.Errorf("outcome %q, %v comes back as %q, %v", v, err, again, got)
		}
	})
}
