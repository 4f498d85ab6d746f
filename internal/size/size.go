// Package size parses and prints numbers of bytes as people write them. It does not depend on the
// objects of these sizes.
package size

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// multipliers are the units of Parse, in lower case, without a B at the end.
var multipliers = map[string]float64{
	"":   1,
	"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40, "pi": 1 << 50,
	"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15,
}

// Parse parses a number of bytes such as 64MiB, 5GB, 1.5g or 4096.
func Parse(s string) (int64, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	i := strings.LastIndexAny(text, "0123456789.") + 1
	v, err := strconv.ParseFloat(text[:i], 64)
	unit := strings.TrimSpace(text[i:])
	m, ok := multipliers[strings.TrimSuffix(unit, "b")]
	if err != nil || !ok || v < 0 {
		return 0, fmt.Errorf("%q is no size: want a number and a unit such as 64MiB, 5GB or 4096", s)
	}

	if v *= m; v >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is too large", s)
	}
	return int64(v), nil
}

// Format prints a number of bytes with one digit after the point: "1.5 GiB".
func Format(v float64) string {
	if math.Abs(v) < 1024 {
		return fmt.Sprintf("%.0f B", v)
	}
	v, unit := v/1024, 0
	for ; math.Abs(v) > 1023.94 && unit < 5; unit++ { // more would be printed as 1024.0
		v /= 1024
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTPE"[unit])
}
