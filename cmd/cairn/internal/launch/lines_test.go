package launch

import (
	"bytes"
	"strings"
	"testing"
)

func TestLinesAreWrittenWhole(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	for _, c := range []struct{ claim, in, want string }{
		{"nothing", "", ""},
		{"a line", "a\n", "> a\n"},
		{"empty lines", "\n\na\n", "> \n> \n> a\n"},
		{"no line feed at the end", "a\nb", "> a\n> b\n"},
		{"line ends of another system", "a\r\nb\r\n\r\n", "> a\n> b\n> \n"},
		{"a progress bar", "\r10%\r20%\r\r30%\ndone", "> 10%\n> 20%\n> 30%\n> done\n"},
		{"a line of the longest kind", long + "\n", "> " + long + "\n"},
		{"a longer one", long + "yz\n", "> " + long + "\n> yz\n"},
		{"a carriage return at the very end", "a\r", "> a\n"},
	} {
		for _, step := range []int{1, 2, 7, max(1, len(c.in))} {
			var out bytes.Buffer
			l := &lines{to: &out, prefix: "> "}
			for in := []byte(c.in); len(in) > 0; in = in[min(step, len(in)):] {
				if n, err := l.Write(in[:min(step, len(in))]); n != min(step, len(in)) || err != nil {
					t.Fatalf("Write = %d, %v", n, err)
				}
			}
			l.flush()
			if got := out.String(); got != c.want {
				t.Errorf("%s, %d bytes at a time: %q; want %q", c.claim, step, got, c.want)
			}
		}
	}
}
