package inspect

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// HeatOptions say which part of a tensor a heat map shows, and how finely.
type HeatOptions struct {
	// Index is a Python index that leaves two dimensions or fewer: "0, :, 16:32". Empty: the
	// first index of all dimensions but the last two.
	Index string
	// Rows and Cols are the shown part [lo, hi) of the two dimensions. Zero: all, or the part
	// that Index selects.
	Rows, Cols [2]int64
	// Height and Width are the most cells. Zero: 256. More than 1024 count as 1024.
	Height, Width int
	// MaxBytes bounds the bytes of the elements that are read. Zero: 64 MiB. A larger part is
	// sampled. So is a part with elements so far apart that a format would read more than about
	// 16 times as much around them. A sample has fewer cells if that is necessary.
	MaxBytes int64
	// Damaged reports whether an error is about the bytes of a chunk, so that other chunks may
	// be readable: the heat map then leaves out such chunks. Nil: an error is the result.
	Damaged func(err error) bool
}

// The limits of heat maps.
const (
	heatCells    = 256
	maxHeatCells = 1024
	maxHeatText  = 4096
	maxHeatBytes = 64 << 20
	// heatSurrounds is how many times the bytes of elements a heat map reads with the bytes
	// around them.
	heatSurrounds = 16
)

// Heat is a slice of a tensor with two dimensions, divided into cells. Row k of the cells
// begins at row Rows[0] + k*(Rows[1]-Rows[0])/Height of the slice, rounded down, and ends
// where row k+1 begins. The same holds for columns. Like statistics, cells show complex
// numbers as their magnitude.
type Heat struct {
	FQN   string  `json:"fqn"`
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"` // of the tensor
	// Index is the slice, with the two shown dimensions as ":".
	Index string `json:"index"`
	// Dims are the dimensions of the tensor that are the rows and the columns. -1: there
	// is no such dimension. A slice of one dimension is one row.
	Dims [2]int `json:"dims"`
	// Size has the rows and columns of the whole slice. Rows and Cols are the shown part,
	// which has Elements elements.
	Size     [2]int64 `json:"size"`
	Rows     [2]int64 `json:"rows"`
	Cols     [2]int64 `json:"cols"`
	Elements int64    `json:"elements"`
	// Height and Width are the numbers of cells. They are zero if the part has no elements.
	Height int `json:"height"`
	Width  int `json:"width"`
	// Read is the number of elements that were read. Exact means all, apart from damaged chunks. Otherwise the cells
	// show a sample, at least one element each.
	Read  int64 `json:"read"`
	Exact bool  `json:"exact"`
	// Mean, Min and Max are those of the finite elements of each cell, row by row. They are
	// undefined if there are none.
	Mean []Number `json:"mean"`
	Min  []Number `json:"min"`
	Max  []Number `json:"max"`
	// NaN, PosInf and NegInf count the other elements of each cell. Nil: there are none.
	NaN    []int32 `json:"nan,omitempty"`
	PosInf []int32 `json:"pos_inf,omitempty"`
	NegInf []int32 `json:"neg_inf,omitempty"`
	// Damaged are the chunks with elements that were left out.
	Damaged []DamagedChunk `json:"damaged,omitempty"`
	// Text has the elements as ElementFormat prints them, if each cell is one element and
	// there are at most 4096.
	Text []string `json:"text,omitempty"`
	// Low and High are the least and the largest finite element that was read. They are
	// undefined if there is none.
	Low  Number `json:"low"`
	High Number `json:"high"`
}

// NewHeat reads a slice of the tensor e, or samples it if it is large. It holds about 200 MiB
// at most, and 100 MiB with the default number of cells. The result has the same bits whatever
// the number of processors is, and however the tensor was cut and stored. Errors in the options
// wrap ErrIndex.
func NewHeat(ctx context.Context, src Content, e *meta.Entry, o HeatOptions) (*Heat, error) {
	if e.Tensor == nil {
		return nil, fmt.Errorf("%w: %q is not a tensor", ErrIndex, e.FQN)
	}

	d, shape := e.Tensor.DType, e.Tensor.Shape
	if _, err := tensor.NumBytes(d, shape); err != nil {
		return nil, fmt.Errorf("%q: %w", e.FQN, err)
	}

	p, err := newPlane(o.Index, shape)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", e.FQN, err)
	}

	h := &Heat{
		FQN: e.FQN, DType: d.String(), Shape: append([]int64{}, shape...), Index: p.index(), Dims: p.dims, Size: p.size,
		Mean: []Number{}, Min: []Number{}, Max: []Number{}, Low: Number(math.NaN()), High: Number(math.NaN()),
	}
	if h.Rows, err = window(o.Rows, p.part[0], p.size[0], "rows"); err == nil {
		h.Cols, err = window(o.Cols, p.part[1], p.size[1], "columns")
	}
	if err == nil && (o.Height < 0 || o.Width < 0 || o.MaxBytes < 0) {
		err = fmt.Errorf("%w: %d times %d cells of at most %d bytes", ErrIndex, o.Height, o.Width, o.MaxBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("%q: %w", e.FQN, err)
	}

	h.Elements = (h.Rows[1] - h.Rows[0]) * (h.Cols[1] - h.Cols[0])
	if h.Exact = h.Elements == 0; h.Exact {
		return h, nil
	}
	return h, newHeater(src, e, p, h, &o).fill(ctx)
}

