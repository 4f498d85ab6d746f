// Package formats lists the formats: it detects which one a checkpoint is in,
// opens it, and returns formats by name. It depends only on their names and on how to
// distinguish them. The contract is at ByName, Detect and Open.
package formats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/deepspeed"
	"github.com/cairn-ckpt/cairn/storage/delta"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/slime"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// The names of the formats.
const (
	Native   = "native"   // cairn's own
	TorchDCP = "torchdcp" // PyTorch Distributed Checkpoint
	HF       = "hf"       // safetensors, as Hugging Face and PyTorch lay them out
	Torch    = "torch"    // one file of torch.save
	Hyper    = "hyper"    // hyper_parallel
	Slime    = "slime"    // delta versions of slime, miles and SGLang
	// TorchRanked is torch_checkpointing of PyTorch, FSDP is the files of ranks of FSDP, of
	// verl, SkyRL and accelerate, DeepSpeed is DeepSpeed's ZeRO and universal checkpoints, and
	// Orbax is the checkpoints of JAX. They are only read.
	TorchRanked = "torch_checkpointing"
	FSDP        = "fsdp"
	DeepSpeed   = "deepspeed"
	Orbax       = "orbax"
)

// ErrUnknown reports the name of a format that does not exist.
var ErrUnknown = errors.New("unknown format")

// Options are the options of single formats, for callers that have only the name
// of a format. A format uses the options that it has and ignores the other ones.
// Nil means the defaults.
type Options struct {
	// File is the name of the file, for formats that are one file.
	File string
	// MaxFileBytes begins a new data file beyond this size, for formats of
	// several files. Zero: the format's default.
	MaxFileBytes int64
	// Shards is the number of data files, for formats that have this option. Zero:
	// it depends on the size.
	Shards int
	// Distributed writes chunks of tensors, for formats that also have a form of
	// whole tensors. hf always uses this form for several ranks, and if a plan cuts a
	// tensor.
	Distributed bool
	// Dequantize opens quantised weights as the numbers that they represent, for
	// formats that have such weights.
	Dequantize bool
	// Base is the address of the checkpoint on which another one is based: version 0 of a chain
	// of delta versions, see slime.Format, or the model of a LoRA adapter, which opens as the
	// model with the adapter merged into it, see adapter.Open. Other checkpoints do not use it.
	Base string
	// Encoding, Checksum and Folder describe a delta version to write: see slime.Format.
	Encoding, Checksum, Folder string
	// Segments, if not nil, keeps segments of checkpoints of a run: native.Format.Segments.
	Segments *delta.Cache
}

// list is all formats. A new one takes a row here and a rule in Detect.
var list = []struct {
	name    string
	whole   bool // it holds whole tensors of one rank only
	records bool // it records the step and the tags
	read    bool // it is only read
	make    func(o *Options) storage.Format
}{
	{Native, false, true, false, func(o *Options) storage.Format { return native.Format{FileBytes: o.MaxFileBytes, Segments: o.Segments} }},
	{TorchDCP, false, false, false, func(o *Options) storage.Format { return torchdcp.Format{MaxFileBytes: o.MaxFileBytes} }},
	{HF, true, true, false, func(o *Options) storage.Format {
		return hf.Format{MaxShardBytes: o.MaxFileBytes, Shards: o.Shards, Distributed: o.Distributed, Dequantize: o.Dequantize}
	}},
	{Torch, true, false, false, func(o *Options) storage.Format { return torchfile.Format{File: o.File} }},
	{Hyper, false, false, false, func(o *Options) storage.Format { return hyper.Format{MaxFileBytes: o.MaxFileBytes} }},
	{Slime, true, false, false, func(o *Options) storage.Format {
		return slime.Format{Base: o.Base, Encoding: o.Encoding, Checksum: o.Checksum, Folder: o.Folder}
	}},
	{TorchRanked, false, false, true, func(*Options) storage.Format { return torchfile.Ranked{} }},
	{FSDP, false, false, true, func(*Options) storage.Format { return torchfile.FSDP{} }},
	{DeepSpeed, false, false, true, func(*Options) storage.Format { return deepspeed.Format{} }},
	{Orbax, false, false, true, func(*Options) storage.Format { return orbax.Format{} }},
}

// number returns the number of a format in list, or -1.
func number(name string) int { return slices.Index(Names(), name) }

// Names returns the names of all formats.
func Names() []string {
	out := make([]string, len(list))
	for i, f := range list {
		out[i] = f.name
	}
	return out
}

// Writable returns the names of the formats that can be written.
func Writable() []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return list[number(name)].read })
}

// Alone returns the names of the formats that can be written and make checkpoints that do not
// need others.
func Alone() []string {
	return slices.DeleteFunc(Writable(), func(name string) bool { return name == Slime })
}

