package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/slime"
	"github.com/cairn-ckpt/cairn/transfer"
)

// flattenResult is the output of 'cairn flatten --json'.
type flattenResult struct {
	Checkpoints []*flattened `json:"checkpoints"`
}

// flattened describes one checkpoint.
type flattened struct {
	Path string `json:"path"`
	// Bases are the folders to which it has referred.
	Bases []string `json:"referred_to"`
	// Files and Bytes count the files of the checkpoint, if they were written.
	Files   int     `json:"files"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func newFlattenCmd() *cobra.Command {
	var f copyFlags
	cmd := newCommand("flatten", wantArgs(1, -1), completePaths(maxPaths), func(cmd *cobra.Command, args []string) error {
		o := outputOf(cmd)
		all := []*flattened{}
		var failed error
		for _, arg := range args {
			r, err := flatten(cmd, &f, arg)
			if err != nil {
				failed = err
				break
			}
			all = append(all, r)
		}

		if len(all) == 0 && failed != nil {
			return failed
		}

		err := o.result(flattenResult{all}, func() {
			for _, r := range all {
				if len(r.Bases) == 0 {
					o.printf("%s stands alone already\n", clean(r.Path))
					continue
				}
				o.printf("%s stands alone now: %s\n", clean(r.Path), formatBytes(r.Bytes))
			}
		})
		if err != nil {
			return err
		}
		return failed
	})

	f.addTo(cmd)
	return cmd
}

// errNotFlattened reports a checkpoint of a format in which checkpoints always refer to others.
var errNotFlattened = errors.New("its format has no form that stands alone")

func flatten(cmd *cobra.Command, f *copyFlags, arg string) (*flattened, error) {
	ctx, o := cmd.Context(), outputOf(cmd)
	opts, err := f.options(cmd)
	if err != nil {
		return nil, err
	}

	at := checkpointAddress(ctx, arg)
	store, err := openStore(ctx, at)
	if err != nil {
		return nil, err
	}
	c, err := formats.Open(ctx, store, nil)
	if err != nil {
		return nil, withHint(&cairn.Error{Op: "open", Where: store.String(), Err: err}, openHint(ctx, arg, err))
	}

	r := &flattened{Path: blob.Redact(arg), Bases: c.Storage().Bases}
	alone := c.Storage().StoredBytes == 0
	if c.Storage().Version == slime.Version {
		err := fmt.Errorf("%s is a delta version: %w", blob.Redact(arg), errors.Join(errNotFlattened, c.Close()))
		return nil, withHint(err, "'cairn convert' with --to hf writes it as a whole checkpoint, to another folder")
	}

	if err := c.Close(); err != nil || alone {
		r.Bases = []string{}
		return r, err
	}

	start := time.Now()
	err = o.withPlanned("flatten", func(planned, moved func(int64)) error {
		opts.Planned, opts.Progress = planned, moved
		rep, err := transfer.Flatten(ctx, store, opts)
		if err == nil {
			r.Files, r.Bytes = rep.Files, rep.Bytes
		}
		return err
	})

	r.Seconds = time.Since(start).Seconds()
	return r, err
}
