package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
)

// errBeyond reports a range that begins at the end of the object or after it.
var errBeyond = errors.New("the range lies outside the object")

// meaning translates an error code of the service.
type meaning struct {
	cause error // nil: not an error that callers know
	retry bool
	hint  string
}

const (
	hintNoKey    = "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
	hintExpired  = "the credentials have expired: get new ones"
	hintEndpoint = "check the endpoint and the network: ?endpoint=… of the address, or AWS_ENDPOINT_URL_S3"
	hintNotS3    = "is this an S3 service, or a proxy that changes answers? check the endpoint: ?endpoint=… of the address, or AWS_ENDPOINT_URL_S3"
	hintKey      = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the profile"
	hintRegion   = "the bucket is in another region or at another endpoint: set AWS_REGION, or add ?region=… or ?endpoint=… to the address"
)

// codes are the error codes that have a meaning here. Codes of requests that may succeed
// later are here too, because services answer them with different status codes.
var codes = map[string]meaning{
	"NoSuchKey":                          {cause: fs.ErrNotExist},
	"NotFound":                           {cause: fs.ErrNotExist},
	"NoSuchUpload":                       {cause: fs.ErrNotExist},
	"NoSuchBucket":                       {hint: "there is no such bucket: create it, or check its name and the endpoint"},
	"InvalidRange":                       {cause: errBeyond},
	"PreconditionFailed":                 {cause: remote.ErrCondition},
	"AccessDenied":                       {cause: fs.ErrPermission, hint: "the key may not do this: docs/object-storage.md lists the permissions that each operation needs"},
	"Forbidden":                          {cause: fs.ErrPermission, hint: "the key may not do this, or the object does not exist and the key may not list the bucket"},
	"AllAccessDisabled":                  {cause: fs.ErrPermission},
	"InvalidAccessKeyId":                 {cause: fs.ErrPermission, hint: hintKey},
	"XAdminUserNotFound":                 {cause: fs.ErrPermission, hint: hintKey}, // versitygw, with status 404
	"SignatureDoesNotMatch":              {cause: fs.ErrPermission, hint: hintKey},
	"InvalidToken":                       {cause: fs.ErrPermission, hint: hintKey},
	"ExpiredToken":                       {cause: fs.ErrPermission, hint: hintExpired},
	"TokenRefreshRequired":               {cause: fs.ErrPermission, hint: hintExpired},
	"RequestTimeTooSkewed":               {cause: fs.ErrPermission, hint: "the clocks of this machine and of the service differ: set the clock of this machine"},
	"PermanentRedirect":                  {hint: hintRegion},
	"TemporaryRedirect":                  {hint: hintRegion},
	"MovedPermanently":                   {hint: hintRegion},
	"AuthorizationHeaderMalformed":       {hint: hintRegion},
	"IllegalLocationConstraintException": {hint: hintRegion},
	"ObjectParentIsFile":                 {cause: blob.ErrNested}, // of services that keep objects as files
	"ExistingObjectIsDirectory":          {cause: blob.ErrNested},
	"NotImplemented":                     {cause: errors.ErrUnsupported, hint: "the service lacks what cairn needs"},
	"ConditionalRequestConflict":         {retry: true},
	"OperationAborted":                   {retry: true},
	"SlowDown":                           {retry: true},
	"SlowDownRead":                       {retry: true},
	"SlowDownWrite":                      {retry: true},
	"RequestTimeout":                     {retry: true},
	"InternalError":                      {retry: true},
	"ServiceUnavailable":                 {retry: true},
	"BadDigest":                          {retry: true}, // bytes were changed on their way
	"XAmzContentChecksumMismatch":        {retry: true},
	"IncompleteBody":                     {retry: true},
}

