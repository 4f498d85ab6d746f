package gcs

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob/remote"
)

const (
	hintCredentials = "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to the file of a key"
	hintPermission  = "the account may not do this: docs/object-storage.md lists the permissions that each operation needs"
	hintBucket      = "there is no such bucket: create it, or check its name"
)

// errBeyond reports a range that begins at the end of the object or after it.
var errBeyond = errors.New("the range lies outside the object")

// explain returns an error as remote.Service wants it.
func explain(err error) error {
	var answer *answerError
	var credential *credentialError
	var explained *remote.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &explained): // of remote.Transport
		return explained
	case errors.As(err, &answer):
		return explainAnswer(answer)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &credential):
		// http.Client wraps each error in a *url.Error, which is a net.Error too, so only the
		// cause says whether the network is at fault or the file of the key.
		var op *net.OpError
		var network net.Error
		passing := errors.As(credential.err, &op) || remote.IsUnreachable(credential.err) || errors.As(credential.err, &network) && network.Timeout()
		return &remote.Error{Err: fmt.Errorf("%w: %w", fs.ErrPermission, credential.err), Retry: passing, Hint: hintCredentials}
	}
	unreachable := remote.IsUnreachable(err)
	return &remote.Error{Err: err, Retry: true, Sent: !unreachable, Unreachable: unreachable} // the connection failed
}

// explainAnswer explains an answer of the service.
func explainAnswer(answer *answerError) error {
	text := answer.Error()
	e := &remote.Error{Err: errors.New(text), After: answer.after}
	because := func(cause error) { e.Err = fmt.Errorf("%w: %s", cause, text) }
	switch code := answer.code; {
	case code == http.StatusNotFound:
		because(fs.ErrNotExist)
		if strings.Contains(strings.ToLower(text), "bucket does not exist") {
			e.Hint = hintBucket
		}
	case code == http.StatusPreconditionFailed:
		because(remote.ErrCondition)
	case code == http.StatusRequestedRangeNotSatisfiable:
		because(errBeyond)
	case code == http.StatusUnauthorized:
		because(fs.ErrPermission)
		e.Hint = "the credentials are wrong or have expired: " + hintCredentials
	case code == http.StatusForbidden:
		because(fs.ErrPermission)
		e.Hint = hintPermission
	case code == http.StatusBadRequest:
		e.Retry = strings.Contains(strings.ToLower(text), "crc32c") // bytes were changed on their way
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests:
		e.Retry = true
	case code >= 500:
		e.Retry, e.Sent = true, true
	}
	return e
}

// answerError is an answer of the service that refuses a request.
type answerError struct {
	code    int
	message string
	after   time.Duration
}

func (e *answerError) Error() string { return fmt.Sprintf("%s (status %d)", e.message, e.code) }

// newAnswerError returns the error of an answer with a body: in JSON or, for reads, in XML.
func newAnswerError(answer *http.Response, body []byte) *answerError {
	e := &answerError{code: answer.StatusCode, after: after(answer.Header)}
	var inJSON struct{ Error struct{ Message string } }
	var inXML struct{ Code, Message, Details string }
	switch {
	case json.Unmarshal(body, &inJSON) == nil && inJSON.Error.Message != "":
		e.message = inJSON.Error.Message
	case xml.Unmarshal(body, &inXML) == nil:
		e.message = strings.TrimSpace(inXML.Code + ": " + inXML.Message + " " + inXML.Details)
	}
	e.message = cmp.Or(strings.Trim(e.message, ": "), http.StatusText(e.code))
	return e
}

// after returns how long the service wants clients to wait.
func after(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return min(time.Duration(n)*time.Second, 30*time.Second)
}
