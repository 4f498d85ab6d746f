//go:build !purego

package adapter

// addProducts adds to each of the panelColumns floats at d, scaled, the sum of the products of the
// rank floats at left and of a column of the panel. rank is not zero.
//
//go:noescape
func addProducts(d, left, panel *float32, rank int, scale float32)

func addRow(d *[panelColumns]float32, left, panel []float32, scale float32) {
	addProducts(&d[0], &left[0], &panel[0], len(left), scale)
}
