package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// cross sends err to another rank.
func cross(t *testing.T, err error) *RemoteError {
	t.Helper()
	b, mErr := NewRemoteError(err).MarshalBinary()
	if mErr != nil {
		t.Fatal(mErr)
	}
	got := new(RemoteError)
	must.Do(t, got.UnmarshalBinary(b))
	return got
}

var errOurs = errors.New("ours")

func TestErrorsIsHoldsOnTheOtherSide(t *testing.T) {
	RegisterError("group_test.errOurs", errOurs)
	RegisterError("group_test.errOurs", errOurs) // the same again is no harm
	_, notExist := os.Open("does/not/exist")
	for _, c := range []struct {
		err  error
		is   []error
		isnt error
	}{
		{context.Canceled, []error{context.Canceled}, context.DeadlineExceeded},
		{fmt.Errorf("wait: %w", context.DeadlineExceeded), []error{context.DeadlineExceeded}, context.Canceled},
		{notExist, []error{fs.ErrNotExist}, fs.ErrExist},
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, []error{syscall.ENOSPC}, syscall.EIO},
		{errors.Join(io.ErrUnexpectedEOF, fs.ErrPermission), []error{io.ErrUnexpectedEOF, fs.ErrPermission}, io.EOF},
		{&panicError{value: errOurs}, []error{ErrPanic, errOurs}, ErrGone},
		{&StepError{Failures: map[int]error{4: cross(t, errOurs)}}, []error{errOurs}, ErrDisagree},
		{errors.New("unknown"), nil, io.EOF},
	} {
		got := cross(t, c.err)
		if got.Error() != c.err.Error() {
			t.Errorf("text = %q; want %q", got, c.err)
		}
		for _, target := range c.is {
			if !errors.Is(got, target) {
				t.Errorf("errors.Is(%q, %q) = false; want true", got, target)
			}
		}
		if errors.Is(got, c.isnt) {
			t.Errorf("errors.Is(%q, %q) = true; want false", got, c.isnt)
		}
	}
}

func TestRemoteErrorKeepsTheErrorItselfWhereItHappened(t *testing.T) {
	err := errors.New("unregistered")
	if !errors.Is(NewRemoteError(err), err) {
		t.Error("errors.Is(NewRemoteError(err), err) = false; want true")
	}
	if errors.Is(cross(t, err), err) {
		t.Error("an error that is not registered was found on the other side")
	}
}

func TestRegisterErrorRefuses(t *testing.T) {
	for name, register := range map[string]func(){
		"a code that is taken":  func() { RegisterError("io.EOF", errOurs) },
		"an empty code":         func() { RegisterError("", errOurs) },
		"a long code":           func() { RegisterError(strings.Repeat("x", maxCode+1), errOurs) },
		"nil":                   func() { RegisterError("nil", nil) },
		"an incomparable error": func() { RegisterError("slice", incomparable{}) },
	} {
		if err := Catch(func() error { register(); return nil }); err == nil {
			t.Errorf("RegisterError of %s did not panic", name)
		}
	}
}

type incomparable []int

func (incomparable) Error() string { return "incomparable" }

// nilError panics in all its methods when nil, as many error types do.
type nilError struct{ err error }

func (e *nilError) Error() string { return e.err.Error() }
func (e *nilError) Unwrap() error { return e.err }

func TestRemoteErrorOfAnErrorThatPanics(t *testing.T) {
	if got := NewRemoteError((*nilError)(nil)); got.Text != "<nil>" || got.Codes != nil {
		t.Errorf("NewRemoteError of a nil pointer = %+v; want <nil>", got)
	}
	if got := NewRemoteError(&nilError{}); !strings.Contains(got.Text, "PANIC") {
		t.Errorf("NewRemoteError = %+v; want the panic told", got)
	}
}

func TestLongTextIsCutAtACharacter(t *testing.T) {
	got := cross(t, errors.New(strings.Repeat("ä", maxText)))
	if len(got.Text) > maxText || !utf8.ValidString(got.Text) || !strings.HasSuffix(got.Text, "ä… (cut)") {
		t.Errorf("text has %d bytes and ends in %q; want at most %d and a mark", len(got.Text), got.Text[len(got.Text)-12:], maxText)
	}
	if got := cross(t, errors.New("a\xffb")); got.Text != "a\uFFFDb" {
		t.Errorf("text = %q; want valid UTF-8", got.Text)
	}
}

func TestRemoteErrorOutOfBoundsIsNotEncoded(t *testing.T) {
	for _, e := range []*RemoteError{
		{Text: strings.Repeat("x", maxText+1)},
		{Codes: make([]string, maxCodes+1)},
		{Codes: []string{strings.Repeat("x", maxCode+1)}},
	} {
		if _, err := e.MarshalBinary(); !errors.Is(err, ErrInvalid) {
			t.Errorf("MarshalBinary = %v; want %v", err, ErrInvalid)
		}
	}
}

var ignoreLocal = cmpopts.IgnoreUnexported(RemoteError{})

func FuzzRemoteError(f *testing.F) {
	seed, err := NewRemoteError(fmt.Errorf("open: %w", fs.ErrNotExist)).MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add(seed[:len(seed)-1])
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again RemoteError
		if e.UnmarshalBinary(b) != nil {
			return
		}
		out, err := e.MarshalBinary()
		if err != nil {
			t.Fatalf("MarshalBinary of what was decoded = %v", err)
		}
		if err := again.UnmarshalBinary(out); err != nil {
			t.Fatalf("UnmarshalBinary of what was encoded = %v", err)
		}
		if d := cmp.Diff(e, again, ignoreLocal); d != "" {
			t.Errorf("decoded again differs (-first +second):\n%s", d)
		}
		if got := errors.Is(&e, fs.ErrNotExist); got != errors.Is(&again, fs.ErrNotExist) {
			t.Errorf("errors.Is = %v; differs when decoded again", got)
		}
	})
}