// ByName returns the format of that name. The error wraps ErrUnknown if there is
// no such format.
func ByName(name string, o *Options) (storage.Format, error) {
	if o == nil {
		o = &Options{}
	}
	if i := number(name); i >= 0 {
		return withBase(list[i].make(o), o), nil
	}
	return nil, fmt.Errorf("%w %q; known are %s", ErrUnknown, name, strings.Join(Names(), ", "))
}

// Open detects the format of the checkpoint at the root of store, or in the folder that
// Locate finds, and opens it. The error wraps storage.ErrNotFound if the store holds no checkpoint of any
// format, storage.ErrIncomplete if it holds only a part of one, and storage.ErrUnderWay
// if a living process is about to write one.
func Open(ctx context.Context, store blob.Store, o *Options) (storage.Checkpoint, error) {
	c, _, err := OpenLocated(ctx, store, o)
	return c, err
}

// OpenLocated is Open, and also returns the store with the checkpoint at its root.
func OpenLocated(ctx context.Context, store blob.Store, o *Options) (storage.Checkpoint, blob.Store, error) {
	c, at, _, err := open(ctx, store, o)
	if err != nil {
		return nil, nil, commit.Explain(ctx, at, err)
	}
	return c, at, nil
}

// open is OpenLocated without explanations. It also returns the name of the format.
func open(ctx context.Context, store blob.Store, o *Options) (c storage.Checkpoint, at blob.Store, format string, err error) {
	// Most checkpoints are native. To open one without asking first saves a request.
	var record native.Format
	if o != nil {
		record.Segments = o.Segments
	}

	c, err = record.OpenRecord(ctx, store)
	if !errors.Is(err, storage.ErrNotFound) {
		if r, ok := c.(*reading.Checkpoint); ok {
			store = r.Store()
		}
		return c, store, Native, err
	}

	at, format, err = locateAgain(ctx, store)
	if err != nil {
		return nil, at, format, err
	}

	f, err := ByName(format, o)
	if err != nil {
		return nil, at, format, err
	}

	if c, err = f.Open(ctx, at); err != nil {
		return nil, at, format, notRemains(ctx, at, format, err)
	}
	if err := checkRemains(ctx, at, format, c); err != nil {
		return nil, at, format, errors.Join(err, c.Close())
	}
	return c, at, format, nil
}

// openTries bounds how often a checkpoint is looked for if files disappear meanwhile.
const openTries = 10

// locateAgain is Locate, and looks again if a file that was found is gone: the checkpoint
// was replaced or removed meanwhile.
func locateAgain(ctx context.Context, store blob.Store) (at blob.Store, format string, err error) {
	for range openTries {
		at, format, err = Locate(ctx, store)
		if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, storage.ErrNotFound) {
			break
		}
	}
	return at, format, err
}

// Records reports whether checkpoints of the named format record their step and
// tags.
func Records(name string) bool {
	i := number(name)
	return i >= 0 && list[i].records
}

// WholeTensors reports whether the named format holds whole tensors of one rank
// only, unless Options.Distributed is set and the format has such a form.
func WholeTensors(name string) bool {
	i := number(name)
	return i >= 0 && list[i].whole
}

// Inline returns the function that decides, in a conversion into the named format,
// whether an object that refers to tensors is written with these tensors inside of
// it. Nil: objects keep their references, or the format has no objects.
func Inline(name string) func(v any) bool {
	if name == TorchDCP {
		return torchdcp.HoldsInside
	}
	return nil
}

const (
	// shardBytes is the size at which a conversion begins another data file. The
	// Hugging Face hub suggests it, and an interruption loses at most that many bytes.
	shardBytes = 5_000_000_000
	// parallelBytes is the size from which a single rank writes several files at
	// the same time.
	parallelBytes = 1 << 30
)

// ForConversion fills in the options that are not set for a conversion into the
// named format that writes this number of bytes for this number of ranks: the size
// of files, unless there is only one, and how many are written at the same time.
func ForConversion(name string, o Options, w storage.WriteOptions, ranks int, bytes int64) (Options, storage.WriteOptions) {
	if o.File != "" {
		return o, w
	}

	if o.MaxFileBytes == 0 && o.Shards == 0 {
		o.MaxFileBytes = shardBytes
	}
	if w.FilesPerRank == 0 && (name == HF || ranks == 1 && bytes > parallelBytes) {
		w.FilesPerRank = min(runtime.GOMAXPROCS(0), cmp.Or(o.Shards, storage.MaxFilesPerRank), storage.MaxFilesPerRank)
	}
	return o, w
}

