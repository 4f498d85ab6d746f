// Package convert streams an open checkpoint of any format into a writer of any
// format. It can select, rename, cast and reshard tensors. It does not depend on
// formats or media: the source is a storage.Checkpoint, the target makes
// storage.Writers. The contract is at Plan, Run and Target.
//
// # Memory
//
// Options.Memory bounds the buffers of a conversion of a checkpoint of any size. Three
// eighths are for bytes on their way to the target, shared by the ranks that are
// written at the same time. A quarter is for reads ahead, and a quarter for the buffers
// of the source's readers. The last eighth is for everything small. Metadata and
// objects take memory in addition. A program that calls Confine takes 1.5 to 3 kB for
// each tensor: for 200,000 tensors about 360 MB into PyTorch's format and 600 MB into
// cairn's own.
package convert

import (
	"context"
	"errors"
	"log/slog"
	"runtime"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

var (
	// ErrOption reports options that are invalid or contradict each other.
	ErrOption = errors.New("invalid option")
	// ErrEmpty reports options that select no items.
	ErrEmpty = errors.New("nothing is selected")
	// ErrCollision reports two names that are renamed to the same name.
	ErrCollision = errors.New("two names become one")
)

// Options select the items of a conversion and change their form. Nil means the defaults. All
// patterns are globs (see inspect.Glob) and match names in the source.
type Options struct {
	// Select are patterns of the names to convert. Empty: all names. Exclude are
	// patterns of names that are left out. A pattern that matches no name is an error
	// that wraps plan.ErrMissing.
	Select, Exclude []string
	// Rename are rules for the names in the target, applied one after the
	// other; see ParseRename. Each must match one of the names to convert.
	Rename []string
	// DType are rules for the element types in the target: "DTYPE" is for all
	// floating-point tensors, "GLOB=DTYPE" for all that match. If several rules apply
	// to a tensor, the last counts. Empty: types stay as in the source.
	DType []string
	// Cast limits the changes of element types. Zero: tensor.CastInRange, which rounds,
	// but refuses a cast that loses numbers. Plan refuses casts that lose numbers
	// whatever the elements are; Run refuses integers that are out of range.
	Cast tensor.CastPolicy

	// Merge makes whole tensors, all on one rank. Formats that store whole tensors
	// need it; see formats.WholeTensors.
	Merge bool
	// WorldSize is the number of ranks to write for. Mesh arranges them; if WorldSize
	// is 0, it also sets their number. By default dimension i of the mesh cuts
	// dimension i of each tensor, as PyTorch's Shard does. Without WorldSize, Mesh and
	// Merge, tensors keep their chunks, chunk j on rank j modulo the number of ranks of
	// the source.
	WorldSize int
	Mesh      []int
	// Placements are rules such as "GLOB=S(0),R": how each dimension of the mesh
	// cuts the tensors that match. The last rule that applies counts. Tensors that
	// cannot be cut in this way stay whole, on the rank with the fewest bytes.
	Placements []string

	// Step is the step to record. Nil: the step of the source, or the step that its
	// state holds; see inspect.StateStep.
	Step *int64
	// Tags are recorded in addition to the tags of the source, and replace tags of the
	// same name.
	Tags map[string]string

	// SkipObjects leaves out objects that the target cannot hold. The report lists
	// them.
	SkipObjects bool
	// SkipDamaged leaves out names that cannot be read because a file of the source is
	// missing or damaged. The report lists them with the files. Without it, such names
	// are an error.
	SkipDamaged bool

	// Inline reports whether the target can hold an object that refers to tensors
	// (see value.Ref) with these tensors inside it. If so, and if the object is not too
	// large, it is written with its tensors, and they have no entries of their own.
	// Other objects keep their references. Nil: all objects keep them. formats.Inline
	// returns the function for a format.
	Inline func(v any) bool

	// Source, if not nil, is the store with the source at its root, as formats.Locate returns
	// it. If the time or size of a file changes during the conversion, the error wraps
	// storage.ErrChanged. The location and the files of the store also identify the source of an
	// interrupted conversion. Without it, only metadata and checksums identify it.
	Source blob.Store
	// Memory bounds the buffers; see the package's comment. Zero: 512 MiB. The
	// minimum is 16 MiB.
	Memory int64
	// Parallel is the number of ranks that are written, and of reads of the source,
	// at the same time. Zero: 4, or the number of processors if that is larger.
	Parallel int
	// Group, if not nil, are the processes that run the conversion together, one for each
	// rank; see Run. Nil: this process runs it alone.
	Group group.Group
	// Planned, if not nil, receives the bytes that this process is going to write, before
	// it writes the first one.
	Planned func(bytes int64)
	// Progress, if not nil, receives the number of bytes that were written since its last call.
	// The sum is Summary.Bytes, or with a Group about the number that Planned received. Several
	// goroutines call it at once.
	Progress func(bytes int64)
	// Warn, if not nil, receives errors that do not end the conversion.
	Warn func(err error)
	// Logger receives a record for each phase of the conversion. Nil: no log.
	Logger *slog.Logger
}

const (
	defaultMemory = 512 << 20
	minMemory     = 16 << 20
)

func (o *Options) withDefaults() Options {
	var out Options
	if o != nil {
		out = *o
	}
	if out.Memory <= 0 {
		out.Memory = defaultMemory
	}

	out.Memory = max(out.Memory, minMemory)
	if out.Parallel <= 0 {
		out.Parallel = max(4, runtime.GOMAXPROCS(0))
	}
	if out.Warn == nil {
		out.Warn = func(error) {}
	}
	return out
}

// Target is the destination of a conversion.
type Target struct {
	// Format names the format that the writers write, and Details are the options
	// that change the files. A conversion continues only if both are the same.
	Format, Details string
	// NewWriter returns a new writer for one rank with buffers of bufferBytes.
	NewWriter func(bufferBytes int64) (storage.Writer, error)
	// Staging, if not nil, is the store that the writers write to. All other files in
	// it are removed. A journal in JournalFolder lists the finished files, so that
	// an interrupted conversion can continue. Nil: there is no journal, and after an
	// error the written files are removed, unless there is Direct.
	Staging blob.Store
	// Direct, if not nil, is the store of the checkpoint itself, which the writers write
	// to: object storage has no staging store, because it cannot rename. There is a journal
	// as in a staging store until the conversion has ended. Other files stay. One of
	// Staging and Direct is nil.
	Direct blob.Store
	// Leftovers, if not nil, returns the files of a save in Direct that no checkpoint needs.
	// If another conversion has ended there with an error, its files are removed.
	Leftovers func(ctx context.Context, saveID string) ([]string, error)
	// Committed, if not nil, is called by the coordinator after the commit and before the
	// journal is removed. If the conversion is interrupted in between, the next run calls it
	// again.
	Committed func(ctx context.Context, r *Report) error
	// Where is the location of the checkpoint, for messages.
	Where string
}

// store returns the store with the journal, or nil.
func (t *Target) store() blob.Store {
	if t.Direct != nil {
		return t.Direct
	}
	return t.Staging
}
