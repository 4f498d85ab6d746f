// Package formats is the list of the formats there are: it finds out which one a
// checkpoint is in, opens it, and makes writers by name. It knows how formats are
// told apart, and nothing else of them. The contract is at Open and NewWriter.
package formats

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// The names of the formats.
const (
	Native   = "native"   // cairn's own
	TorchDCP = "torchdcp" // PyTorch Distributed Checkpoint
	HF       = "hf"       // safetensors, as Hugging Face and PyTorch lay them out
	Torch    = "torch"    // one file of torch.save
	Hyper    = "hyper"    // hyper_parallel
)

// ErrUnknown reports the name of a format that does not exist.
var ErrUnknown = errors.New("unknown format")

// Names returns the names of all formats.
func Names() []string {
	out := make([]string, len(list))
	for i, f := range list {
		out[i] = f.name
	}
	return out
}

// Options change how a checkpoint is opened. Nil means the defaults.
type Options struct {
	// Format is the name of the format. Empty: it is found out.
	Format string
	// Dequantize opens quantised weights as the numbers they stand for, where
	// the format has such weights.
	Dequantize bool
}

// Open opens the checkpoint at the root of store. Where there is none of any
// format the error wraps storage.ErrNotFound, where there are only the beginnings
// of one storage.ErrIncomplete.
func Open(ctx context.Context, store blob.Store, o *Options) (storage.Checkpoint, error) {
	if o == nil {
		o = &Options{}
	}
	name := o.Format
	if name == "" {
		var err error
		if name, err = Detect(ctx, store); err != nil {
			return nil, err
		}
	}
	f, err := find(name)
	if err != nil {
		return nil, err
	}
	return f.open(ctx, store, o)
}

// find returns the format of that name.
func find(name string) (*format, error) {
	for i := range list {
		if list[i].name == name {
			return &list[i], nil
		}
	}
	return nil, fmt.Errorf("%w %q; known are %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// NewReader returns a reader of the checkpoint at the root of store, in whatever
// format it is, for one rank of a load.
func NewReader(store blob.Store, o storage.ReadOptions) storage.Reader {
	return &reader{store: store, opts: o}
}

// reader opens the checkpoint when it is first asked for it.
type reader struct {
	store blob.Store
	opts  storage.ReadOptions
	storage.Reader
}

// ReadMetadata finds the format and reads the description. The checkpoint is
// closed at once: readers keep nothing open between calls.
func (r *reader) ReadMetadata(ctx context.Context) (*meta.Metadata, error) {
	c, err := Open(ctx, r.store, nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	r.Reader = c.NewReader(r.opts)
	return r.Reader.ReadMetadata(ctx)
}

// SetUp begins a load.
func (r *reader) SetUp(ctx context.Context, md *meta.Metadata, s storage.Session) error {
	if r.Reader == nil {
		return fmt.Errorf("%w: SetUp before ReadMetadata", plan.ErrState)
	}
	return r.Reader.SetUp(ctx, md, s)
}

// WriterOptions change how a checkpoint is written. Each format takes what it
// knows of. Nil means the defaults.
type WriterOptions struct {
	// File is the name of the file of a format that is one file.
	File string
	// Files is the number of data files that a rank writes at the same time.
	Files int
	// MaxFileBytes begins a new data file beyond so many bytes, where the format
	// leaves it open. Zero: the format's default.
	MaxFileBytes int64
	// Shards is the number of files of a format that is told it. Zero: by size.
	Shards int
	// Distributed writes pieces of tensors where the format also has a form of
	// whole ones. hf writes that form by itself for several ranks, and where a
	// plan cuts a tensor.
	Distributed bool
	// BufferBytes bounds the memory for bytes on their way to the store.
	BufferBytes int64
	// FailIfExists refuses to replace a checkpoint.
	FailIfExists bool
}

// NewWriter returns a writer of the named format at the root of store.
func NewWriter(name string, store blob.Store, o *WriterOptions) (storage.Writer, error) {
	f, err := find(name)
	if err != nil {
		return nil, err
	}
	if o == nil {
		o = &WriterOptions{}
	}
	return f.write(store, o)
}

// WholeTensors reports whether the named format holds whole tensors of one rank
// only, unless WriterOptions.Distributed is set and helps.
func WholeTensors(name string) bool {
	f, err := find(name)
	return err == nil && f.whole
}

const (
	// shardBytes is the size at which a conversion begins another data file: what
	// the Hugging Face hub suggests, and little to write again after an
	// interruption.
	shardBytes = 5_000_000_000
	// parallelBytes is from how many bytes on a single rank writes several files
	// at the same time.
	parallelBytes = 1 << 30
)

// ForConversion fills in what is not set for a conversion into the named format
// that writes so many bytes for so many ranks: how large files become, unless
// there is but one, and how many are written at the same time.
func (o WriterOptions) ForConversion(name string, ranks int, bytes int64) WriterOptions {
	if o.MaxFileBytes == 0 && o.Shards == 0 && o.File == "" {
		o.MaxFileBytes = shardBytes
	}
	if o.Files == 0 && (name == HF || ranks == 1 && bytes > parallelBytes) {
		o.Files = runtime.GOMAXPROCS(0)
	}
	return o
}
