package doctor

// SetPartBytes changes the size of the parts of a large object.
func SetPartBytes(n int64) (undo func()) {
	old := partBytes
	partBytes = n
	return func() { partBytes = old }
}
