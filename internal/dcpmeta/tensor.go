package dcpmeta

import (
	"fmt"
	"strings"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// tensor reads a TensorStorageMetadata.
func (d *decoder) tensor(c pickle.Cell) (*meta.Tensor, error) {
	f, _ := d.Fields(c)
	props, err := d.properties(get(f, 0))
	if err != nil {
		return nil, err
	}
	shape, err := d.ints(get(f, 1), "size")
	if err != nil {
		return nil, err
	}
	list, ok := d.List(get(f, 2))
	if ints, isInts := d.Ints(get(f, 2)); !ok && (!isInts || len(ints) > 0) {
		return nil, fmt.Errorf("chunks are %s", d.describe(get(f, 2)))
	}
	if err := d.Charge(chunkBytes * len(list)); err != nil { // many names may have one list
		return nil, err
	}
	t := &meta.Tensor{Properties: props, Shape: shape}
	t.Chunks = make([]tensor.Box, len(list))
	t.Locs = make([]meta.Location, len(list))
	for i, c := range list {
		if t.Chunks[i], err = d.box(c); err != nil {
			return nil, fmt.Errorf("chunk %d: %w", i, err)
		}
	}
	return t, nil
}

func (d *decoder) box(c pickle.Cell) (tensor.Box, error) {
	if class, _ := c.Class(); class != classChunk {
		return tensor.Box{}, fmt.Errorf("%s is no chunk", d.describe(c))
	}
	f, _ := d.Fields(c)
	offsets, err := d.ints(f[0], "offsets")
	if err != nil {
		return tensor.Box{}, err
	}
	sizes, err := d.ints(f[1], "sizes")
	return tensor.Box{Offsets: offsets, Sizes: sizes}, err
}

// ints returns the integers of a size, a tuple or a list.
func (d *decoder) ints(c pickle.Cell, what string) ([]int64, error) {
	if v, ok := d.Ints(c); ok {
		return v, checkDims(len(v), what)
	}
	if args, ok := d.Args(c); ok && len(args) == 1 && d.isName(c, "torch", "Size") {
		c = args[0]
	}
	list, ok := d.List(c)
	if !ok {
		return nil, fmt.Errorf("%s is %s", what, d.describe(c))
	}
	if err := checkDims(len(list), what); err != nil {
		return nil, err
	}
	if err := d.Charge(8 * len(list)); err != nil {
		return nil, err
	}
	out := make([]int64, len(list))
	for i, e := range list {
		if out[i], ok = e.Int(); !ok {
			return nil, fmt.Errorf("%s holds %s", what, d.describe(e))
		}
	}
	return out, nil
}

// checkDims returns an error if there are more dimensions than a tensor can have.
func checkDims(n int, what string) error {
	if n > tensor.MaxDims {
		return fmt.Errorf("%s has %d dimensions, at most %d", what, n, tensor.MaxDims)
	}
	return nil
}

func (d *decoder) isName(c pickle.Cell, module, name string) bool {
	m, n, ok := d.Name(c)
	return ok && m == module && n == name
}

func (d *decoder) properties(c pickle.Cell) (p meta.Properties, err error) {
	if class, _ := c.Class(); class != classProperties {
		return p, fmt.Errorf("properties are %s", d.describe(c))
	}
	f, _ := d.Fields(c)
	if p.DType, err = d.dtype(get(f, fieldDType)); err != nil {
		return p, err
	}
	if p.Layout, err = d.layout(get(f, fieldLayout)); err != nil {
		return p, err
	}
	if p.MemoryFormat, err = d.memoryFormat(get(f, fieldMemoryFormat)); err != nil {
		return p, err
	}
	if p.RequiresGrad, err = d.flag(get(f, fieldRequiresGrad), "requires_grad"); err != nil {
		return p, err
	}
	p.PinMemory, err = d.flag(get(f, fieldPinMemory), "pin_memory")
	return p, err
}

// flag returns a boolean, false for None.
func (d *decoder) flag(c pickle.Cell, what string) (bool, error) {
	v, ok := c.Bool()
	if !ok && !isNone(c) {
		return false, fmt.Errorf("%s is %s", what, d.describe(c))
	}
	return v && ok, nil
}

// dtype reads torch's own dtype, or its name: hyper_parallel writes str(dtype).
func (d *decoder) dtype(c pickle.Cell) (tensor.DType, error) {
	name, ok, err := d.str(c, 0)
	if err != nil {
		return 0, err
	}
	if !ok {
		module, n, isName := d.Name(c)
		if !isName || c.Kind() != pickle.Global || module != "torch" {
			return 0, fmt.Errorf("dtype is %s", d.describe(c))
		}
		name = n
	}
	return tensor.ParseDType(strings.TrimPrefix(name, "mindspore."))
}

// layout returns the name of a layout, empty for torch.strided.
func (d *decoder) layout(c pickle.Cell) (string, error) {
	if isNone(c) {
		return "", nil
	}
	module, name, ok := d.Name(c)
	if args, called := d.Args(c); called && len(args) == 1 && d.isName(c, "torch.serialization", "_get_layout") {
		text, _, err := d.str(args[0], 0)
		if err != nil {
			return "", err
		}
		name, ok = strings.CutPrefix(text, "torch.")
		module = "torch"
	}
	if !ok || module != "torch" || c.Kind() != pickle.Object && c.Kind() != pickle.Global {
		return "", fmt.Errorf("layout is %s", d.describe(c))
	}
	if name == "strided" {
		return "", nil
	}
	return name, nil
}

// memoryFormats are the memory formats by PyTorch's numbers.
var memoryFormats = []string{"", "channels_last", "preserve_format"}

// memoryFormat returns the name of a memory format, empty for a contiguous one.
func (d *decoder) memoryFormat(c pickle.Cell) (string, error) {
	if isNone(c) {
		return "", nil
	}
	if s, ok, err := d.str(c, 0); ok || err != nil {
		return plainFormat(strings.TrimPrefix(s, "torch.")), err
	}
	module, name, _ := d.Name(c)
	if c.Kind() == pickle.Global && module == "torch" {
		return plainFormat(name), nil
	}
	if args, ok := d.Args(c); ok && len(args) == 1 && strings.TrimPrefix(name, "_") == "MEM_FORMAT_ENCODING" {
		if i, ok := args[0].Int(); ok && i >= 0 && i < int64(len(memoryFormats)) {
			return memoryFormats[i], nil
		}
	}
	return "", fmt.Errorf("memory_format is %s", d.describe(c))
}

func plainFormat(s string) string {
	if s == "contiguous_format" {
		return ""
	}
	return s
}
