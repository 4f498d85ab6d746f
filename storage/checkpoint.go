package storage

import (
	"cmp"
	"context"
	"iter"
	"runtime"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// Checkpoint is an open checkpoint of some format, for reading without a job.
// Its methods are safe for concurrent use. It must be closed.
type Checkpoint interface {
	// Storage describes the checkpoint as a whole. Its Version names the format.
	Storage() meta.Storage
	// Files returns the checkpoint's files. Files that describe it come first.
	Files() []File
	// TotalBytes returns the number of bytes that Verify reads.
	TotalBytes() int64
	// Metadata returns the whole description. It is valid, and its chunks have
	// their places.
	Metadata(ctx context.Context) (*meta.Metadata, error)
	// Find returns the entry of that name. It reads as little of the description as
	// the format allows. For a name in Metadata.Missing it returns an error.
	Find(ctx context.Context, fqn string) (*meta.Entry, bool, error)
	// CheckHeld returns an error that wraps ErrCorrupt if the files that hold e are
	// too small for it. Readers call it before they allocate memory for a large
	// tensor.
	CheckHeld(ctx context.Context, e *meta.Entry) error
	// CheckFiles returns an error that wraps ErrCorrupt if the format records the
	// sizes of the data files and a file is missing or has another size. A load
	// makes this check once, before it allocates memory.
	CheckFiles(ctx context.Context) error
	// Read reads the items of a plan and passes them to dst. It returns after all
	// items were verified and passed on. md is the result of Metadata, or the part
	// of it that p needs. Read also works after Close.
	Read(ctx context.Context, md *meta.Metadata, p *plan.LoadPlan, dst Receiver, o ReadOptions) (ReadStats, error)
	// Verify reads every byte of the checkpoint and checks it as far as the format allows. The
	// report lists everything that is wrong; the error means that the check could not be made.
	// progress, if not nil, receives the number of bytes that were read since the last call.
	Verify(ctx context.Context, progress func(bytes int64)) (*VerifyReport, error)
	Close() error
}

// maxUnheld is the number of bytes that tensors may have beyond their bytes in the files
// before CheckHeld asks the checkpoint.
const maxUnheld = 1 << 30

// CheckHeld returns an error that wraps ErrCorrupt if the files of c are too small for
// tensors. Readers of many tensors call it before they allocate memory for all of them. It
// calls c.CheckHeld only for tensors that are larger than their bytes in the files, because
// some formats read files to answer.
func CheckHeld(ctx context.Context, c Checkpoint, entries iter.Seq[*meta.Entry]) error {
	total, sizes := int64(0), map[string]int64{}
	for e := range entries {
		total += min(e.NumBytes(), maxUnheld)
	}

	if total < maxUnheld {
		return nil
	}

	for _, f := range c.Files() {
		sizes[f.Name] = f.Size
	}

	room := int64(maxUnheld)
	for e := range entries {
		if e.Tensor == nil {
			continue
		}

		left := e.NumBytes()
		for i := range e.Tensor.Locs {
			l := &e.Tensor.Locs[i]
			left -= min(left, l.Length, sizes[l.File])
		}

		if room -= min(room, left); left == 0 || room > 0 {
			continue
		}
		if err := c.CheckHeld(ctx, e); err != nil {
			return plan.Named(e.FQN, err)
		}
	}

	return nil
}

// CopyChecker is a capability of checkpoints in formats that may hold a tensor twice, such as
// the weights of ZeRO 1 and 2: as fp32 in the partitions of the optimizer, and in the
// precision of training in the state of the module. A format that finds the parts of a tensor
// by rules proves by such a copy that it has found the right ones.
type CopyChecker interface {
	// CheckCopies compares each tensor that the checkpoint holds twice with its copy,
	// and for which want returns true; nil wants all of them. The elements, cast to the
	// dtype of the copy, must have the same bits as the copy, or be NaN in both. It reads
	// both, in pieces. The report lists the tensors that differ, each with its first
	// element that does; the error means that the comparison could not be made.
	CheckCopies(ctx context.Context, want func(fqn string) bool, o ReadOptions) (*CopyReport, error)
}

// StoredFiles returns the names of the files that hold a checkpoint in its folder. They are
// those of Files, unless files are stored in another form than readers see them.
func StoredFiles(c Checkpoint) []string {
	if s, ok := c.(interface{ StoredFiles() []string }); ok {
		return s.StoredFiles()
	}
	names := make([]string, len(c.Files()))
	for i, f := range c.Files() {
		names[i] = f.Name
	}
	return names
}

// CopyReport is the result of CopyChecker.CheckCopies.
type CopyReport struct {
	// Tensors is the number of tensors that were compared. Zero: the checkpoint holds
	// none of those that were wanted twice.
	Tensors int
	// Problems lists the tensors that differ from their copies. Empty: all are equal.
	Problems []VerifyProblem
}

// PartVerifier is a capability of checkpoints that several processes can verify together.
type PartVerifier interface {
	// VerifyPart is Verify of the files for which mine returns true, and of their contents. rest
	// is set in one of the processes, which also checks the parts of the checkpoint that are in
	// no file; the first of Files must be one of its files. JoinReports of the reports of all
	// processes is the report of Verify, after one process has called VerifyCopies.
	VerifyPart(ctx context.Context, mine func(file string) bool, rest bool, progress func(bytes int64)) (*VerifyReport, error)
}

// JoinReports returns the report of a checkpoint that was verified in parts.
func JoinReports(parts []*VerifyReport) *VerifyReport {
	out := &VerifyReport{Problems: []VerifyProblem{}}
	for _, p := range parts {
		out.Files += p.Files
		out.Chunks += p.Chunks
		out.Bytes += p.Bytes
		out.Unsummed += p.Unsummed
		out.Problems = append(out.Problems, p.Problems...)
		if out.Notes == nil {
			out.Notes = p.Notes
		}
	}

	SortProblems(out.Problems)
	return out
}

// VerifyCopies adds to rep, the report of all files of c, the tensors that differ from their
// second copies. It does not read if rep has problems: of damaged files, everything may
// differ.
func VerifyCopies(ctx context.Context, c Checkpoint, rep *VerifyReport) error {
	k, ok := c.(CopyChecker)
	if !ok || len(rep.Problems) > 0 {
		return nil
	}
	copies, err := k.CheckCopies(ctx, nil, ReadOptions{})
	if err == nil {
		rep.Problems = append(rep.Problems, copies.Problems...)
	}
	return err
}

// SortProblems sorts problems by file, name and text.
func SortProblems(all []VerifyProblem) {
	slices.SortFunc(all, func(a, b VerifyProblem) int {
		return cmp.Or(strings.Compare(a.File, b.File), strings.Compare(a.FQN, b.FQN), strings.Compare(a.Text, b.Text))
	})
}

// defaultBufferBytes is the host memory that a rank uses for bytes on their way to
// or from a store, if no option sets another bound.
const defaultBufferBytes = 1 << 30

// ReadOptions change how a checkpoint is read. The zero value means the
// defaults.
type ReadOptions struct {
	// BufferBytes bounds the host memory that a rank uses for bytes on their way
	// from the store. A rank may use 1 MiB even if the bound is lower. Bytes that
	// are read directly into the state do not count. Zero: 1 GiB.
	BufferBytes int64
	// Parallel is the number of reads at the same time. Zero: the number of
	// processors that Go uses, but at least 4, or 16 if the store is a blob.GapReader.
	Parallel int
	// TrustSizes makes a Reader skip Checkpoint.CheckFiles. In a job, it is enough
	// if one rank makes this check.
	TrustSizes bool
	// Progress, if not nil, receives the number of bytes of the plan's items that
	// were read since the last call. When Read returns nil, the numbers sum up to
	// the bytes of all items that are not stored in the metadata. Progress is called
	// from several goroutines at once.
	Progress func(bytes int64)
}

// Budget returns BufferBytes or its default.
func (o *ReadOptions) Budget() int64 {
	if o.BufferBytes > 0 {
		return o.BufferBytes
	}
	return defaultBufferBytes
}

// Workers returns Parallel or its default.
func (o *ReadOptions) Workers() int {
	if o.Parallel > 0 {
		return o.Parallel
	}
	return max(4, runtime.GOMAXPROCS(0))
}

// Journal records which files of a save are finished. If a save was interrupted
// and is repeated with the same plans and the same save id, it does not write these
// files again. Its methods are safe for concurrent use.
type Journal interface {
	// Finished returns the results that Note recorded for a file. It returns false
	// if there are no such results, or if the file does not exist any more or has
	// another size.
	Finished(ctx context.Context, file string) (*WriteResults, bool, error)
	// Note records the results of a file that is complete and durable.
	Note(ctx context.Context, file string, r *WriteResults) error
	// Begun reports whether results are recorded for any file. If that is unknown, it
	// returns true.
	Begun(ctx context.Context) bool
}

// VerifyReport is the result of a full check of a checkpoint.
type VerifyReport struct {
	// Files, Chunks and Bytes count the checked files, chunks and bytes.
	Files  int   `json:"files"`
	Chunks int64 `json:"chunks"`
	Bytes  int64 `json:"bytes"`
	// Unsummed is the number of bytes of tensors and values without a checksum. The check read
	// these bytes, but could not compare them.
	Unsummed int64 `json:"bytes_without_checksum"`
	// Notes are meta.Storage.Notes: the parts that the format lets no reader check.
	Notes []string `json:"notes,omitempty"`
	// Problems lists everything that is wrong. Empty: no problem was found.
	Problems []VerifyProblem `json:"problems"`
}

// VerifyProblem is one thing that is wrong with a checkpoint.
type VerifyProblem struct {
	File string `json:"file"`
	// FQN is the name that is damaged. Empty: the problem concerns the whole file,
	// and FQNs are the names that cannot be read because of it, if they are known.
	FQN  string   `json:"fqn,omitempty"`
	FQNs []string `json:"fqns,omitempty"`
	Text string   `json:"problem"`
}
