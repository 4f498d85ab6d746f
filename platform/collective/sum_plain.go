//go:build !amd64 || purego

package collective

func sumFloat32(d, a, b []byte) { sumOf[float32](d, a, b) }
