package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// maxText bounds the text of an error that crosses between ranks.
const maxText = 16 << 10

// errMalformed reports a message that no rank of this module would send.
var errMalformed = errors.New("malformed message")

// RemoteError is an error as it crosses between ranks: its text, and the codes
// of the registered errors that it wraps (see [RegisterError]), so that
// errors.Is finds them on the other side too.
type RemoteError struct {
	Text  string
	Codes []string
	// local is the error itself, on the rank where it happened.
	local error
}

// NewRemoteError returns the form in which err crosses between ranks. Its text
// is err's, valid UTF-8 and cut to 16 KiB; err stays in the chain.
func NewRemoteError(err error) *RemoteError {
	// fmt survives an Error method that panics, as that of a nil pointer.
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

// AppendBinary appends the error's text and codes to b.
func (e *RemoteError) AppendBinary(b []byte) ([]byte, error) {
	if len(e.Text) > maxText || len(e.Codes) > maxCodes {
		return nil, fmt.Errorf("encode error: %d bytes of text, %d codes: %w", len(e.Text), len(e.Codes), ErrInvalid)
	}
	for _, c := range e.Codes {
		if len(c) > maxCode {
			return nil, fmt.Errorf("encode error: code of %d bytes: %w", len(c), ErrInvalid)
		}
	}
	return e.append(b), nil
}

// append is AppendBinary for an error within bounds, as NewRemoteError and
// reader make them.
func (e *RemoteError) append(b []byte) []byte {
	b = appendString(b, e.Text)
	b = binary.AppendUvarint(b, uint64(len(e.Codes)))
	for _, c := range e.Codes {
		b = appendString(b, c)
	}
	return b
}

// MarshalBinary returns the error's text and codes as bytes.
func (e *RemoteError) MarshalBinary() ([]byte, error) { return e.AppendBinary(nil) }

// UnmarshalBinary sets e to what MarshalBinary wrote. Anything else is an
// error, however long the lengths in it claim to be.
func (e *RemoteError) UnmarshalBinary(b []byte) error {
	r := reader{rest: b}
	got := r.remoteError()
	if err := r.end(); err != nil {
		return fmt.Errorf("decode error: %w", err)
	}
	*e = *got
	return nil
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
