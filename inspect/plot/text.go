package plot

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/internal/size"
)

// escape returns text for the content of an element. Invalid UTF-8 and characters that
// cannot be printed are replaced.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s { // invalid UTF-8 gives utf8.RuneError
		switch {
		case r == '<':
			b.WriteString("&lt;")
		case r == '>':
			b.WriteString("&gt;")
		case r == '"':
			b.WriteString("&quot;")
		case r == '&':
			b.WriteString("&amp;")
		case r == '\n': // in the tips
			b.WriteByte('\n')
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteRune(utf8.RuneError)
		}
	}
	return b.String()
}

// textWidth estimates the width of text. Fonts differ, so that it is rather too large.
func textWidth(s string, size float64) float64 {
	w := 0.0
	for _, r := range s {
		w += charWidth(r)
	}
	return w * size
}

func charWidth(r rune) float64 {
	switch {
	case r < utf8.RuneSelf:
		switch {
		case strings.ContainsRune("ijl.,:;|!'()[]/ ", r):
			return 0.38
		case strings.ContainsRune("mwMW@%", r):
			return 0.97
		case r >= 'A' && r <= 'Z':
			return 0.7
		}
		return 0.62
	case r >= 0x1100: // ideographs and the like
		return 1.05
	}
	return 0.66
}

// fit shortens text in the middle until it is at most width wide.
func fit(s string, size, width float64) string {
	if len(s) <= 4096 && textWidth(s, size) <= width {
		return s
	}
	const ellipsis = "…"
	runes := []rune(s)
	room := width - size*charWidth('…')
	var head, tail int
	for room > 0 && head+tail < len(runes) {
		r := runes[head]
		if head > tail {
			r = runes[len(runes)-1-tail]
		}
		room -= charWidth(r) * size
		if room < 0 {
			break
		}
		if head > tail {
			tail++
		} else {
			head++
		}
	}
	if head+tail == len(runes) {
		return s
	}
	return string(runes[:head]) + ellipsis + string(runes[len(runes)-tail:])
}

// name shortens a name for texts of which it is only a part.
func name(s string) string { return fit(s, textSize, 420) }

// number prints a number with four digits.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "undefined"
	case math.IsInf(v, 1):
		return "∞"
	case math.IsInf(v, -1):
		return "−∞"
	}
	return tidy(strconv.FormatFloat(v, 'g', 4, 64))
}

// tidy writes a printed number with a minus sign, and its exponent without leading zeros.
func tidy(s string) string {
	if m, e, ok := strings.Cut(s, "e"); ok {
		n, _ := strconv.Atoi(e)
		s = m + "e" + strconv.Itoa(n)
	}
	return strings.ReplaceAll(s, "-", "−")
}

// count prints a number of things in full: 1234567 is "1,234,567".
func count[T int | int32 | int64](n T) string {
	s := strconv.FormatInt(int64(n), 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural prints a number of things with their name.
func plural[T int | int32 | int64](n T, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return count(n) + " " + thing
}

// byteSize prints a number of bytes as the command line does: "1.5 GiB".
func byteSize(v float64) string { return size.Format(v) }

// seconds prints a duration with about three digits.
func seconds(s float64) string {
	switch {
	case s < 0.0009995:
		return fmt.Sprintf("%.0f µs", s*1e6)
	case s < 0.00995:
		return fmt.Sprintf("%.1f ms", s*1000)
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 100:
		return fmt.Sprintf("%.2f s", s)
	}
	return time.Duration(min(s, 1e9) * float64(time.Second)).Round(time.Second).String()
}

// shapeText prints a shape: "[4096, 1024]".
func shapeText(shape []int64) string {
	parts := make([]string, len(shape))
	for i, n := range shape {
		parts[i] = strconv.FormatInt(n, 10)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// percent prints a part of a whole.
func percent(part, whole float64) string {
	if whole <= 0 {
		return "0%"
	}
	p := 100 * part / whole
	if p > 0 && p < 0.001 {
		return "<0.001%"
	}
	return strconv.FormatFloat(p, 'g', 3, 64) + "%"
}

// power prints a power: power(10, -3) is "10⁻³".
func power(base, exponent int) string {
	var b strings.Builder
	b.WriteString(strconv.Itoa(base))
	for _, r := range strconv.Itoa(exponent) {
		if r == '-' {
			b.WriteRune('⁻')
		} else {
			b.WriteRune([]rune("⁰¹²³⁴⁵⁶⁷⁸⁹")[r-'0'])
		}
	}
	return b.String()
}

// listed joins the parts that are not empty.
func listed(parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, " · ")
}

// some prints a count with what it counts, or "" if it is zero.
func some(n int64, what string) string {
	if n == 0 {
		return ""
	}
	return count(n) + " " + what
}
