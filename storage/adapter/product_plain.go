//go:build !amd64 || purego

package adapter

func addRow(d *[panelColumns]float32, left, panel []float32, scale float32) {
	addRowPlain(d, left, panel, scale)
}
