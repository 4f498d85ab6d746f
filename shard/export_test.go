package shard

// Coord returns rank's place in m, or false if rank is not in it.
func (m Mesh) Coord(rank int) ([]int, bool) {
	c, err := m.coord(rank)
	return c, err == nil && c != nil
}
