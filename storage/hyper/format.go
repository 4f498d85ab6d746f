// Package hyper reads and writes the checkpoints of hyper_parallel: a .metadata file, and a
// safetensors file and a file of pickled values for each rank, in its older and its newer
// dialect. It also reads and writes layout files, which say which part of each parameter a
// rank holds. It does not run pickles and does not depend on Python or devices: it refuses
// values that it cannot express, with their names. The contracts are at Open for reading, at
// dcpfiles.Writer for writing, and at Layouts for layout files.
package hyper

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
)

// Format is hyper_parallel's format with its options. The zero value is usable.
type Format struct {
	// Old writes the dialect of early 2026, hyper_parallel.core.checkpoint: each
	// value is a file of its own, and each chunk of a tensor in another file.
	Old bool
	// MaxFileBytes begins a new file of tensors if one would become larger. A
	// tensor that is larger by itself has a file of its own. Zero: no bound.
	MaxFileBytes int64
}

var _ storage.Format = Format{}

// Name returns "hyper".
func (Format) Name() string { return "hyper" }

// NewWriter returns a writer of checkpoints at the root of store, which
// hyper_parallel's own reader loads. Tensors are in safetensors files, so their
// element types must be types of safetensors. Values of bytes are pickled like
// all other values: hyper_parallel writes them as they are, but its reader expects a
// pickle.
func (f Format) NewWriter(store blob.Store, o storage.WriteOptions) (storage.Writer, error) {
	err := errors.Join(o.Check(), o.RefuseBase(f.Name()), storage.RefuseIf(f.MaxFileBytes < 0, "MaxFileBytes %d is negative", f.MaxFileBytes))
	if err != nil {
		return nil, err
	}

	w := &options{f, o.WithDefaults()}
	w.MaxFileBytes = cmp.Or(f.MaxFileBytes, math.MaxInt64)
	e := dcpfiles.Encoding{Dialect: dcpfiles.Hyper, Version: metadataVersion, Check: w.checkTensor, Value: encodeValue, Files: w.layOut}
	if f.Old {
		e.Dialect = dcpfiles.HyperOld
	}
	return dcpfiles.NewWriter(store, Files(), e, w.WriteOptions), nil
}

const (
	dataPrefix   = "_rank" // begins the names of the data files that cairn writes
	tensorSuffix = ".safetensors"
	valueSuffix  = ".bytes"
)

// files describes the names of hyper_parallel's files.
var files = &dcpfiles.Format{
	Maker: dcpfiles.HyperParallel, Version: "hyper_parallel",
	Data:     func(name string) bool { return dataFile.MatchString(name) || valueFile.MatchString(name) },
	Rank:     regexp.MustCompile(`^(?:\.rank(0|[1-9][0-9]{0,8})_metadata|(0|[1-9][0-9]{0,8})\.metadata)$`), // the older name first
	RankName: func(rank int) string { return fmt.Sprintf("%d.metadata", rank) },
	Own:      dataFile,
}

var (
	// dataFile are the names of data files. Names that cairn writes may contain the
	// id of the save and a number.
	dataFile = regexp.MustCompile(`^_rank(0|[1-9][0-9]{0,8})_([0-9A-Za-z-]*)(?:\.[1-9][0-9]*)?\.(?:safetensors|bytes)$`)
	// valueFile are the names of single values in the older dialect.
	valueFile = regexp.MustCompile(`^.+_rank(0|[1-9][0-9]{0,8})\.bytes$`)
)

// Recognize reports whether a file of that name at the root of a store describes a
// checkpoint of this format, or holds data of one.
func Recognize(name string) (describes, holds bool) { return files.Recognize(name) }

// dataFileName returns the name of the n-th data file of a rank: the name of
// hyper_parallel's only one if saveID is empty and n is 0, otherwise with the id and
// the number inside.
func dataFileName(rank int, saveID string, n int, suffix string) string {
	name := fmt.Sprintf("_rank%d_%s", rank, saveID)
	if n > 0 {
		name += "." + strconv.Itoa(n)
	}
	return name + suffix
}
