package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// catItem is the head of what 'cairn cat --json' prints for a name. A value or
// the name of the output file follows.
type catItem struct {
	Path   string  `json:"path"`
	SaveID string  `json:"save_id"`
	FQN    string  `json:"fqn"`
	Kind   string  `json:"kind"`
	DType  string  `json:"dtype,omitempty"`
	Shape  []int64 `json:"shape,omitzero"`
	Type   string  `json:"type,omitempty"`
}

// catValue is for an object or a tree, catFile for an output file.
type catValue struct {
	catItem
	Value any `json:"value"`
}

type catFile struct {
	catItem
	Output   string `json:"output"`
	NumBytes int64  `json:"bytes"`
}

// voidDType is numpy's type for bytes without a meaning.
const voidDType = "void"

type catFlags struct {
	slice    string
	dtype    string
	cast     tensor.CastPolicy
	limit    int64
	full     bool
	npy, raw string
}

func newCatCmd() *cobra.Command {
	f := catFlags{limit: 1000}
	cmd := newCommand("cat", wantArgs(2, 2), completeNames(1), func(cmd *cobra.Command, args []string) error {
		return runCat(cmd, args[0], args[1], &f)
	})
	flags := cmd.Flags()
	flags.StringVar(&f.slice, "slice", "", "take this part of a tensor, in Python's `syntax`")
	flags.StringVar(&f.dtype, "dtype", "", "convert the elements to this `dtype`; 'void' keeps the bytes for --npy")
	completeFlag(cmd, completeDTypes, "dtype")
	castFlag(cmd, &f.cast)
	flags.Int64Var(&f.limit, "limit", f.limit, "shorten tensors of more than this `number` of elements")
	flags.BoolVar(&f.full, "full", false, "print everything")
	flags.StringVar(&f.npy, "npy", "", "write a .npy `file`; - is stdout")
	flags.StringVar(&f.raw, "raw", "", "write bytes to this `file`; - is stdout")
	return baseFlag(cmd)
}

// file returns the output file, or "" for text.
func (f *catFlags) file() string { return f.npy + f.raw }

func (f *catFlags) check(cmd *cobra.Command) error {
	o := outputOf(cmd)
	switch {
	case f.npy != "" && f.raw != "":
		return usagef(cmd, "--npy and --raw are two outputs: give one of them")
	case f.limit < 1:
		return usagef(cmd, "--limit %d: want at least 1", f.limit)
	case f.file() == "-" && o.json:
		return usagef(cmd, "an output to - and --json both want stdout")
	case f.file() == "-" && isTerminal(o.out):
		return usagef(cmd, "bytes would go to stdout, which is a terminal")
	case f.dtype == voidDType && f.npy == "":
		return usagef(cmd, "--dtype void is for --npy")
	case f.dtype != "" && f.dtype != voidDType:
		if _, err := tensor.LookupDType(f.dtype); err != nil {
			return usagef(cmd, "--dtype: %v", err)
		}
	}
	return nil
}

// casting is the content of a checkpoint, with the casts that --cast allows.
type casting struct {
	inspect.Content
	cast tensor.CastPolicy
}

