// Package crc32c computes CRC-32C, the checksum with the Castagnoli polynomial, several times
// faster than hash/crc32 if the processor multiplies polynomials in wide registers, and by
// hash/crc32 otherwise. It does not depend on the meaning of the bytes. Its results equal the
// results of hash/crc32 with the Castagnoli table on every processor;
// docs/design/0007-crc32c.md has the reasons for this package.
package crc32c

import "hash/crc32"

var table = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the CRC-32C of p.
func Checksum(p []byte) uint32 { return Update(0, p) }

// Update returns the CRC-32C of the bytes that have the checksum crc with p
// after them. The checksum of no bytes is 0.
func Update(crc uint32, p []byte) uint32 {
	crc, p = foldBulk(crc, p)
	if len(p) == 0 {
		return crc
	}
	return crc32.Update(crc, table, p)
}
