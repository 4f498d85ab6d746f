package azure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
)

// clearEnv removes accounts and credentials from the environment of the test.
func clearEnv(t *testing.T) {
	for _, name := range []string{connectionEnv, accountEnv, keyEnv, sasEnv} {
		t.Setenv(name, "")
	}
}

func TestAddresses(t *testing.T) {
	clearEnv(t)
	a, err := parse("azblob://my-container/a%20b/c/?account=me1")
	if err != nil || a.Bucket != "my-container" || a.Prefix != "a b/c" || a.Options["account"] != "me1" {
		t.Errorf("parse = %+v, %v; want my-container, a b/c and me1", a, err)
	}
	for _, address := range []string{"azblob://", "azblob:///x", "s3://b/x", "azblob://user:secret@b/x", "azblob://b/x?sig=secret", "azblob://b/x#y",
		"azblob://b/%zz", "azblob://b/x?account=a.example/", "azblob://b/../x?account=a"} {
		t.Setenv(keyEnv, "c2VjcmV0")
		_, err := Open(t.Context(), address, nil)
		if !errors.Is(err, blob.ErrAddress) || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%q) = %v; want blob.ErrAddress without the secret", address, err)
		}
	}
}

func TestAccounts(t *testing.T) {
	clearEnv(t)
	for _, c := range []struct {
		env  map[string]string
		want string // in the error, or empty
	}{
		{nil, accountEnv},
		{map[string]string{connectionEnv: "secret"}, connectionEnv},
		{map[string]string{connectionEnv: "AccountName=me;AccountKey=c2VjcmV0;EndpointSuffix=core.windows.net"}, ""},
		{map[string]string{accountEnv: "me", keyEnv: "not base64: secret"}, keyEnv},
		{map[string]string{accountEnv: "me", keyEnv: "c2VjcmV0"}, ""},
		{map[string]string{accountEnv: "me", sasEnv: "?sig=secret"}, ""},
		{map[string]string{accountEnv: "me"}, ""}, // the default chain
	} {
		clearEnv(t)
		for name, value := range c.env {
			t.Setenv(name, value)
		}
		s, err := Open(t.Context(), "azblob://container/x", nil)
		switch {
		case c.want == "" && (err != nil || s.String() != "azblob://container/x"):
			t.Errorf("Open with %v = %v, %v; want a store", c.env, s, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret")):
			t.Errorf("Open with %v = %v; want an error that names %s", c.env, err, c.want)
		case c.want == "" && s.Host() != "https://me.blob.core.windows.net/container":
			t.Errorf("Host with %v = %q; want the address of the container without secrets", c.env, s.Host())
		}
	}
}

func TestErrors(t *testing.T) {
	answer := func(status int, code string) error {
		return fmt.Errorf("request: %w", &azcore.ResponseError{StatusCode: status, ErrorCode: code})
	}
	for _, c := range []struct {
		err         error
		is          error // may be nil
		retry, sent bool
		hint        string
	}{
		{answer(404, "BlobNotFound"), fs.ErrNotExist, false, false, ""},
		{answer(404, "ContainerNotFound"), fs.ErrNotExist, false, false, hintContainer},
		{answer(409, "BlobAlreadyExists"), remote.ErrCondition, false, false, ""},
		{answer(412, "ConditionNotMet"), remote.ErrCondition, false, false, ""},
		{answer(416, "InvalidRange"), errBeyond, false, false, ""},
		{answer(400, "InvalidBlockList"), errBlocks, false, false, ""},
		{answer(400, "Crc64Mismatch"), nil, true, false, ""},
		{answer(400, "InvalidQueryParameterValue"), nil, false, false, ""},
		{answer(403, "AuthenticationFailed"), fs.ErrPermission, false, false, hintKey},
		{answer(403, "AuthorizationPermissionMismatch"), fs.ErrPermission, false, false, hintPermission},
		{answer(403, ""), fs.ErrPermission, false, false, hintPermission},
		{answer(401, ""), fs.ErrPermission, false, false, hintKey},
		{answer(429, ""), nil, true, false, ""},
		{answer(503, "ServerBusy"), nil, true, false, ""},
		{answer(500, "OperationTimedOut"), nil, true, true, ""},
		{answer(501, "NotImplemented"), errors.ErrUnsupported, false, true, ""},
		{&url.Error{Op: "Get", URL: "https://me.example/x?sig=secret", Err: io.ErrUnexpectedEOF}, io.ErrUnexpectedEOF, true, true, ""},
		{&url.Error{Op: "Get", URL: "https://me.example/x?sig=secret", Err: context.Canceled}, context.Canceled, false, false, ""},
	} {
		got := explain(c.err)
		var e remote.Error
		if p := (*remote.Error)(nil); errors.As(got, &p) {
			e = *p
		}
		if c.is != nil && !errors.Is(got, c.is) || e.Retry != c.retry || e.Sent != c.sent || e.Hint != c.hint || strings.Contains(got.Error(), "secret") {
			t.Errorf("explain(%v) = %v with %+v; want %+v", c.err, got, e, c)
		}
	}
	busy := &azcore.ResponseError{StatusCode: 503, ErrorCode: "ServerBusy", RawResponse: &http.Response{Header: http.Header{"Retry-After": {"7"}}}}
	var e *remote.Error
	if err := explain(busy); !errors.As(err, &e) || e.After != 7*time.Second {
		t.Errorf("explain = %v; want a wait of 7 s", err)
	}
}
