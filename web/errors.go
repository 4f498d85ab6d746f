package web

import (
	"io/fs"
	"net/http"
	"strconv"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/storage"
)

// The kinds of errors. docs/web.md describes them.
const (
	KindBadRequest   = "bad_request"
	KindUnauthorized = "unauthorized"
	KindForbidden    = "forbidden"
	KindMethod       = "method"
	KindNotFound     = "not_found"
	KindNoRun        = "no_run"
	KindNoTimeline   = "no_timeline"
	KindGone         = "gone"
	KindIncomplete   = "incomplete"
	KindUnderWay     = "under_way"
	KindVersion      = "version"
	KindCorrupt      = "corrupt"
	KindRecipe       = "recipe"
	KindClosed       = "closed"
	KindInternal     = "internal"
)

// statuses are the HTTP status codes of the kinds.
var statuses = map[string]int{
	KindBadRequest: http.StatusBadRequest, KindUnauthorized: http.StatusUnauthorized, KindForbidden: http.StatusForbidden,
	KindMethod: http.StatusMethodNotAllowed, KindNotFound: http.StatusNotFound, KindNoRun: http.StatusNotFound,
	KindNoTimeline: http.StatusNotFound, KindGone: http.StatusGone, KindIncomplete: http.StatusConflict,
	KindUnderWay: http.StatusConflict, KindVersion: http.StatusUnprocessableEntity, KindCorrupt: http.StatusUnprocessableEntity,
	KindRecipe: http.StatusUnprocessableEntity, KindClosed: http.StatusServiceUnavailable, KindInternal: http.StatusInternalServerError,
}

// Error is an answer that is an error.
type Error struct {
	// Kind is one of the constants.
	Kind string `json:"kind"`
	// Message describes the problem. Empty: the text of Err.
	Message string `json:"message"`
	// Hint is advice. It may be empty.
	Hint string `json:"hint"`
	// Err is the cause, or nil.
	Err error `json:"-"`
}

func (e *Error) Error() string {
	if e.Message == "" && e.Err != nil {
		return e.Err.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// errClosed is the error of questions after Close.
var errClosed = &Error{Kind: KindClosed, Message: "the server is ending", Hint: "start it again: 'cairn web'"}

// badRequest returns the error of a question that is wrong.
func badRequest(message, hint string) error {
	return &Error{Kind: KindBadRequest, Message: message, Hint: hint}
}

// removed returns the error of a checkpoint that was listed and is not there any more.
func removed(id string) error {
	return &Error{Kind: KindGone, Message: "the checkpoint " + quote(id) + " was removed meanwhile", Hint: "choose another checkpoint; reload the page for the list of those that are left"}
}

// kinds are the kinds of errors of other packages. The first one that is in the chain counts.
var kinds = []struct {
	err  error
	kind string
}{
	{inspect.ErrNoTimeline, KindNoTimeline},
	{inspect.ErrPattern, KindBadRequest},
	{inspect.ErrIndex, KindBadRequest},
	{storage.ErrChanged, KindGone},
	{storage.ErrRemoving, KindGone},
	{storage.ErrVersion, KindVersion},
	{storage.ErrUnderWay, KindUnderWay},
	{storage.ErrCorrupt, KindCorrupt},
	{storage.ErrIncomplete, KindIncomplete},
	{storage.ErrNotFound, KindNotFound},
	{fs.ErrNotExist, KindNotFound},
}

// hinter is an error with advice.
type hinter interface {
	error
	Hint() string
}

// quote returns a text of a request for a message, and not more of it than people read.
func quote(s string) string {
	const most = 200
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
