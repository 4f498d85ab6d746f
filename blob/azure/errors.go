package azure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"

	"github.com/cairn-ckpt/cairn/blob/remote"
)

const (
	hintKey = "check AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN; " +
		"a SAS token or the clock of this machine may be out of date"
	hintLogin      = "set AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or run az login"
	hintPermission = "the account may not do this: give it the role Storage Blob Data Contributor, or a SAS token with the permissions " +
		"read, add, create, write, delete and list"
	hintAccount   = "is this Azure Blob Storage, or a proxy that changes answers? check the account or the connection string"
	hintContainer = "there is no such container: create it, or check its name and the account"
)

var (
	// errBeyond reports a range that begins at the end of the object or after it.
	errBeyond = errors.New("the range lies outside the object")
	// errNoList reports a list that lacks a required property.
	errNoList = &remote.Error{Err: errors.New("the answer is not a list of objects: names or properties are missing"), Hint: hintAccount}
	// errBlocks reports blocks that are gone.
	errBlocks = errors.New("another writer has written this object at the same time")
)

// meaning translates an error code of the service.
type meaning struct {
	cause error // nil: not an error that callers know
	retry bool
	hint  string
}

// codes are the error codes that have a meaning here.
var codes = map[bloberror.Code]meaning{
	bloberror.BlobNotFound:                      {cause: fs.ErrNotExist},
	bloberror.ResourceNotFound:                  {cause: fs.ErrNotExist},
	bloberror.CannotVerifyCopySource:            {cause: fs.ErrNotExist},
	bloberror.ContainerNotFound:                 {cause: fs.ErrNotExist, hint: hintContainer},
	bloberror.ContainerBeingDeleted:             {cause: fs.ErrNotExist, hint: hintContainer},
	bloberror.ContainerDisabled:                 {cause: fs.ErrPermission},
	bloberror.BlobAlreadyExists:                 {cause: remote.ErrCondition},
	bloberror.ConditionNotMet:                   {cause: remote.ErrCondition},
	bloberror.TargetConditionNotMet:             {cause: remote.ErrCondition},
	bloberror.SourceConditionNotMet:             {cause: remote.ErrCondition},
	bloberror.InvalidRange:                      {cause: errBeyond},
	bloberror.InvalidBlockList:                  {cause: errBlocks},
	bloberror.AuthenticationFailed:              {cause: fs.ErrPermission, hint: hintKey},
	bloberror.InvalidAuthenticationInfo:         {cause: fs.ErrPermission, hint: hintKey},
	bloberror.NoAuthenticationInformation:       {cause: fs.ErrPermission, hint: hintLogin},
	bloberror.AuthorizationFailure:              {cause: fs.ErrPermission, hint: hintPermission},
	bloberror.AuthorizationPermissionMismatch:   {cause: fs.ErrPermission, hint: hintPermission},
	bloberror.AuthorizationResourceTypeMismatch: {cause: fs.ErrPermission, hint: hintPermission},
	bloberror.AuthorizationServiceMismatch:      {cause: fs.ErrPermission, hint: hintPermission},
	bloberror.InsufficientAccountPermissions:    {cause: fs.ErrPermission, hint: hintPermission},
	bloberror.AccountIsDisabled:                 {cause: fs.ErrPermission},
	bloberror.MD5Mismatch:                       {retry: true}, // bytes were changed on their way
	"Crc64Mismatch":                             {retry: true},
	bloberror.InternalError:                     {retry: true},
	bloberror.OperationTimedOut:                 {retry: true},
	bloberror.ServerBusy:                        {retry: true},
}

// explain returns an error as remote.Service wants it.
func explain(err error) error {
	var response *azcore.ResponseError
	var failed *azidentity.AuthenticationFailedError
	var address *url.Error
	var explained *remote.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &explained): // of remote.Transport
		return explained
	case errors.As(err, &failed) || isUnavailable(err):
		return &remote.Error{Err: fmt.Errorf("%w: no token of Azure could be had", fs.ErrPermission), Hint: hintLogin}
	case errors.As(err, &response):
		return explainAnswer(response)
	}

	if errors.As(err, &address) {
		err = address.Err // without the address, which may contain a SAS token
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}

	unreachable := remote.IsUnreachable(err)
	return &remote.Error{Err: err, Retry: true, Sent: !unreachable, Unreachable: unreachable} // the connection failed
}

// isUnavailable reports whether no part of the chain has credentials.
func isUnavailable(err error) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if fmt.Sprintf("%T", e) == "*azidentity.credentialUnavailableError" {
			return true
		}
	}
	return false
}

// explainAnswer explains an answer of the service. The text of the SDK has many lines.
func explainAnswer(r *azcore.ResponseError) error {
	status := r.StatusCode
	m, known := codes[bloberror.Code(r.ErrorCode)]
	if !known {
		m = byStatus(status)
	}

	text := r.ErrorCode
	if text == "" {
		text = http.StatusText(status)
	}

	err := fmt.Errorf("%s (status %d)", text, status)
	if m.cause != nil {
		err = fmt.Errorf("%w: %w", m.cause, err)
	}

	// A service that is too busy has not begun; a proxy that answers for it may have.
	sent := status >= 500 && !(known && status == http.StatusServiceUnavailable)
	return &remote.Error{Err: err, Retry: m.retry, Sent: sent, After: after(r.RawResponse), Hint: m.hint}
}

// byStatus returns the meaning of a status for codes that are not known.
func byStatus(status int) meaning {
	switch {
	case status == http.StatusNotFound:
		return meaning{cause: fs.ErrNotExist}
	case status == http.StatusPreconditionFailed, status == http.StatusNotModified:
		return meaning{cause: remote.ErrCondition}
	case status == http.StatusRequestedRangeNotSatisfiable:
		return meaning{cause: errBeyond}
	case status == http.StatusUnauthorized:
		return meaning{cause: fs.ErrPermission, hint: hintKey}
	case status == http.StatusForbidden:
		return meaning{cause: fs.ErrPermission, hint: hintPermission}
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500 && status != http.StatusNotImplemented:
		return meaning{retry: true}
	case status == http.StatusNotImplemented:
		return meaning{cause: errors.ErrUnsupported}
	}
	return meaning{}
}

// after returns how long the service wants clients to wait.
func after(r *http.Response) time.Duration {
	if r == nil {
		return 0
	}
	n, err := strconv.Atoi(r.Header.Get("Retry-After"))
	if err != nil || n < 0 {
		return 0
	}
	return min(time.Duration(n)*time.Second, 30*time.Second)
}
