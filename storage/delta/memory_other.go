//go:build !linux

package delta

func mapSlab(size int) ([]byte, error) { return make([]byte, size), nil }

func unmapSlab([]byte) {}
