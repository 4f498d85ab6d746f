package native

// The versions of the format. A number is never used again, and a test pins
// each one. What a version means byte by byte is in docs/format/native.md.
const (
	// formatVersion is the version of a checkpoint as a whole: of cairn.json, of
	// how the files lie beside each other, of the checksum grid and of the keys
	// in the data files. It changes when a program that knows only the older one
	// would misread a checkpoint; fields that may be ignored are added to the
	// record without a new version.
	//
	// Version 1 is the first: a record with a checksum of its own, an index,
	// data files in safetensors, CRC-32C over the tiles of each chunk.
	formatVersion = 1

	// indexVersion is the version of the index file. It has a number of its own
	// because the index can be rebuilt from the data files, so it may change
	// while the rest stays.
	//
	// Version 1 is the first: entries sorted by name in blocks, chunks as
	// columns of run-length coded differences, a directory and a tail at the
	// end.
	indexVersion = 1
)
