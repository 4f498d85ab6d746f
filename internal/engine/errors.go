package engine

import (
	"sync"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// registerErrors makes the errors that callers act on survive the way from one
// rank to another. The codes are part of the protocol between ranks.
var registerErrors = sync.OnceFunc(func() {
	for code, err := range map[string]error{
		"plan.state":         plan.ErrState,
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
		"tensor.cast":        tensor.ErrCast,
		"tensor.shape":       tensor.ErrShape,
		"tensor.dtype":       tensor.ErrDType,
		"value.value":        value.ErrValue,
		"value.encoding":     value.ErrEncoding,
		"value.codec":        value.ErrCodec,
	} {
		group.RegisterError(code, err)
	}
})
