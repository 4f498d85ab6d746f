package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Unread is content that could not be read.
type Unread struct {
	FQN string `json:"fqn"`
	Why string `json:"why"`
}

// maxInside bounds the bytes in memory, both of a value and of all
// tensors inside values.
const maxInside = 256 << 20

// insideTensor is a tensor that is stored as part of a value. Its entry does not
// belong to the checkpoint.
type insideTensor struct {
	entry  *meta.Entry
	tensor *tensor.Tensor
}

// readEntry is Content.ReadEntry for the tensor.
func (t insideTensor) readEntry(_ context.Context, e *meta.Entry, box tensor.Box, dst *tensor.Tensor) error {
	part, err := t.tensor.Narrow(box)
	if err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	return tensor.Convert(dst, part, tensor.CastInRange)
}

// lookInside reads the values among entries. For each entry it returns the tensors
// inside, and the parts that cannot be read.
func lookInside(ctx context.Context, src Content, entries []*meta.Entry, known func(fqn string) bool) ([]looker, error) {
	all := make([]looker, len(entries))
	var room atomic.Int64
	room.Store(maxInside)

	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(workers())
	for i, e := range entries {
		if e.Bytes != nil {
			all[i] = looker{fqn: e.FQN, known: known, room: &room}
			g.Go(func() error { return all[i].value(gctx, src, e) })
		}
	}

	return all, g.Wait()
}

// looker collects the tensors inside one value.
type looker struct {
	fqn     string
	known   func(fqn string) bool
	room    *atomic.Int64 // bytes of tensors that may still be kept
	tensors []insideTensor
	unread  []Unread
}

func (l *looker) pass(fqn, why string) { l.unread = append(l.unread, Unread{fqn, why}) }

func (l *looker) value(ctx context.Context, src Content, e *meta.Entry) error {
	if e.Bytes.Size > maxInside {
		l.pass(e.FQN, fmt.Sprintf("a value of %d bytes", e.Bytes.Size))
		return nil
	}

	codec, data := e.Bytes.Codec, e.Bytes.Inline
	if data == nil {
		var err error
		if codec, data, err = src.ReadBytes(ctx, e); err != nil {
			return err
		}
	}

	if codec == value.Raw || codec == value.JSON && !bytes.Contains(data, []byte(`{"$`)) {
		return nil // it cannot contain a tensor
	}

	v, err := value.Decode(codec, data)
	if errors.Is(err, value.ErrCodec) {
		l.pass(e.FQN, err.Error())
		return nil
	}

	r := value.Replacer{With: l.look}
	if err == nil {
		_, err = r.Replace(v)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", e.FQN, err)
	}
	return nil
}

func (l *looker) look(at []string, v any) (any, bool, error) {
	name := func() string { return strings.Join(append([]string{l.fqn}, at...), ".") }
	switch v := v.(type) {
	case *tensor.Tensor:
		l.keep(name(), v)
		return v, true, nil
	case value.Ref:
		if !l.known(v.FQN) {
			l.pass(name(), fmt.Sprintf("it refers to the tensor %q, which the checkpoint does not hold", v.FQN))
		}
		return v, true, nil
	case *value.Object:
		t, err := arrayOf(v)
		if err == nil && t != nil {
			l.keep(name(), t)
			return v, true, nil
		}
		if err != nil {
			l.pass(name(), err.Error())
		} else if why := opaque(v); why != "" {
			l.pass(name(), why)
		}
	}

	return nil, false, nil
}

// keep adds a tensor if there is room.
func (l *looker) keep(fqn string, t *tensor.Tensor) {
	if l.room.Add(-t.NumBytes()) < 0 {
		l.pass(fqn, fmt.Sprintf("the tensors inside values have more than %d bytes", int64(maxInside)))
		return
	}
	m := &meta.Tensor{Properties: meta.Properties{DType: t.DType()}, Shape: t.Shape()}
	l.tensors = append(l.tensors, insideTensor{entry: &meta.Entry{FQN: fqn, Tensor: m}, tensor: t})
}

// opaque returns the reason why the elements of a tensor are unknown if o
// represents such a tensor, and "" otherwise.
func opaque(o *value.Object) string {
	switch name := o.QualifiedName(); {
	case !o.Call:
	case strings.HasPrefix(name, "torch._utils._rebuild_tensor"):
		return "a tensor of a type that is not known"
	case name == "torch.storage._load_from_bytes":
		return "a tensor that is pickled as bytes"
	case strings.HasPrefix(name, "torch.") && strings.HasSuffix(name, "UntypedStorage"):
		return "a storage whose type is not known"
	}
	return ""
}

// resolve returns a value with tensors, read from side s, in place of its references. A
// reference for which keep returns a name remains a reference, to that name. A reference to
// an unreadable tensor remains too and is listed in unread.
func (s *Side) resolve(ctx context.Context, v any, keep func(fqn string) (string, bool)) (_ any, unread []string, err error) {
	room := int64(maxInside)
	r := value.Replacer{With: func(_ []string, v any) (any, bool, error) {
		ref, ok := v.(value.Ref)
		if !ok {
			return nil, false, nil
		}

		if name, ok := keep(ref.FQN); ok {
			return value.Ref{FQN: name}, true, nil
		}

		e, ok := s.Metadata.Find(ref.FQN)
		if !ok || e.Tensor == nil || e.NumBytes() > room {
			unread = append(unread, ref.FQN)
			return v, true, nil
		}

		room -= e.NumBytes()
		t, err := tensor.New(e.Tensor.DType, e.Tensor.Shape)
		if err == nil {
			err = s.Content.ReadEntry(ctx, e, tensor.Whole(e.Tensor.Shape), t)
		}
		return t, true, err
	}}
	v, err = r.Replace(v)
	return v, unread, err
}

