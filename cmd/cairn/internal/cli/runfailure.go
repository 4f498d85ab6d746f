package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
)

// endError is an error with an exit code of its own, as launchers have them.
type endError struct {
	error
	kind string
	code int
}

func (e *endError) Unwrap() error { return e.error }

// exitReader is the exit code of who writes for a reader that has gone: 128 and
// the number of SIGPIPE, as shells count.
const exitReader = 141

// runFailure says how a job that did not go well is to end.
func runFailure(cmd *cobra.Command, program string, err error) error {
	rank, failed := errors.AsType[*launch.ExitError](err)
	ended, signalled := errors.AsType[*launch.SignalError](err)
	wrong, misused := errors.AsType[*launch.ConfigError](err)
	logs, unlogged := errors.AsType[*launch.LogError](err)
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case failed:
		return &endError{err, "rank", rank.Code}
	case signalled:
		return &endError{err, "signal", ended.Code}
	case misused:
		return usagef(cmd, "%v", wrong)
	case unlogged:
		return logFailure(cmd, logs)
	case errors.Is(err, launch.ErrTimeout):
		return &endError{err, "timeout", 124}
	case errors.Is(err, launch.ErrReader), errors.Is(err, syscall.EPIPE):
		return &endError{err, "reader", exitReader}
	}
	return programFailure(program, err)
}

// isSaid reports whether an error needs no message: it was printed already, or
// the reader of the output is gone.
func isSaid(err error) bool { return launch.Told(err) || errors.Is(err, launch.ErrReader) }

// logFailure says what is wrong with --log-dir.
func logFailure(cmd *cobra.Command, e *launch.LogError) error {
	err := usagef(cmd, "--log-dir %s: %v", quoteArg(e.Dir), e.Err)
	if errors.Is(e, fs.ErrExist) {
		return withHint(err, "choose another folder, or replace the logs with --overwrite")
	}
	return err
}

// programFailure says why a program was not started. The code is 127 if the
// program or its interpreter does not exist, and 126 if it cannot be run.
func programFailure(program string, err error) error {
	_, looked := errors.AsType[*exec.Error](err)
	path, started := errors.AsType[*fs.PathError](err)
	started = started && path.Op == "fork/exec"
	absent := errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
	switch {
	case looked && absent:
		return &endError{withHint(err, programHint(program)), "not-found", 127}
	case started && absent:
		hint := fmt.Sprintf("%s is there: what is not is the interpreter that it names, or a library", quoteArg(program))
		return &endError{withHint(err, hint), "not-found", 127}
	case looked, started && isUnfit(err):
		return &endError{err, "not-executable", 126}
	}
	return &endError{err, exits[len(exits)-1].name, exitError}
}

// isUnfit reports whether an error says that a file is no program that may be run.
func isUnfit(err error) bool {
	for _, target := range []error{fs.ErrPermission, syscall.ENOEXEC, syscall.EISDIR, syscall.ELOOP, syscall.E2BIG} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// programHint says where a program may be that was not found.
func programHint(program string) string {
	if base := filepath.Base(program); base != program {
		if _, err := exec.LookPath(base); err == nil {
			return fmt.Sprintf("for the one on the PATH, write %s", quoteArg(base))
		}
		if dir, err := os.Getwd(); err == nil && !filepath.IsAbs(program) {
			return fmt.Sprintf("it was looked for in %s", quoteArg(dir))
		}
		return ""
	}
	if _, err := os.Stat(program); err == nil {
		return fmt.Sprintf("for the one in this folder, write ./%s", program)
	}
	return "it was looked for on the PATH; for a program elsewhere, write its path"
}
