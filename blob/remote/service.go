// Package remote makes a blob.Store of an object storage service. A driver, such as
// blob/s3, implements Service with the client of the service: one request for each
// method. This package does the rest: it cuts objects into parts, sends and reads them in
// parallel, repeats requests that failed for a passing reason, counts all requests, and
// keeps the contract of blob.Store.
package remote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// Service is an object storage service as one bucket of it is seen. Keys are whole keys
// in the bucket. Each method makes one request and does not repeat it, or few if the service
// has no such request; CountRequest or a Transport counts them. Bytes of objects
// are sent as a Body and read by ReadFull. The methods are safe for concurrent use.
//
// Errors wrap fs.ErrNotExist if the object, the upload or the bucket does not exist,
// fs.ErrPermission if the request is not allowed, ErrCondition if a Condition is not met,
// and are an *Error if the request may be repeated or if there is a hint for the user.
type Service interface {
	// Limits returns the limits of parts and objects.
	Limits() Limits
	// Head describes an object.
	Head(ctx context.Context, key string) (Object, error)
	// Get reads the bytes of an object from off on into p, which is not empty, and
	// returns how many there were: fewer than p has if the object ends before. If
	// version is not empty and the object has another, the error wraps ErrCondition. If
	// the object ends at off or before, or is empty, it returns 0 and no error. If the
	// answer breaks off, it returns the bytes that came before, and the object.
	Get(ctx context.Context, key, version string, p []byte, off int64) (int, Object, error)
	// Put writes a whole object. The service checks sum, the CRC-32C of body.
	Put(ctx context.Context, key string, body []byte, sum uint32, c Condition) (Object, error)
	// Begin begins an object that is sent in parts.
	Begin(ctx context.Context, key string, writer string) (Upload, error)
	// List returns objects with keys that begin with prefix, in the order of their keys, from
	// the token on that an earlier call returned. An empty token is the beginning, or the end.
	List(ctx context.Context, prefix, token string) (page []Object, next string, err error)
	// Remove removes objects, at most Limits.Removes of them. It is no error if one does
	// not exist.
	Remove(ctx context.Context, keys []string) error
	// RemoveVersion removes an object if it has this version. The error wraps ErrCondition
	// if it has another, and ErrCondition or fs.ErrNotExist if it does not exist. A service
	// may ignore the condition.
	RemoveVersion(ctx context.Context, key, version string) error
	// Uploads returns uploads that were begun and not ended, from a token on: uploads of
	// keys in the folder prefix, which is empty or ends with a slash. If deep is true, it
	// returns all uploads of the folders below it too; otherwise some may be among them.
	Uploads(ctx context.Context, prefix string, deep bool, token string) (page []PendingUpload, next string, err error)
	// AbortUpload ends an upload that Uploads returned and removes its parts.
	AbortUpload(ctx context.Context, u PendingUpload) error
	// Copy makes an object of another one of the same service. If the service cannot, the
	// error wraps errors.ErrUnsupported.
	Copy(ctx context.Context, from Source, key string, c Condition) (Object, error)
	// Close releases the resources of the client.
	Close() error
}

// FolderService is a capability of services that list folders without the objects in
// them: a list with the delimiter "/".
type FolderService interface {
	// Folders returns the parts of keys from their beginning to the first slash after
	// prefix, each once and in order, from the token on that an earlier call returned. An
	// empty token is the beginning, or the end.
	Folders(ctx context.Context, prefix, token string) (page []string, next string, err error)
}

// UploadSizer is a capability of services with an Uploads that does not return sizes.
type UploadSizer interface {
	// UploadSize returns the bytes of the parts of an upload that Uploads returned.
	UploadSize(ctx context.Context, u PendingUpload) (int64, error)
}

// Plain is a capability of services that can also call their SDK with all its defaults, like
// a program that calls the SDK directly. It is for comparisons.
type Plain interface {
	PlainPut(ctx context.Context, key string, body []byte) error
	// PlainGet reads an object of len(p) bytes.
	PlainGet(ctx context.Context, key string, p []byte) error
	// PlainRange reads len(p) bytes of an object from off on.
	PlainRange(ctx context.Context, key string, p []byte, off int64) error
}

// Upload is an object that is sent in parts.
type Upload interface {
	// Part sends the part of that number, from 0 on. All parts but the last have the same
	// size. The service checks sum, the CRC-32C of body. A part that is sent again
	// replaces the one before. It is called from several goroutines at once.
	Part(ctx context.Context, number int, body []byte, sum uint32) error
	// Complete makes the object of n parts visible. sum is the CRC-32C of all bytes. If
	// an earlier call has ended the upload, the error wraps fs.ErrNotExist.
	Complete(ctx context.Context, n int, size int64, sum uint32, c Condition) (Object, error)
	// Abort removes the parts.
	Abort(ctx context.Context) error
}

// Limits are the limits of a service.
type Limits struct {
	MinPart int64 // bytes of a part that is not the last
	MaxPart int64 // bytes of a part, and of a Put
	Parts   int   // of an object
	Removes int   // keys of a call of Remove
	// Conditional means that the service is known to keep conditions. Otherwise the store
	// tries it with the first object that must be absent.
	Conditional bool
	// Probe, if not nil, has the result for all stores with the same client.
	Probe *Probe
}

// Object describes an object of a service.
type Object struct {
	Key     string
	Size    int64
	ModTime time.Time
	Version string
	// Writer is Condition.Writer of the write. Head and Get return it.
	Writer string
}

// Condition says when an object may be written, and who writes it.
type Condition struct {
	// IfAbsent: only if there is no object of that key.
	IfAbsent bool
	// IfVersion: only if the object has this version. Empty: any.
	IfVersion string
	// Writer is kept with the object. It is different for each writer, so that a writer without
	// an answer finds out whether the object is its own.
	Writer string
}

// PendingUpload is an upload that was begun and not ended.
type PendingUpload struct {
	Key, ID string
	Begun   time.Time
	Size    int64 // of its parts, or 0 if the service does not say
}

// Source is an object to copy from.
type Source struct {
	Bucket, Key, Version string
	Size                 int64
}

// ErrCondition reports a Condition that was not met.
var ErrCondition = errors.New("the object is not as the condition says")

// Error is an error of a request.
type Error struct {
	Err error
	// Retry means that the same request may succeed later.
	Retry bool
	// After is how long the service wants clients to wait before that, or 0.
	After time.Duration
	// Sent means that the service may have carried out the request, although there was no good
	// answer.
	Sent bool
	// Unreachable means that there was no connection to the service.
	Unreachable bool
	// Hint is advice for the user, or empty.
	Hint string
}

// IsUnreachable reports whether err, the error of a connection, means that there was
// no connection: the name of the server is unknown, or it could not be called.
func IsUnreachable(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	_, unknown := errors.AsType[*net.DNSError](err)
	return unknown || ok && op.Op == "dial"
}

// Error returns the hint, and the cause, which is often a text of the service or of its SDK.
func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s (%v)", e.Hint, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
