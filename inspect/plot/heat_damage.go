package plot

const stripes = 9.0 // pixels between the stripes of a damaged chunk

// damage stripes the part of each damaged chunk that the map shows.
func (m *heatMap) damage() {
	for i := range m.Damaged {
		c := &m.Damaged[i]
		side := func(dim int, of scale, lo, hi float64) (from, to float64) {
			if dim < 0 || dim >= len(c.Offsets) || dim >= len(c.Sizes) {
				return lo, hi
			}
			first := float64(c.Offsets[dim])
			return max(lo, of.at(first)), min(hi, of.at(first+float64(c.Sizes[dim])))
		}
		x0, x1 := side(m.Dims[1], m.f.x, m.f.x0, m.f.x1)
		y0, y1 := side(m.Dims[0], m.f.y, m.f.y0, m.f.y1)
		if !(x0 < x1 && y0 < y1) {
			continue
		}

		m.d.rect(x0, y0, x1-x0, y1-y0, `fill="`+paper+`" stroke="`+alarm+`" stroke-width="2"`, c.Problem)
		var p path
		for at := x0 + y0 + stripes; at < x1+y1; at += stripes { // the stripe where x + y = at
			p.move(max(x0, at-y1), min(y1, at-x0))
			p.to(min(x1, at-y0), max(y0, at-x1))
		}
		m.d.path(&p, `fill="none" stroke="`+alarm+`" stroke-width="1.5"`, "")
	}
}
