package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
)

// answered returns the error of the SDK for an answer. An empty code is an answer without
// a readable body.
func answered(status int, code string, header ...string) error {
	var err error = errors.New("deserialization failed")
	if code != "" {
		err = &smithy.GenericAPIError{Code: code, Message: "on purpose"}
	}
	response := &smithyhttp.Response{Response: &http.Response{StatusCode: status, Header: http.Header{}}}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		response.Header.Set(name, value)
	}
	return operation(&awshttp.ResponseError{ResponseError: &smithyhttp.ResponseError{Response: response, Err: err}})
}

func operation(err error) error {
	return &smithy.OperationError{ServiceID: "S3", OperationName: "GetObject", Err: err}
}

// unsent returns the error of the SDK for a connection that failed.
func unsent(err error) error {
	return operation(&smithyhttp.RequestSendError{Err: &url.Error{Op: "Get", URL: "http://host/bucket?X-Amz-Signature=secret", Err: err}})
}

func TestExplain(t *testing.T) {
	for name, c := range map[string]struct {
		err         error
		is          error
		retry, sent bool
		unreachable bool
		after       time.Duration
		hint        string
	}{
		"a missing object":                       {err: answered(404, "NoSuchKey"), is: fs.ErrNotExist},
		"a head of a missing object":             {err: &smithy.OperationError{OperationName: "HeadObject", Err: answered(404, "NotFound")}, is: fs.ErrNotExist},
		"a page that a web server does not have": {err: answered(404, "NotFound"), is: fs.ErrNotExist, hint: "endpoint"},
		"a missing object of an unknown code":    {err: answered(404, "Gone"), is: fs.ErrNotExist, hint: "endpoint"},
		"a missing upload":                       {err: answered(404, "NoSuchUpload"), is: fs.ErrNotExist},
		"a missing bucket":                       {err: answered(404, "NoSuchBucket"), hint: "bucket"},
		"a condition":                            {err: answered(412, "PreconditionFailed"), is: remote.ErrCondition},
		"a condition without a body":             {err: answered(412, ""), is: remote.ErrCondition},
		"a conflict of two conditional writes":   {err: answered(409, "ConditionalRequestConflict"), retry: true},
		"a folder in the way":                    {err: answered(409, "ExistingObjectIsDirectory"), is: blob.ErrNested},
		"a range behind the end":                 {err: answered(416, "InvalidRange"), is: errBeyond},
		"a key that may not":                     {err: answered(403, "AccessDenied"), is: fs.ErrPermission, hint: "permissions"},
		"an unknown key":                         {err: answered(403, "InvalidAccessKeyId"), is: fs.ErrPermission, hint: "AWS_ACCESS_KEY_ID"},
		"an unknown key of versitygw":            {err: answered(404, "XAdminUserNotFound"), is: fs.ErrPermission, hint: "AWS_ACCESS_KEY_ID"},
		"a wrong secret":                         {err: answered(403, "SignatureDoesNotMatch"), is: fs.ErrPermission, hint: "AWS_SECRET_ACCESS_KEY"},
		"a token that has expired":               {err: answered(400, "ExpiredToken"), is: fs.ErrPermission, hint: "expired"},
		"a clock that is wrong":                  {err: answered(403, "RequestTimeTooSkewed"), is: fs.ErrPermission, hint: "clock"},
		"a wrong region":                         {err: answered(400, "AuthorizationHeaderMalformed"), hint: "AWS_REGION"},
		"a redirect":                             {err: answered(301, "PermanentRedirect"), hint: "AWS_REGION"},
		"a redirect without a body":              {err: answered(307, ""), hint: "AWS_REGION"},
		"a service that lacks something":         {err: answered(501, "NotImplemented"), is: errors.ErrUnsupported, sent: true, hint: "lacks"},
		"an answer of another service":           {err: answered(400, ""), hint: "endpoint"},
		"an overloaded service":                  {err: answered(503, "SlowDown", "Retry-After: 3"), retry: true, after: 3 * time.Second},
		"a service that wants a day's pause":     {err: answered(503, "SlowDown", "Retry-After: 86400"), retry: true, after: 30 * time.Second},
		"a proxy that answers for the service":   {err: answered(503, ""), retry: true, sent: true},
		"too many requests":                      {err: answered(429, "TooManyRequests"), retry: true},
		"a fault of the service":                 {err: answered(500, "InternalError"), retry: true, sent: true},
		"a fault of the service without a body":  {err: answered(502, ""), retry: true, sent: true},
		"bytes that were changed on their way":   {err: answered(400, "BadDigest"), retry: true},
		"success that cannot be read":            {err: answered(200, ""), retry: true, sent: true},
		"a fault after success":                  {err: answered(200, "InternalError"), retry: true},
		"a reset":                                {err: unsent(&net.OpError{Op: "read", Err: syscall.ECONNRESET}), is: syscall.ECONNRESET, retry: true, sent: true},
		"an end of the body":                     {err: fmt.Errorf("after 3 bytes: %w", io.ErrUnexpectedEOF), is: io.ErrUnexpectedEOF, retry: true, sent: true},
		"a refused connection":                   {err: unsent(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), is: syscall.ECONNREFUSED, retry: true, unreachable: true, hint: "endpoint"},
		"an unknown host":                        {err: unsent(&net.OpError{Op: "dial", Err: &net.DNSError{Name: "nowhere", IsNotFound: true}}), retry: true, unreachable: true, hint: "endpoint"},
		"a certificate that is not trusted":      {err: unsent(&tls.CertificateVerificationError{Err: errors.New("unknown authority")}), hint: "AWS_CA_BUNDLE"},
		"a server without TLS":                   {err: unsent(tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}), hint: "http://"},
		"no credentials":                         {err: operation(errors.New("get identity: get credentials: no role")), is: fs.ErrPermission, hint: "AWS_ACCESS_KEY_ID"},
		"a service of credentials that is down":  {err: operation(fmt.Errorf("get identity: %w", &smithy.OperationError{Err: &smithyhttp.RequestSendError{Err: syscall.ECONNREFUSED}})), is: fs.ErrPermission, hint: "AWS_ACCESS_KEY_ID"},
		"an end of the context":                  {err: unsent(context.Canceled), is: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			got := explain(c.err)
			if c.is != nil && !errors.Is(got, c.is) {
				t.Errorf("explain = %v; want %v", got, c.is)
			}
			var e remote.Error
			if p, ok := errors.AsType[*remote.Error](got); ok {
				e = *p
			}
			if e.Retry != c.retry || e.Sent != c.sent || e.Unreachable != c.unreachable || e.After != c.after {
				t.Errorf("explain = %+v", e)
			}
			if !strings.Contains(e.Hint, c.hint) || c.hint == "" && e.Hint != "" {
				t.Errorf("the hint is %q; want %q", e.Hint, c.hint)
			}
			if strings.Contains(got.Error(), "Signature=") && !errors.Is(got, context.Canceled) {
				t.Errorf("%q holds a signature", got)
			}
		})
	}
	if explain(nil) != nil {
		t.Error("explain(nil) is an error")
	}
}

