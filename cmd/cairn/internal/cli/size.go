package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

var units = []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// formatBytes prints a number of bytes for people: "1.5 GiB".
func formatBytes(n int64) string { return formatUnits(float64(n)) }

func formatUnits(v float64) string {
	i := 0
	for math.Abs(v) >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%.0f B", v)
	}
	if v > 1023.94 && i < len(units)-1 { // would be printed as 1024.0
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// formatRate prints bytes a second.
func formatRate(perSecond float64) string { return formatUnits(perSecond) + "/s" }

// formatSeconds prints a duration with three digits or so.
func formatSeconds(s float64) string {
	switch {
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 100:
		return fmt.Sprintf("%.2f s", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// formatCount prints a large number of things: 1234567 is "1.23 M".
func formatCount(n int64) string {
	v := float64(n)
	for _, unit := range []string{"", " k", " M", " G", " T"} {
		if math.Abs(v) < 1000 || unit == " T" {
			if unit == "" {
				return strconv.FormatInt(n, 10)
			}
			return strconv.FormatFloat(v, 'f', 2, 64) + unit
		}
		v /= 1000
	}
	return strconv.FormatInt(n, 10)
}

// formatShape prints a shape as "[3, 4]".
func formatShape(shape []int64) string {
	parts := make([]string, len(shape))
	for i, n := range shape {
		parts[i] = strconv.FormatInt(n, 10)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// plural prints a count with its noun, which takes an s unless the count is
// one.
func plural[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// multipliers are the units that parseSize knows, lower-case, without a B at
// the end.
var multipliers = map[string]float64{
	"":   1,
	"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40, "pi": 1 << 50,
	"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15,
}

// parseSize reads a number of bytes such as 64MiB, 5GB, 1.5g or 4096.
func parseSize(s string) (int64, error) {
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

// sizeFlag is a flag that takes a size.
type sizeFlag int64

func (f *sizeFlag) Type() string { return "size" }

func (f *sizeFlag) String() string {
	return strings.NewReplacer(" ", "", ".0", "").Replace(formatBytes(int64(*f)))
}

func (f *sizeFlag) Set(s string) error {
	n, err := parseSize(s)
	*f = sizeFlag(n)
	return err
}