func (c casting) ReadEntry(ctx context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error {
	if err := c.cast.Check(e.Tensor.DType, dst.DType()); err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	if c.cast == tensor.CastAny {
		dst = dst.Lossy()
	}
	return c.Content.ReadEntry(ctx, e, box, dst)
}

// catter is one call of 'cairn cat'.
type catter struct {
	cmd   *cobra.Command
	ctx   context.Context
	o     *output
	flags *catFlags
	c     *cairn.Checkpoint
	e     *meta.Entry
	head  catItem
}

func runCat(cmd *cobra.Command, path, name string, f *catFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	ctx := cmd.Context()
	c, err := openCheckpoint(ctx, path)
	if err != nil {
		return err
	}
	defer c.Close()
	k := &catter{cmd: cmd, ctx: ctx, o: outputOf(cmd), flags: f, c: c}
	k.head = catItem{Path: path, SaveID: c.Info().SaveID, FQN: name, Kind: inspect.KindTensor}
	e, slice, err := findSliced(ctx, c, name, f.slice)
	if errors.Is(err, cairn.ErrMissing) {
		return k.branch(strings.TrimSuffix(name, slice), slice)
	}
	if err != nil {
		return err
	}
	k.e, k.head.FQN = e, e.FQN
	if e.Tensor == nil {
		k.head.Kind = inspect.KindObject
		if slice != "" || f.npy != "" || f.dtype != "" {
			return usagef(cmd, "%s is an object: slices, --npy and --dtype are for tensors", clean(e.FQN))
		}
		return k.object()
	}
	return k.tensor(slice)
}

// findSliced finds the entry of a name, which may end with a slice. A name that
// contains brackets itself takes precedence.
func findSliced(ctx context.Context, c *cairn.Checkpoint, name, slice string) (*meta.Entry, string, error) {
	e, err := c.Entry(ctx, name)
	if at := strings.LastIndexByte(name, '['); errors.Is(err, cairn.ErrMissing) && slice == "" && at > 0 && strings.HasSuffix(name, "]") {
		name, slice = name[:at], name[at:]
		e, err = c.Entry(ctx, name)
	}
	return e, slice, err
}

func (k *catter) object() error {
	codec, data, err := k.c.ReadBytes(k.ctx, k.e)
	if err != nil {
		return err
	}
	if k.flags.raw != "" {
		return k.write(k.flags.raw, int64(len(data)), func(w io.Writer, moved func(int64)) error {
			_, err := w.Write(data)
			moved(int64(len(data)))
			return err
		})
	}
	v, err := value.Decode(codec, data)
	if errors.Is(err, value.ErrCodec) {
		err = withHint(fmt.Errorf("%q: %w", k.e.FQN, err), "--raw writes its bytes as they are")
	}
	if err != nil {
		return err
	}
	if k.o.json {
		list, err := valueJSON(v)
		if err != nil {
			return fmt.Errorf("%q: %w", k.e.FQN, err)
		}
		k.head.Type = inspect.TypeName(v)
		return k.o.encode(k.o.out, catValue{k.head, list})
	}
	return k.repr(v)
}

// repr prints a value as Python does.
func (k *catter) repr(v any) error {
	limit := inspect.MaxRepr
	if k.flags.full {
		limit = math.MaxInt - 1
	}
	_, err := fmt.Fprintln(k.o.out, inspect.Repr(v, limit))
	return err
}

func valueJSON(v any) (json.RawMessage, error) {
	_, list, err := value.Encode([]any{v}) // bytes outside a list would not become JSON
	if err != nil {
		return nil, err
	}
	return json.RawMessage(list[1 : len(list)-1]), nil
}

func (k *catter) tensor(slice string) error {
	shape, d := k.e.Tensor.Shape, k.e.Tensor.DType
	s := inspect.SelectAll(shape)

	if slice != "" {
		var err error
		if s, err = inspect.ParseSelection(slice, shape); err != nil {
			return usagef(k.cmd, "%s: %v", clean(k.e.FQN), err)
		}
	}
	if k.flags.dtype != "" && k.flags.dtype != voidDType {
		var err error
		if d, err = tensor.LookupDType(k.flags.dtype); err != nil {
			return err
		}
	}

	k.head.DType, k.head.Shape = d.String(), s.Shape()
	bytes := s.Elements() * int64(d.Size())

	stream := func(w io.Writer, moved func(int64)) error {
		return s.Stream(k.ctx, casting{k.c, k.flags.cast}, k.e, d, func(p []byte) error {
			moved(int64(len(p)))
			_, err := w.Write(p)
			return err
		})
	}

	switch {
	case k.flags.raw != "":
		return k.write(k.flags.raw, bytes, stream)
	case k.flags.npy != "":
		header, err := tensor.NumpyHeader(d, s.Shape(), k.flags.dtype == voidDType)
		if err != nil {
			return withHint(fmt.Errorf("%q: %w", k.e.FQN, err), "--dtype float32 converts it without loss, --dtype void keeps its bytes")
		}
		return k.write(k.flags.npy, bytes, func(w io.Writer, moved func(int64)) error {
			if _, err := w.Write(header); err != nil {
				return err
			}
			return stream(w, moved)
		})
	case k.o.json:
		return k.valuesJSON(s, d)
	case k.flags.full:
		return k.streamText(s, d, false)
	}
	return k.shortText(s, d)
}

// write sends bytes to a file or to stdout.
func (k *catter) write(name string, bytes int64, send func(w io.Writer, moved func(int64)) error) error {
	if name == "-" {
		return send(k.o.out, func(int64) {})
	}
	err := k.o.withProgress("cat", bytes, func(moved func(int64)) error {
		return writeOutput(k.ctx, k.c, k.head.Path, name, func(w io.Writer) error { return send(w, moved) })
	})
	if err != nil {
		return err
	}
	v := catFile{k.head, name, bytes}
	what := k.head.Kind
	if what == inspect.KindTensor {
		what = k.head.DType + " " + formatShape(k.head.Shape)
	}
	return k.o.result(v, func() { k.o.remark("%s: %s, %s\n", clean(name), what, formatBytes(bytes)) })
}

func (k *catter) valuesJSON(s *inspect.Selection, d tensor.DType) error {
	head, err := json.MarshalIndent(k.head, "", "  ")
	if err != nil {
		return err
	}
	k.o.printf("%s,\n  \"values\": ", strings.TrimSuffix(string(head), "\n}"))
	if d.Size() <= 2 && tensor.CanWiden(d, tensor.Float32) && !tensor.CanWiden(d, tensor.Int32) {
		d = tensor.Float32 // prints small floats exactly
	}
	if err := k.streamText(s, d, true); err != nil {
		return err
	}
	_, err = fmt.Fprintln(k.o.out, "}")
	return err
}

// streamText prints all elements, as text or as JSON.
func (k *catter) streamText(s *inspect.Selection, d tensor.DType, asJSON bool) error {
	w := bufio.NewWriterSize(k.o.out, 1<<16)
	n := &nester{w: w, shape: s.Shape(), at: make([]int64, len(s.Shape())), json: asJSON}
	format, size := elementText(d, asJSON), d.Size()
	var text []byte
	err := s.Stream(k.ctx, casting{k.c, k.flags.cast}, k.e, d, func(p []byte) error {
		for ; len(p) > 0; p = p[size:] {
			text = format(text[:0], p[:size])
			n.element(text)
		}
		return w.Flush()
	})
	if err != nil {
		return err
	}
	n.end()
	return w.Flush()
}

// branch prints everything below a name as one nested value. It refuses a slice.
func (k *catter) branch(name, slice string) error {
	md, err := k.c.Metadata(k.ctx)
	if err != nil {
		return err
	}
	entries, err := selectNames(k.head.Path, md, []string{name})
	if err != nil {
		return err
	}
	if slice != "" || k.flags.file() != "" || k.flags.dtype != "" {
		return usagef(k.cmd, "there are %s below %s: slices, --npy, --raw and --dtype are for one", plural(len(entries), "name"), clean(name))
	}
	v, err := inspect.Nest(entries, name, k.leaf)
	if err != nil {
		return err
	}
	if !k.o.json {
		return k.repr(v)
	}
	k.head.FQN, k.head.Kind, k.head.Type = name, "tree", inspect.TypeName(v)
	tree, err := treeJSON(v)
	if err != nil {
		return err
	}
	return k.o.encode(k.o.out, catValue{k.head, tree})
}

// leaf returns the leaf of a tree for an entry: the value of an object, or the
// description of a tensor.
func (k *catter) leaf(e *meta.Entry) (any, error) {
	if e.Tensor != nil {
		return e.Tensor, nil
	}
	codec, data, err := k.c.ReadBytes(k.ctx, e)
	if err != nil {
		return nil, err
	}
	v, err := value.Decode(codec, data)
	if errors.Is(err, value.ErrCodec) {
		return data, nil // as bytes
	}
	return v, err
}

// treeJSON returns the JSON form of a tree, with values as valueJSON returns them.
func treeJSON(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case *meta.Tensor:
		return map[string]any{"$tensor": map[string]any{"dtype": v.DType.String(), "shape": append([]int64{}, v.Shape...)}}, nil
	case []any:
		out := make([]any, len(v))
		for i := range v {
			if out[i], err = treeJSON(v[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	case map[string]any:
		out, pairs, escape := map[string]any{}, []any{}, false
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if out[k], err = treeJSON(v[k]); err != nil {
				return nil, fmt.Errorf("%q: %w", k, err)
			}
			pairs = append(pairs, []any{k, out[k]})
			escape = escape || strings.HasPrefix(k, "$")
		}
		if escape {
			return map[string]any{"$map": pairs}, nil
		}
		return out, nil
	}
	return valueJSON(v)
}