// errArray reports an array with unsupported elements.
var errArray = errors.New("an array with elements of a type that is not known")

// arrayOf returns the elements of an array of numbers, of NumPy or of Python's
// module array, as a tensor. The tensor is nil if o is not an array.
func arrayOf(o *value.Object) (*tensor.Tensor, error) {
	switch {
	case !o.Call:
		return nil, nil
	case o.Module == "numpy" && o.Name == "ndarray":
		return numpyArray(o)
	case o.Module == "array" && o.Name == "array":
		return pythonArray(o)
	case o.Module == "array" && o.Name == "_array_reconstructor",
		// These have no normal form: arrays of records and objects, subclasses
		// and masked arrays.
		strings.HasPrefix(o.Module, "numpy.") && (o.Name == "_reconstruct" || o.Name == "_frombuffer" || o.Name == "_mareconstruct"):
		return nil, errArray
	}
	return nil, nil
}

// numpyArray returns an array of NumPy as a tensor, or nil if its elements are
// strings. Arrays of dates, records and objects are not supported.
func numpyArray(o *value.Object) (*tensor.Tensor, error) {
	data, isBytes := o.Kwargs["data"].([]byte)
	code, isCode := o.Kwargs["dtype"].(string)
	dims, isShape := o.Kwargs["shape"].(value.Tuple)
	hasContents := o.State != nil || len(o.Items) > 0 || len(o.Pairs) > 0
	if !isBytes || !isCode || !isShape || len(o.Kwargs) != 4 || len(o.Args) > 0 || hasContents {
		return nil, errArray
	}

	d, size, err := numpyDType(strings.TrimLeft(code, "<>|="))
	if err != nil {
		return nil, err
	}

	shape := make([]int64, min(len(dims), tensor.MaxDims+1))
	for i := range shape {
		if shape[i], isShape = dims[i].(int64); !isShape {
			return nil, errArray
		}
	}

	n, err := tensor.NumElements(shape)
	if err != nil || n > int64(len(data)) || n*size != int64(len(data)) {
		return nil, errArray
	}

	if d == 0 {
		return nil, nil
	}

	if strings.HasPrefix(code, ">") {
		data = swapped(d, data)
	}

	if o.Kwargs["order"] != "F" {
		return tensor.FromBytes(d, shape, data)
	}

	strides, step := make([]int64, len(shape)), int64(1)
	for i := range shape {
		strides[i] = step
		step *= shape[i]
	}

	return tensor.FromStrided(d, shape, strides, 0, data)
}

// numpyDType returns the dtype that NumPy spells like "f8", zero if it is a string,
// and the size of an element.
func numpyDType(code string) (d tensor.DType, size int64, err error) {
	if code == "" {
		return 0, 0, errArray
	}

	n, err := strconv.ParseUint(code[1:], 10, 20)
	if err != nil || n == 0 {
		return 0, 0, errArray
	}

	names := map[byte]string{'f': "float", 'i': "int", 'u': "uint", 'c': "complex"}
	switch kind := code[0]; {
	case kind == 'S':
		return 0, int64(n), nil
	case kind == 'U':
		return 0, int64(4 * n), nil
	case code == "b1":
		return tensor.Bool, 1, nil
	default:
		if d, err = tensor.ParseDType(names[kind] + strconv.FormatUint(8*n, 10)); err != nil {
			return 0, 0, errArray
		}
		return d, int64(n), nil
	}
}

// swapped returns big-endian elements as little-endian ones.
func swapped(d tensor.DType, p []byte) []byte {
	word := d.Size()
	if d.IsComplex() {
		word /= 2
	}
	p = slices.Clone(p)
	for w := range slices.Chunk(p, word) {
		slices.Reverse(w)
	}
	return p
}

// pythonArray returns an array.array, which has a type code and a list as arguments,
// as a tensor. It returns nil if the array is empty or has characters.
func pythonArray(o *value.Object) (*tensor.Tensor, error) {
	if len(o.Args) < 2 {
		return nil, nil
	}
	if _, isText := o.Args[1].(string); isText {
		return nil, nil
	}

	list, ok := o.Args[1].([]any)
	floats, ints := make([]float64, 0, len(list)), make([]int64, 0, len(list))
	for _, e := range list {
		switch e := e.(type) {
		case float64:
			floats = append(floats, e)
		case int64:
			ints = append(ints, e)
		}
	}

	shape := []int64{int64(len(list))}
	switch {
	case ok && len(floats) == len(list):
		return tensor.Of(shape, floats)
	case ok && len(ints) == len(list):
		return tensor.Of(shape, ints)
	}

	return nil, errArray
}
