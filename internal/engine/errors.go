package engine

import (
	"errors"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// errNotCommitted marks the failure of a commit that surely did not take place,
// so that every rank may remove what it wrote.
var errNotCommitted = errors.New("not committed")

// The errors that callers act on survive the way from one rank to another, from
// the first step on. The codes are part of the protocol between ranks.
func init() {
	for code, err := range map[string]error{
		"engine.uncommitted": errNotCommitted,
		"meta.invalid":       meta.ErrInvalid,
		"plan.state":         plan.ErrState,
		"plan.protocol":      plan.ErrProtocol,
		"plan.mismatch":      plan.ErrMismatch,
		"plan.missing":       plan.ErrMissing,
		"plan.unexpected":    plan.ErrUnexpected,
		"plan.stale":         plan.ErrStale,
		"storage.notfound":   storage.ErrNotFound,
		"storage.incomplete": storage.ErrIncomplete,
		"storage.corrupt":    storage.ErrCorrupt,
		"storage.version":    storage.ErrVersion,
		"storage.exists":     storage.ErrExists,
		"storage.uncertain":  storage.ErrUncertain,
		"storage.changed":    storage.ErrChanged,
		"storage.options":    storage.ErrOptions,
		"storage.represent":  storage.ErrNotRepresentable,
		"tensor.cast":        tensor.ErrCast,
		"tensor.shape":       tensor.ErrShape,
		"tensor.dtype":       tensor.ErrDType,
		"tensor.layout":      tensor.ErrLayout,
		"tensor.placeholder": tensor.ErrPlaceholder,
		"value.value":        value.ErrValue,
		"value.encoding":     value.ErrEncoding,
		"value.codec":        value.ErrCodec,
	} {
		group.RegisterError(code, err)
	}
}
