package group

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"sync"
	"syscall"
)

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
// where a code is empty, over 64 bytes or taken by another error, and where err
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
