package adapter

import (
	"math"
	"slices"
)

// panelColumns is the number of columns of a product that are computed at once.
const panelColumns = 32

// blockRows is the number of rows for which a panel stays in the nearest cache.
const blockRows = 16

// addProduct adds the product of left, rows of rank numbers, and right, rank rows of cols numbers,
// to out, scaled. Each element of it is the sum of its products in float32, in their order, as
// PyTorch computes it. If fused is set, a product is not rounded before it is added, as in a
// convolution.
func addProduct(out, left, right []float32, rank, cols int64, scale float32, fused bool) {
	add := addRow
	if fused {
		add = addRowFused
	}
	panels := make([]float32, 0, (cols+panelColumns-1)/panelColumns*rank*panelColumns)
	for at := int64(0); at < cols; at += panelColumns {
		for k := range rank {
			panels = append(panels, right[k*cols+at:k*cols+min(at+panelColumns, cols)]...)
			panels = panels[:(int64(len(panels))+panelColumns-1)/panelColumns*panelColumns]
		}
	}

	var rest [panelColumns]float32 // of a row that ends in a panel
	for lefts := range slices.Chunk(left, int(rank*blockRows)) {
		for at := int64(0); at < cols; at += panelColumns {
			n, panel := min(panelColumns, cols-at), panels[at*rank:(at+panelColumns)*rank]
			for i := range int64(len(lefts)) / rank {
				to, row := out[i*cols+at:i*cols+at+n], lefts[i*rank:(i+1)*rank]
				if n == panelColumns {
					add((*[panelColumns]float32)(to), row, panel, scale)
					continue
				}
				copy(rest[:], to)
				add(&rest, row, panel, scale)
				copy(to, rest[:])
			}
		}
		out = out[int64(len(lefts))/rank*cols:]
	}
}

// addRowPlain adds the products of a row and the columns of a panel to d, scaled. The panel has
// panelColumns numbers for each number of the row.
func addRowPlain(d *[panelColumns]float32, left, panel []float32, scale float32) {
	var sums [panelColumns]float32
	for k, l := range left {
		for j, r := range panel[k*panelColumns:][:panelColumns] {
			sums[j] += float32(l * r) // the conversion keeps it from being fused
		}
	}
	for j, v := range sums {
		d[j] += float32(v * scale)
	}
}

func addRowFused(d *[panelColumns]float32, left, panel []float32, scale float32) {
	var sums [panelColumns]float32
	for k, l := range left {
		for j, r := range panel[k*panelColumns:][:panelColumns] {
			sums[j] = fused(l, r, sums[j])
		}
	}
	for j, v := range sums {
		d[j] += float32(v * scale)
	}
}

// fused returns x·y + z, rounded once.
func fused(x, y, z float32) float32 {
	p, w := float64(x)*float64(y), float64(z) // p is exact
	sum := p + w
	const half = 1 << 28 // of the last bit of a float32, in the bits of a float64
	bits := math.Float64bits(sum)
	if bits&(2*half-1) != half {
		return float32(sum)
	}

	// The sum looks like the middle between two numbers. What its own rounding has cut off tells
	// which one is closer.
	v := sum - p
	rest := (p - (sum - v)) + (w - v)
	if rest != 0 && (rest > 0) == (sum > 0) {
		bits++
	} else if rest != 0 {
		bits--
	}
	return float32(math.Float64frombits(bits))
}

// lanes is the number of sums that PyTorch makes of a row, each of every eighth element.
const lanes = 8

// rowNorm returns the length of a row as PyTorch computes it: the squares are added in lanes, then
// the lanes, then the rest. Products of the last one to three elements are fused.
func rowNorm(row []float32) float32 {
	var sums [lanes]float32
	for ; len(row) >= lanes; row = row[lanes:] {
		for k := range sums {
			sums[k] += float32(row[k] * row[k])
		}
	}

	sum := sums[0]
	for _, v := range sums[1:] {
		sum += v
	}
	even := len(row) &^ 3
	for _, v := range row[:even] {
		sum += float32(v * v)
	}
	for _, v := range row[even:] {
		sum = fused(v, v, sum)
	}
	return sqrt(sum)
}

func sqrt(v float32) float32 { return float32(math.Sqrt(float64(v))) }
