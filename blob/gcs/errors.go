package gcs

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/storage"
	"google.golang.org/api/googleapi"

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
	var api *googleapi.Error
	var credential *credentialError
	var explained *remote.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &explained): // of remote.Transport
		return explained
	case errors.As(err, &api):
		return explainAnswer(err, api)
	case errors.Is(err, storage.ErrBucketNotExist):
		return &remote.Error{Err: fmt.Errorf("%w: %w", fs.ErrNotExist, err), Hint: hintBucket}
	case errors.Is(err, storage.ErrObjectNotExist):
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &credential):
		// The client of the SDK wraps each error in a *url.Error, which is a net.Error too, so
		// only the cause says whether the network is at fault or the file of the key.
		var op *net.OpError
		var network net.Error
		passing := errors.As(credential.err, &op) || remote.IsUnreachable(credential.err) || errors.As(credential.err, &network) && network.Timeout()
		return &remote.Error{Err: fmt.Errorf("%w: %w", fs.ErrPermission, credential.err), Retry: passing, Hint: hintCredentials}
	}
	unreachable := remote.IsUnreachable(err)
	return &remote.Error{Err: err, Retry: true, Sent: !unreachable, Unreachable: unreachable} // the connection failed
}

// explainAnswer explains an answer of the service.
func explainAnswer(err error, api *googleapi.Error) error {
	text := describe(api)
	e := &remote.Error{Err: errors.New(text), After: after(api.Header)}
	because := func(cause error) { e.Err = fmt.Errorf("%w: %s", cause, text) }
	switch code := api.Code; {
	case code == http.StatusNotFound:
		because(fs.ErrNotExist)
		if errors.Is(err, storage.ErrBucketNotExist) || strings.Contains(strings.ToLower(text), "bucket does not exist") {
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

// describe returns the text of an answer: the interface for reads answers in XML.
func describe(api *googleapi.Error) string {
	message := api.Message
	var body struct{ Code, Message, Details string }
	if message == "" && xml.Unmarshal([]byte(api.Body), &body) == nil {
		message = strings.TrimSpace(body.Code + ": " + body.Message + " " + body.Details)
	}
	if message == "" {
		message = http.StatusText(api.Code)
	}
	return fmt.Sprintf("%s (status %d)", message, api.Code)
}

// after returns how long the service wants clients to wait.
func after(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return min(time.Duration(n)*time.Second, 30*time.Second)
}
