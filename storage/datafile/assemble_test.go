package datafile

import (
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"
)

// castagnoli is the standard library's word on the checksum.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func TestPiecesJoinToTheFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		file := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "file")
		piece := rapid.IntRange(1, 250).Draw(t, "piece")
		var crcs []uint32
		for at := 0; at < len(file); at += piece {
			crcs = append(crcs, crc32.Checksum(file[at:min(at+piece, len(file))], castagnoli))
		}
		if got, want := joinPieces(crcs, int64(piece), int64(len(file))), crc32.Checksum(file, castagnoli); got != want {
			t.Errorf("joinPieces of %d bytes by %d = %08x; want %08x", len(file), piece, got, want)
		}
	})
}
