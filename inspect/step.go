package inspect

import (
	"context"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/value"
)

// StepNames are the names under which training programs keep the step at the top
// level of a state. StateStep looks for them in this order.
var StepNames = []string{"step", "global_step", "iteration"}

// maxStep bounds the encoded value that StateStep reads. PyTorch stores even a
// number as a file of torch.save, which has more than 1 KiB.
const maxStep = 64 << 10

// StateStep returns the step that the state itself holds: the first of StepNames
// that is an integer of at least zero at the top level, or nil. read returns the
// encoded bytes of a value and their codec, as cairn.Checkpoint.ReadBytes does; a
// value that cannot be read does not count.
func StateStep(ctx context.Context, md *meta.Metadata, read func(context.Context, *meta.Entry) (codec string, data []byte, err error)) *int64 {
	for _, name := range StepNames {
		e, ok := md.Find(name)
		if !ok || e.Bytes == nil || len(e.Path) > 1 || e.Bytes.Size > maxStep {
			continue
		}
		codec, data, err := read(ctx, e)
		if err != nil {
			continue
		}
		if v, err := value.Decode(codec, data); err == nil {
			if n, ok := v.(int64); ok && n >= 0 {
				return &n
			}
		}
	}
	return nil
}
