// Package convert streams an open checkpoint of any format into a writer of any
// format, and selects, renames, casts and reshards on the way. It knows neither
// formats nor media: the source is a storage.Checkpoint, the target makes
// storage.Writers. The contract is at Plan, Run and Target.
//
// # Memory
//
// Options.Memory bounds the buffers of a conversion, whatever the size of the
// checkpoint: three eighths are for bytes on their way to the target, shared by
// the ranks that are written at the same time; a quarter for what is read ahead;
// a quarter for the buffers of the source's readers. The last eighth is room for
// everything small. What describes the checkpoint and objects, each as large as it
// is, come on top. A program that calls Confine takes some 1.5 to 3 kB for each
// tensor: for 200,000 of them about 360 MB into PyTorch's format and 600 MB into
// cairn's own.
package convert

import (
	"errors"
	"runtime"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
)

var (
	// ErrOption reports options that cannot be understood or contradict each
	// other.
	ErrOption = errors.New("invalid option")
	// ErrEmpty reports options by which nothing is left to convert.
	ErrEmpty = errors.New("nothing is selected")
	// ErrCollision reports names that become one by renaming.
	ErrCollision = errors.New("two names become one")
)

// Options select what is converted and how. Nil means the defaults. All patterns
// are those of inspect.Glob and match names in the source.
type Options struct {
	// Select are patterns of the names to convert. None: all. Exclude are
	// patterns of names to leave out all the same. A pattern that matches
	// nothing is an error that wraps plan.ErrMissing.
	Select, Exclude []string
	// Rename are rules for the names in the target, applied one after the
	// other; see ParseRename. Each must match one of the names to convert.
	Rename []string
	// DType are rules for the element types in the target: "DTYPE" is for all
	// floating-point tensors, "GLOB=DTYPE" for all that match. Of several that
	// apply to a tensor the last counts. None: as in the source.
	DType []string

	// Merge makes whole tensors, all on one rank. A format that stores whole
	// tensors needs it: formats.WholeTensors returns whether a format does. The
	// command line sets it.
	Merge bool
	// WorldSize is the number of ranks to write for. Mesh arranges them; given
	// alone it also sets their number. By default dimension i of the mesh
	// cuts dimension i of each tensor, as PyTorch's Shard does. Without either
	// (and without Merge) tensors stay cut as they are, chunk j of each on rank
	// j modulo the number of ranks of the source.
	WorldSize int
	Mesh      []int
	// Placements are rules such as "GLOB=S(0),R": how each dimension of the mesh
	// cuts the tensors that match, the last rule that applies counting. Tensors
	// that cannot be cut so are whole, on the rank with the fewest bytes.
	Placements []string

	// Step is the step to record. Nil: that of the source, or the step that its
	// state holds; see inspect.StateStep.
	Step *int64
	// Tags are recorded beside those of the source, and win over them.
	Tags map[string]string

	// SkipObjects leaves out objects that the target cannot hold, and reports
	// them.
	SkipObjects bool

	// Inline reports whether the target can hold an object that refers to tensors
	// (see value.Ref) with these tensors inside of it. If so, and if the object
	// is not too large, it is written with its tensors, and they are not converted
	// by themselves. Other objects keep their references. Nil: all objects keep
	// them. formats.Inline returns the function for a format.
	Inline func(v any) bool

	// Source, if not nil, is the store of the source. A file whose time or size
	// changes during the conversion is an error that wraps storage.ErrChanged. The
	// location and the files of the store also identify the source of a conversion
	// that was interrupted; without it only metadata and checksums do.
	Source blob.Store
	// Memory bounds the buffers; see the package's comment. Zero: 512 MiB. Less
	// than 16 MiB is taken as that.
	Memory int64
	// Parallel is the number of ranks that are written, and of reads of the
	// source, at the same time. Zero: 4, or one for each processor if there are
	// more.
	Parallel int
	// Progress, if not nil, receives the bytes that were written since its last
	// call. They add up to Summary.Bytes. It is called from several goroutines at once.
	Progress func(bytes int64)
	// Warn, if not nil, receives errors that do no harm.
	Warn func(err error)
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
	// Staging, if not nil, is the store that the writers write to. Everything else
	// in it is removed. A journal below JournalPrefix lists what is finished, so
	// that a conversion that was interrupted continues. Nil: there is no journal,
	// and what was written is removed after an error.
	Staging blob.Store
	// Where is the location of the checkpoint, for people.
	Where string
}