// window returns the shown part of a dimension of size n, of which the index has the part
// indexed. Zero: all.
func window(w, indexed [2]int64, n int64, what string) ([2]int64, error) {
	if w != [2]int64{} && indexed != [2]int64{} {
		return w, fmt.Errorf("%w: the %s [%d, %d) and an index with the %s [%d, %d)", ErrIndex, what, w[0], w[1], what, indexed[0], indexed[1])
	}
	if w == [2]int64{} {
		w = indexed
	}
	if w == [2]int64{} {
		w[1] = n
	}

	if w[0] < 0 || w[1] > n || w[0] >= w[1] && n > 0 {
		return w, fmt.Errorf("%w: the %s [%d, %d) of %d", ErrIndex, what, w[0], w[1], n)
	}
	return w, nil
}

// plane is a slice of a tensor with at most two dimensions.
type plane struct {
	sel  *Selection
	dims [2]int      // -1: there is no such dimension
	size [2]int64    // rows and columns
	part [2][2]int64 // the rows and columns that the index has; zero: all
}

// newPlane parses an index that leaves at most two dimensions. An empty text is the first index of all dimensions but the last two.
func newPlane(text string, shape []int64) (*plane, error) {
	p := &plane{dims: [2]int{-1, -1}, size: [2]int64{1, 1}}
	if text == "" {
		p.sel = SelectAll(shape)
		for d := range max(0, len(shape)-2) {
			p.sel.picks[d] = pick{step: 1, count: min(1, shape[d]), single: true}
		}
	} else {
		var err error
		if p.sel, err = ParseSelection(text, shape); err != nil {
			return nil, err
		}
	}

	for d, k := range p.sel.picks {
		switch {
		case k.single:
		case k.step != 1 && k.count > 1:
			return nil, fmt.Errorf("%w [%s] of shape %v: dimension %d has steps: a heat map shows neighbours", ErrIndex, trimBrackets(text), shape, d)
		case k.count == 0 && shape[d] > 0:
			return nil, fmt.Errorf("%w [%s] of shape %v: no index of dimension %d is left", ErrIndex, trimBrackets(text), shape, d)
		case p.dims[0] >= 0:
			return nil, fmt.Errorf("%w [%s] of shape %v: it leaves more than two dimensions", ErrIndex, trimBrackets(text), shape)
		default:
			p.dims = [2]int{p.dims[1], d}
			p.size = [2]int64{p.size[1], shape[d]}
			p.part = [2][2]int64{p.part[1], {}}
			if whole := (pick{step: 1, count: shape[d]}); k != whole {
				p.part[1] = [2]int64{k.start, k.start + k.count}
				p.sel.picks[d] = whole
			}
		}
	}

	if p.dims[0] < 0 {
		p.size[0] = 1
	}
	if p.sel.Elements() == 0 && !slices.Contains(p.size[:], 0) { // an empty dimension has no first index
		p.size = [2]int64{}
	}
	return p, nil
}

// index returns the index of the slice as text. That of a scalar is "...".
func (p *plane) index() string {
	if len(p.sel.picks) == 0 {
		return "..."
	}

	parts := make([]string, len(p.sel.picks))
	for d, k := range p.sel.picks {
		parts[d] = ":"
		if k.single {
			parts[d] = strconv.FormatInt(k.start, 10)
		}
	}

	return strings.Join(parts, ", ")
}

// pitch returns the distance of neighbours in a row and of neighbours in a column, in
// bytes of a contiguous tensor.
func (p *plane) pitch(t *meta.Tensor) (row, col int64) {
	after := func(dim int) int64 {
		n := int64(t.DType.Size())
		for _, s := range t.Shape[dim+1:] {
			n *= s
		}
		return n
	}

	row, col = 0, int64(t.DType.Size())
	if p.dims[1] >= 0 {
		col = after(p.dims[1])
	}
	if p.dims[0] >= 0 {
		row = after(p.dims[0])
	}
	return row, col
}

// box returns a part of the slice, as a box of the selection's index space.
func (p *plane) box(rows, cols [2]int64) tensor.Box {
	b := tensor.Box{Offsets: make([]int64, len(p.sel.picks)), Sizes: make([]int64, len(p.sel.picks))}
	for d := range b.Sizes {
		b.Sizes[d] = 1
	}

	for i, part := range [2][2]int64{rows, cols} {
		if d := p.dims[i]; d >= 0 {
			b.Offsets[d], b.Sizes[d] = part[0], part[1]-part[0]
		}
	}

	return b
}