// explain returns an error as remote.Service wants it.
func explain(err error) error {
	if err == nil {
		return nil
	}
	if explained, ok := errors.AsType[*remote.Error](err); ok { // of remote.Transport
		return explained
	}

	var api smithy.APIError
	var response *awshttp.ResponseError
	var m meaning
	status, known := statusOf(err), false
	text := err
	errors.As(err, &response)

	if errors.As(err, &api) {
		m, known = codes[api.ErrorCode()]
		text = errors.New(describe(api, status))
	}

	switch {
	case known && api.ErrorCode() == "NotFound" && !ofHead(err): // the SDK uses this code if the answer has no code
		m.hint = hintNotS3
	case known:
	case status == 0:
		return unanswered(err)
	case status < 300: // the answer cannot be read
		return &remote.Error{Err: err, Retry: true, Sent: true}
	default:
		m = byStatus(status)
		if api == nil {
			text = fmt.Errorf("the answer with status %d cannot be read", status)
		}
	}

	if m.cause != nil {
		text = fmt.Errorf("%w: %w", m.cause, text)
	}

	// A service that is too busy has not begun; a proxy that answers for it may have.
	sent := status >= 500 && !(known && status == http.StatusServiceUnavailable)
	return &remote.Error{Err: text, Retry: m.retry, Sent: sent, After: after(response), Hint: m.hint}
}

// ofHead reports whether the error belongs to a HeadObject request, which gets an answer
// without a body and so without a code.
func ofHead(err error) bool {
	op, ok := errors.AsType[*smithy.OperationError](err)
	return ok && op.OperationName == "HeadObject"
}

// statusOf returns the status of the answer, or 0.
func statusOf(err error) int {
	var response *awshttp.ResponseError
	if errors.As(err, &response) && response.Response != nil {
		return response.HTTPStatusCode()
	}
	return 0
}

func describe(api smithy.APIError, status int) string {
	text := api.ErrorCode()
	if m := api.ErrorMessage(); m != "" {
		text += ": " + m
	}
	if status != 0 {
		text += fmt.Sprintf(" (status %d)", status)
	}
	return text
}

// byStatus returns the meaning of a status for codes that are not known.
func byStatus(status int) meaning {
	switch {
	case status == http.StatusNotFound:
		return meaning{cause: fs.ErrNotExist, hint: hintNotS3}
	case status == http.StatusPreconditionFailed:
		return meaning{cause: remote.ErrCondition}
	case status == http.StatusRequestedRangeNotSatisfiable:
		return meaning{cause: errBeyond}
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		return codes["Forbidden"]
	case status >= 300 && status < 400:
		return meaning{hint: hintRegion}
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500 && status != http.StatusNotImplemented:
		return meaning{retry: true}
	}
	return meaning{hint: hintNotS3}
}

// after returns how long the service wants clients to wait.
func after(r *awshttp.ResponseError) time.Duration {
	if r == nil || r.Response == nil {
		return 0
	}
	n, err := strconv.Atoi(r.Response.Header.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return min(time.Duration(n)*time.Second, 30*time.Second)
}

// unanswered returns the error of a request that got no answer, or not all of it.
func unanswered(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}

	var op *smithy.OperationError
	var send *smithyhttp.RequestSendError
	if errors.As(err, &op) {
		if ofIdentity(op.Err) {
			return &remote.Error{Err: fmt.Errorf("%w: %w", fs.ErrPermission, cause(op.Err)), Hint: hintNoKey}
		}
		if !errors.As(op.Err, &send) {
			return op.Err // the request was not sent
		}
		err = send.Err
	}
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return &remote.Error{Err: cause(err), Hint: "the certificate of the endpoint is not trusted: AWS_CA_BUNDLE names a file with others"}
	case errors.As(err, new(tls.RecordHeaderError)) || strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return &remote.Error{Err: cause(err), Hint: "the endpoint does not speak TLS: begin it with http://"}
	case remote.IsUnreachable(err):
		return &remote.Error{Err: cause(err), Retry: true, Unreachable: true, Hint: hintEndpoint}
	}

	return &remote.Error{Err: cause(err), Retry: true, Sent: true}
}

// cause returns the error inside of one that repeats the URL of the request.
func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// ofIdentity reports whether there were no credentials. The SDK has no type for it.
func ofIdentity(err error) bool {
	return strings.HasPrefix(err.Error(), "get identity:") || strings.HasPrefix(err.Error(), "failed to sign request:")
}