// swept are the formats of saves with locks. Saves in the other formats leave at most the
// files that their writers had open, which the store itself finds.
func swept() []*commit.Format {
	return []*commit.Format{native.Files(), torchdcp.Files(), hyper.Files(), hf.Files(), slime.Files()}
}

// Leftovers returns the files that saves in all formats have left at the root of
// store, as commit.Leftovers does, and the files of a removal that was interrupted. If the files of a checkpoint cannot be
// determined, it returns an error beside the leftovers of the other formats.
func Leftovers(ctx context.Context, store blob.Store) ([]commit.Leftover, error) {
	removed, err := commit.RemovalLeftovers(ctx, store)
	return union(removed, err, func(f *commit.Format) ([]commit.Leftover, error) { return commit.Leftovers(ctx, store, f) })
}

// Removable reports whether Clean removes a leftover: it is over, as
// commit.Leftover.Removable reports, and it is cairn's: a data file without the id of a
// save is another program's, unless the lock of a save names it.
func Removable(l *commit.Leftover, olderThan time.Duration) bool {
	return l.Removable(olderThan) && !isForeign(l)
}

func isForeign(l *commit.Leftover) bool {
	return l.Owner == blob.OwnerUnknown && l.SaveID == "" && !strings.HasPrefix(l.Name, blob.Reserved)
}

// Clean removes the leftovers that are Removable, finishes removals that were interrupted,
// and returns the files that it has removed.
func Clean(ctx context.Context, store blob.Store, olderThan time.Duration) ([]commit.Leftover, error) {
	return CleanExcept(ctx, store, olderThan, "")
}

// CleanExcept is Clean without the files of the save saveID, unless that is empty.
func CleanExcept(ctx context.Context, store blob.Store, olderThan time.Duration, saveID string) ([]commit.Leftover, error) {
	keep := func(l *commit.Leftover) bool { return isForeign(l) || saveID != "" && l.SaveID == saveID }
	removed, err := commit.FinishRemovals(ctx, store, func(ctx context.Context) (map[string]bool, error) { return current(ctx, store) })
	return union(removed, err, func(f *commit.Format) ([]commit.Leftover, error) {
		return commit.Sweep(ctx, store, f, olderThan, keep)
	})
}

// CleanSave removes the files of the native save saveID that are in the store, and that the
// checkpoint there does not name: the files of a checkpoint before it was made to stand alone,
// or of an attempt that was interrupted. Files to which other checkpoints refer stay. The
// error wraps storage.ErrInUse or storage.ErrUnderWay if a living process uses the checkpoint;
// no file is removed then.
func CleanSave(ctx context.Context, store blob.Store, saveID string) error {
	if err := commit.CheckUnused(ctx, store); err != nil {
		return err
	}
	_, err := commit.Sweep(ctx, store, native.Files(), 0, func(l *commit.Leftover) bool { return l.SaveID != saveID })
	return err
}

// union returns first and the results of find for all formats, each file once.
func union(first []commit.Leftover, err error, find func(*commit.Format) ([]commit.Leftover, error)) ([]commit.Leftover, error) {
	out, errs := first, []error{err}
	seen, said := map[string]bool{}, map[string]bool{}
	for _, l := range first {
		seen[l.Name] = true
	}

	for _, f := range swept() {
		left, err := find(f)
		if err != nil && !said[err.Error()] { // all formats look at the same folder
			said[err.Error()] = true
			errs = append(errs, err)
		}

		for _, l := range left {
			if !seen[l.Name] {
				seen[l.Name] = true
				out = append(out, l)
			}
		}
	}

	return out, errors.Join(errs...)
}

// WriteOrder returns when a file of a checkpoint is written, relative to its other files:
// first the files of order 0, which are data and files that the format does not know, then
// the files that describe the data, and at the end the record, which commits the checkpoint.
// Of several files with a positive order, the one with the highest is the record.
func WriteOrder(format, name string) int {
	for _, f := range swept() {
		if i := slices.Index(f.Records, name); f.Name == format && i >= 0 {
			return 1 + len(f.Records) - i
		}
	}
	if describes, _ := recognize(format, name); describes {
		return 1
	}
	return 0
}

// FileOf returns the name of the file that is a checkpoint in a format by itself, or "": other
// checkpoints may be beside it.
func FileOf(f storage.Format) string {
	one, _ := f.(torchfile.Format)
	return one.File
}

// Knows reports whether a file of that name belongs to a checkpoint of the format if it
// is part of one. A torch.save file may be anything, so only the files that a
// checkpoint names belong to it.
func Knows(format, name string) bool {
	describes, holds := recognize(format, name)
	return format != Torch && (describes || holds || WriteOrder(format, name) > 0)
}

func recognize(format, name string) (describes, holds bool) {
	for _, r := range rules {
		if r.format == format {
			return r.recognize(name)
		}
	}
	return false, false
}
