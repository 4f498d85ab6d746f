package inspect

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
)

// LayerStats are the statistics of the tensors of a layer together.
type LayerStats struct {
	Layer   string `json:"layer"`
	Tensors int64  `json:"tensors"`
	Numbers
	// AbsMax is the largest magnitude of the finite elements, and undefined if there are
	// none.
	AbsMax Number `json:"abs_max"`
	// NaNShare is the share of the elements that are NaN, from 0 to 1.
	NaNShare float64 `json:"nan_share"`
}

// Layer returns the layer that a name belongs to: the name up to and with its first
// component that is a number, as in "model.layers.12". A name without one belongs to the name
// without its last component, or to itself if it has only one.
func Layer(fqn string) string {
	for at := 0; at <= len(fqn); {
		part, _, _ := strings.Cut(fqn[at:], ".")
		if isDigits(part) {
			return fqn[:at+len(part)]
		}
		at += len(part) + 1
	}
	if last := strings.LastIndexByte(fqn, '.'); last > 0 {
		return fqn[:last]
	}
	return fqn
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// Layers combines the statistics of the tensors of each layer as the totals of a report
// combine those of all tensors, except for rounding. The layers are in order, numbers by value:
// layers.2 comes before layers.10.
func Layers(r *StatsReport) []LayerStats {
	type layer struct {
		tensors int64
		sum     pairwise
	}
	byName := map[string]*layer{}
	for i := range r.Tensors {
		name := Layer(r.Tensors[i].FQN)
		l := byName[name]
		if l == nil {
			l = new(layer)
			byName[name] = l
		}
		l.tensors++
		l.sum.add(momentsFrom(&r.Tensors[i].Numbers))
	}
	out := make([]LayerStats, 0, len(byName))
	for name, l := range byName {
		s := LayerStats{Layer: name, Tensors: l.tensors, Numbers: newNumbers(l.sum.total())}
		s.AbsMax = s.absMax()
		if s.Elements > 0 {
			s.NaNShare = float64(s.NaN) / float64(s.Elements)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b LayerStats) int { return compareNames(a.Layer, b.Layer) })
	return out
}

// momentsFrom returns moments with the given numbers. They are those from which the numbers
// were computed, except for rounding.
func momentsFrom(n *Numbers) moments {
	m := moments{n: n.Finite(), zeros: n.Zeros, nan: n.NaN, posInf: n.PosInf, negInf: n.NegInf}
	if m.n == 0 {
		return m
	}
	m.min, m.max, m.mean = float64(n.Min), float64(n.Max), float64(n.Mean)
	std := float64(n.Std)
	if m.m2 = float64(std*std) * float64(m.n); !isFinite(m.m2) {
		m.mean, std, m.scaled = math.Ldexp(m.mean, -scaleBits), math.Ldexp(std, -scaleBits), true
		m.m2 = float64(std*std) * float64(m.n)
	}
	return m
}

// compareNames orders names component by component.
func compareNames(a, b string) int {
	for {
		x, restA, moreA := strings.Cut(a, ".")
		y, restB, moreB := strings.Cut(b, ".")
		c := compareParts(x, y)
		switch {
		case c != 0:
			return c
		case !moreA || !moreB:
			return cmp.Compare(count(moreA), count(moreB))
		}
		a, b = restA, restB
	}
}

// compareParts orders the components of names: numbers by value and before words, so that
// layer 10 comes after layer 9.
func compareParts(a, b string) int {
	x, isX := parseDigits(a)
	y, isY := parseDigits(b)
	if isX && isY {
		return cmp.Or(cmp.Compare(x, y), strings.Compare(a, b))
	}
	return cmp.Or(cmp.Compare(count(isY), count(isX)), strings.Compare(a, b))
}

// parseDigits returns a number of 64 bits that has only digits.
func parseDigits(s string) (uint64, bool) {
	if !isDigits(s) {
		return 0, false // without the allocation of an error
	}
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil
}