func TestParse(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL", "")
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	for text, want := range map[string]address{
		"s3://b":                                   {bucket: "b"},
		"s3://b/":                                  {bucket: "b"},
		"s3://b/run/step-1/":                       {bucket: "b", prefix: "run/step-1"},
		"s3://b/x?region=eu-west-1":                {bucket: "b", prefix: "x", region: "eu-west-1"},
		"s3://b/x?endpoint=http://127.0.0.1:9":     {bucket: "b", prefix: "x", endpoint: "http://127.0.0.1:9", pathStyle: true},
		"s3://b?endpoint=https://h&path_style=0":   {bucket: "b", endpoint: "https://h"},
		"s3://b?unconditional=true&path_style=yes": {},
		"s3://b?unconditional=true":                {bucket: "b", unconditional: true},
		"s3://b?unconditional=perhaps":             {},
		"s3://key:secret@b/x":                      {},
		"s3:///x":                                  {},
		"s3://b/x#part":                            {},
		"s3://b?secret=x":                          {},
		"s3://b?endpoint=h:9000":                   {},
		"s3://b?endpoint=http://key:secret@h":      {},
	} {
		got, err := parse(text)
		if want == (address{}) {
			if err == nil || strings.Contains(err.Error(), "key:secret") {
				t.Errorf("parse(%q) = %+v, %v; want an error without secrets", text, got, err)
			}
			continue
		}
		if err != nil || *got != want {
			t.Errorf("parse(%q) = %+v, %v; want %+v", text, got, err, want)
		}
	}
}
