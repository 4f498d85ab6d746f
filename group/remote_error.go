package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/internal/wire"
)

// maxText bounds the text of an error that crosses between ranks.
const maxText = 16 << 10

// RemoteError is an error as it crosses between ranks: its text, and the codes
// of the registered errors that it wraps (see [RegisterError]), so that
// errors.Is finds them on the other side too.
type RemoteError struct {
	Text  string   `json:"text"`
	Codes []string `json:"codes,omitempty"`
	// local is the error itself, on the rank where it happened.
	local error
}

// NewRemoteError returns the form in which err crosses between ranks, which may be
// err itself. Its text is err's, valid UTF-8 and cut to 16 KiB; err stays in the chain.
// It can always be marshalled.
func NewRemoteError(err error) *RemoteError {
	if e, ok := err.(*RemoteError); ok && e.isBounded() && utf8.ValidString(e.Text) {
		return e
	}
	// fmt survives an Error method that panics, for example of a nil pointer.
	text := cut(strings.ToValidUTF8(fmt.Sprint(err), "\uFFFD"), maxText)
	return &RemoteError{Text: text, Codes: codesOf(err), local: err}
}

// Error returns the text.
func (e *RemoteError) Error() string { return e.Text }

// Is reports whether one of the codes stands for target.
func (e *RemoteError) Is(target error) bool {
	for _, s := range sentinels() {
		if slices.Contains(e.Codes, s.code) && errors.Is(s.err, target) {
			return true
		}
	}
	return false
}

// Unwrap returns the error itself on the rank where it happened, else nil.
func (e *RemoteError) Unwrap() error { return e.local }

// MarshalBinary returns the error's text and codes as bytes.
func (e *RemoteError) MarshalBinary() ([]byte, error) {
	if !e.isBounded() {
		return nil, fmt.Errorf("encode error with %d bytes of text and %d codes: %w", len(e.Text), len(e.Codes), ErrInvalid)
	}
	var w wire.Writer
	e.put(&w)
	return w.B, nil
}

func (e *RemoteError) isBounded() bool {
	isLong := func(code string) bool { return len(code) > maxCode }
	return len(e.Text) <= maxText && len(e.Codes) <= maxCodes && !slices.ContainsFunc(e.Codes, isLong)
}

func (e *RemoteError) put(w *wire.Writer) {
	w.String(e.Text)
	w.Uvarint(uint64(len(e.Codes)))
	for _, c := range e.Codes {
		w.String(c)
	}
}

// UnmarshalBinary decodes the result of MarshalBinary into e, and returns an error for any
// other bytes.
func (e *RemoteError) UnmarshalBinary(b []byte) error {
	r := wire.NewReader(b)
	got := getRemoteError(r)
	if err := r.Done(); err != nil {
		return fmt.Errorf("decode error: %w", err)
	}
	*e = *got
	return nil
}

func getRemoteError(r *wire.Reader) *RemoteError {
	text := func(limit int) string { return string(r.Raw(r.CountMax(limit))) }
	e := &RemoteError{Text: text(maxText)}
	for range r.CountMax(maxCodes) {
		e.Codes = append(e.Codes, text(maxCode))
	}
	return e
}

// cut shortens text to at most n bytes, at the end of a character, and shows
// that it did.
func cut(text string, n int) string {
	const mark = "… (cut)"
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:max(0, n-len(mark))], "") + mark
}

// maxCode bounds the length of a code, maxCodes how many of them an error
// carries.
const (
	maxCode  = 64
	maxCodes = 32
)

type sentinel struct {
	code string
	err  error
}

var (
	registryMu sync.RWMutex
	registry   = []sentinel{ // guarded by registryMu; only grows
		{"context.Canceled", context.Canceled},
		{"group.alarm", errAlarm},
		{"context.DeadlineExceeded", context.DeadlineExceeded},
		{"errors.ErrUnsupported", errors.ErrUnsupported},
		{"fs.ErrClosed", fs.ErrClosed},
		{"fs.ErrExist", fs.ErrExist},
		{"fs.ErrInvalid", fs.ErrInvalid},
		{"fs.ErrNotExist", fs.ErrNotExist},
		{"fs.ErrPermission", fs.ErrPermission},
		{"group.ErrDiffers", ErrDiffers},
		{"group.ErrGone", ErrGone},
		{"group.ErrLeft", ErrLeft},
		{"group.ErrInvalid", ErrInvalid},
		{"group.ErrMismatch", ErrDisagree},
		{"group.ErrPanic", ErrPanic},
		{"io.EOF", io.EOF},
		{"io.ErrClosedPipe", io.ErrClosedPipe},
		{"io.ErrShortWrite", io.ErrShortWrite},
		{"io.ErrUnexpectedEOF", io.ErrUnexpectedEOF},
		{"os.ErrDeadlineExceeded", os.ErrDeadlineExceeded},
		{"syscall.EDQUOT", syscall.EDQUOT},
		{"syscall.EIO", syscall.EIO},
		{"syscall.ENOSPC", syscall.ENOSPC},
		{"syscall.EROFS", syscall.EROFS},
	}
)

// RegisterError makes errors.Is find err in errors that came from other ranks.
// The code stands for it there, so all ranks must register the same pairs;
// "package.Name" is a good one. The errors of context, io and io/fs that
// callers test for, some of syscall's and this package's own are known already.
//
// It is meant for variable initialisation and panics, as such functions do,
// if a code is empty, over 64 bytes or taken by another error, and if err
// cannot be compared.
func RegisterError(code string, err error) {
	if err == nil || !reflect.TypeOf(err).Comparable() {
		panic(fmt.Sprintf("group: register error %q: %T cannot be compared", code, err))
	}
	if code == "" || len(code) > maxCode {
		panic(fmt.Sprintf("group: register error %q: code of %d bytes", code, len(code)))
	}

	registryMu.Lock()
	defer registryMu.Unlock()

	for _, s := range registry {
		if s.code != code {
			continue
		}
		if s.err != err {
			panic(fmt.Sprintf("group: register error %q: code stands for another error", code))
		}
		return
	}

	registry = append(registry, sentinel{code, err})
}

func sentinels() []sentinel {
	registryMu.RLock()
	defer registryMu.RUnlock()
	return registry
}

// codesOf returns the codes of the registered errors that err wraps.
func codesOf(err error) (codes []string) {
	// The error is the user's and may panic when asked; its text still counts.
	defer func() { _ = recover() }()
	for _, s := range sentinels() {
		if len(codes) < maxCodes && errors.Is(err, s.err) {
			codes = append(codes, s.code)
		}
	}
	return codes
}
