package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

const (
	exitOK          = 0
	exitError       = 1
	exitInterrupted = 130
)

// exit is one way for a command to end.
type exit struct {
	code    int
	name    string // in JSON
	meaning string
	errs    []error // any of them, by errors.Is
	hint    string  // used if the command has no better one
}

// exits is the table of exit codes. The first row with an error of the chain
// counts; the last row is for all other errors.
var exits = []exit{
	{code: exitOK, name: "ok", meaning: "The command succeeded; a checked checkpoint is whole."},
	{code: exitInterrupted, name: "interrupted", meaning: "Interrupted by Ctrl-C or a signal."},
	{
		code: 2, name: "usage", meaning: "The command line is wrong.",
		errs: []error{errUsage, blob.ErrAddress, inspect.ErrPattern, recipe.ErrUnknown, recipe.ErrSyntax, recipe.ErrVariable, run.ErrPolicy},
	},
	{
		code: 6, name: "version", meaning: "This program cannot read that version of the format.",
		errs: []error{cairn.ErrVersion}, hint: "a newer cairn wrote it: use that one, or a newer one, to read it",
	},
	{
		code: 5, name: "corrupt", meaning: "The checkpoint is corrupt: bytes are not what was written, or files are missing.",
		errs: []error{cairn.ErrCorrupt}, hint: "'cairn verify' lists what is damaged; the rest can still be read",
	},
	{
		code: 9, name: "uncertain", meaning: "It is unknown whether a commit took place, or a service may still carry it out.",
		errs: []error{cairn.ErrUncertain}, hint: "look again later, or save to the same place again, which settles it",
	},
	{
		code: 4, name: "incomplete", meaning: "The checkpoint is incomplete: its save did not finish, or is under way.",
		errs: []error{cairn.ErrIncomplete}, hint: "'cairn repair' rebuilds the record if all data files of a save are there",
	},
	{
		code: 3, name: "not-found", meaning: "There is no checkpoint at PATH, or it has no such name, save or timeline.",
		errs: []error{cairn.ErrNotFound, cairn.ErrMissing, errNoSave, inspect.ErrNoTimeline, convert.ErrEmpty, fs.ErrNotExist, syscall.ENOTDIR},
	},
	{
		code: 7, name: "mismatch", meaning: "Things that should be equal or fit together do not.",
		errs: []error{cairn.ErrMismatch, cairn.ErrUnexpected, tensor.ErrCast, group.ErrDiffers, recipe.ErrIncomplete, view.ErrCheck},
	},
	{
		code: 8, name: "trouble", meaning: "Anything else went wrong in 'cairn diff', for which 1 means differences.",
		errs: []error{errTrouble},
	},
	{code: exitError, name: "error", meaning: "Anything else went wrong, 'cairn diff' found differences, or a check failed."},
}

func exitOf(err error) exit {
	for _, e := range exits {
		if slices.ContainsFunc(e.errs, func(target error) bool { return errors.Is(err, target) }) {
			return e
		}
	}
	return exits[len(exits)-1]
}

// errUsage marks the errors of a command line.
var errUsage = errors.New("wrong usage")

// usageError is an error of a command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }
func (e *usageError) Unwrap() error { return errUsage }

// usagef returns a usageError of cmd, with a hint at its help.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	err := &usageError{fmt.Sprintf(format, args...)}
	return withHint(err, fmt.Sprintf("see '%s --help'", cmd.CommandPath()))
}

// hintError is an error with advice.
type hintError struct {
	error
	hint string
}

func (e *hintError) Unwrap() error { return e.error }

// Hint returns the advice.
func (e *hintError) Hint() string { return e.hint }

// withHint adds advice to err, unless err is nil or hint is empty. The
// outermost hint counts.
func withHint(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return &hintError{err, hint}
}

// failure is an error as --json prints it.
type failure struct {
	Error string `json:"error"`
	Kind  string `json:"kind"`
	Code  int    `json:"code"`
	Hint  string `json:"hint,omitempty"`
	// Codes are the codes that the error has in messages of saver processes.
	Codes []string `json:"codes,omitempty"`
}

// fail reports err on stderr and returns the exit code.
func (o *output) fail(ctx context.Context, cmd *cobra.Command, err error) int {
	e := exitOf(err)
	f := failure{Error: oneLine(message(cmd, err)), Kind: e.name, Code: e.code, Hint: e.hint, Codes: group.NewRemoteError(err).Codes}
	if h, ok := errors.AsType[*hintError](err); ok {
		f.Hint = h.hint
	}
	f.Hint = hintOf(cmd, err, f.Hint)
	if end, ok := errors.AsType[*endError](err); ok {
		f.Kind, f.Code = end.kind, end.code
	} else if ctx.Err() != nil {
		f = failure{Error: "interrupted", Kind: "interrupted", Code: exitInterrupted}
	}
	if _, silent := errors.AsType[*silentError](err); silent {
		return f.Code
	}
	// An error that cannot be printed still has its code.
	if o.json {
		_ = o.encode(o.err, f)
		return f.Code
	}
	fmt.Fprintf(o.err, "%s: %s\n", cmd.CommandPath(), o.bad(clean(f.Error)))
	if f.Hint != "" {
		fmt.Fprintf(o.err, "hint: %s\n", f.Hint)
	}
	return f.Code
}

// goneHint is the advice about a checkpoint that has lost its bases. Its error says the rest.
const goneHint = "if the other folder is lost, 'cairn rm CHECKPOINT --force' removes this one; 'cairn latest RUN' prints the newest complete one"

// Advice about causes that all commands have in common.
const (
	fullHint       = "free some space there, or choose another place, and run the command again"
	permissionHint = "check the owner and the permissions of the folder ('ls -ld'), or run the command as another user"
)

// hintOf returns the advice about an error. hint is the advice that the command gives.
func hintOf(cmd *cobra.Command, err error, hint string) string {
	switch {
	case errors.Is(err, storage.ErrBaseGone):
		return goneHint
	case blob.IsFull(err):
		return fullHint
	case errors.Is(err, fs.ErrPermission) && !errors.Is(err, blob.ErrService):
		return cmp.Or(hint, permissionHint)
	case errors.Is(err, file.ErrFolder):
		return "choose another place"
	}
	return hint
}

// message returns the text of err, to be printed after the name of cmd. An error of
// the operation that cmd is named after does not repeat it: not "cairn verify:
// verify PATH: …".
func message(cmd *cobra.Command, err error) string {
	e, ok := errors.AsType[*cairn.Error](err)
	if !ok || e.Op != cmd.Name() || e.Error() != err.Error() {
		return err.Error()
	}
	return fmt.Sprintf("%s: %v", e.Where, e.Err)
}
