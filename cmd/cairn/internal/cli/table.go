package cli

import (
	"context"
	"errors"
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// chunkRow is one row of the table: a chunk of a tensor, or an object. For
// objects, columns of tensors are null or an empty list; columns of a file are
// null for objects in the index.
type chunkRow struct {
	FQN       string  `parquet:"fqn,dict"`
	Kind      string  `parquet:"kind,dict"`
	DType     *string `parquet:"dtype,optional,dict"`
	Codec     *string `parquet:"codec,optional,dict"`
	Shape     []int64 `parquet:"shape,list"`
	Chunk     int64   `parquet:"chunk,delta"`
	Offsets   []int64 `parquet:"offsets,list"`
	Sizes     []int64 `parquet:"sizes,list"`
	File      *string `parquet:"file,optional,dict"`
	Key       *string `parquet:"key,optional,dict"`
	Offset    *int64  `parquet:"offset,optional"`
	Length    int64   `parquet:"length"`
	NumBytes  int64   `parquet:"nbytes"`
	Tensor    *int64  `parquet:"tensor_nbytes,optional"`
	Checksums int64   `parquet:"n_checksums"`
}

// tableResult is the output of 'cairn table --json'.
type tableResult struct {
	Path   string `json:"path"`
	SaveID string `json:"save_id"`
	Output string `json:"output"`
	Rows   int64  `json:"rows"`
}

func newTableCmd() *cobra.Command {
	var out string
	cmd := newCommand("table", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		if err := checkTableOutput(cmd, out); err != nil {
			return err
		}
		return runTable(cmd, args[0], out)
	})
	cmd.Flags().StringVarP(&out, "output", "o", "", "write to this `file`; - is stdout")
	return baseFlag(cmd)
}

func checkTableOutput(cmd *cobra.Command, out string) error {
	o := outputOf(cmd)
	switch {
	case out == "":
		return usagef(cmd, "the flag --output is missing: usage is '%s'", cmd.UseLine())
	case out != "-":
		return nil
	case o.json:
		return usagef(cmd, "-o - and --json both want stdout")
	case isTerminal(o.out):
		return usagef(cmd, "-o - writes a Parquet file to stdout, which is a terminal")
	}
	return nil
}

func runTable(cmd *cobra.Command, path, out string) error {
	return withMetadata(cmd.Context(), path, func(c *cairn.Checkpoint, md *meta.Metadata) error {
		o := outputOf(cmd)
		if out == "-" {
			_, err := writeTable(cmd.Context(), o.out, path, md)
			return err
		}
		r := tableResult{Path: path, SaveID: c.Info().SaveID, Output: out}
		err := writeOutput(cmd.Context(), c, path, out, func(w io.Writer) (err error) {
			r.Rows, err = writeTable(cmd.Context(), w, path, md)
			return err
		})
		if err != nil {
			return err
		}
		return o.result(r, func() { o.remark("%s: %s\n", clean(out), plural(r.Rows, "row")) })
	})
}

// rowsPerGroup bounds the rows in memory.
const rowsPerGroup = 1 << 17

// writeTable writes the table of the checkpoint at path and returns the number of
// its rows.
func writeTable(ctx context.Context, w io.Writer, path string, md *meta.Metadata) (int64, error) {
	options := []parquet.WriterOption{
		parquet.Compression(&zstd.Codec{}),
		parquet.MaxRowsPerRowGroup(rowsPerGroup),
		parquet.CreatedBy("cairn", cairn.Version, "parquet-go"),
		parquet.KeyValueMetadata("cairn.path", path),
		parquet.KeyValueMetadata("cairn.save_id", md.Storage.SaveID),
	}
	if md.Storage.Step != nil {
		options = append(options, parquet.KeyValueMetadata("cairn.step", formatStep(md.Storage.Step)))
	}

	pw := parquet.NewGenericWriter[chunkRow](w, options...)
	var n int64
	batch := make([]chunkRow, 0, 1024)

	flush := func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := pw.Write(batch)
		n += int64(len(batch))
		batch = batch[:0]
		return err
	}

	for i := range md.Entries {
		for c := range inspect.Chunks(&md.Entries[i]) {
			if batch = append(batch, newChunkRow(&md.Entries[i], &c)); len(batch) == cap(batch) {
				if err := flush(); err != nil {
					return n, err
				}
			}
		}
	}
	return n, errors.Join(flush(), pw.Close())
}

func newChunkRow(e *meta.Entry, c *inspect.Chunk) chunkRow {
	r := chunkRow{
		FQN: e.FQN, Kind: inspect.KindObject, Chunk: int64(c.Chunk), Offsets: c.Offsets, Sizes: c.Sizes,
		Length: c.Length, NumBytes: c.NumBytes, Checksums: int64(c.Checksums),
	}
	if e.Tensor != nil {
		r.Kind, r.Shape = inspect.KindTensor, e.Tensor.Shape
		r.DType, r.Tensor = new(e.Tensor.DType.String()), new(e.NumBytes())
	} else {
		r.Codec = &e.Bytes.Codec
	}
	if !c.Inline {
		r.File, r.Offset = &c.File, &c.Offset
	}
	if c.Key != "" {
		r.Key = &c.Key
	}
	return r
}
