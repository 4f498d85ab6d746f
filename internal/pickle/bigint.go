package pickle

import (
	"math/big"
	"slices"
)

// twosComplement returns n as the fewest bytes that hold it, little-endian.
func twosComplement(n *big.Int) []byte {
	if n.Sign() == 0 {
		return nil
	}
	size := n.BitLen()/8 + 1
	v := n
	if n.Sign() < 0 {
		size = new(big.Int).Add(n, big.NewInt(1)).BitLen()/8 + 1
		v = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size)))
	}
	b := v.FillBytes(make([]byte, size))
	slices.Reverse(b)
	return b
}
