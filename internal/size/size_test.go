package size_test

import (
	"testing"

	"github.com/cairn-ckpt/cairn/internal/size"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "12b": 12, "64MiB": 64 << 20, "64mib": 64 << 20, "5GB": 5e9, "1.5KiB": 1536, "2 g": 2e9, "1Ti": 1 << 40, ".5k": 500,
	} {
		if got, err := size.Parse(text); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "x", "-1", "1.2.3", "5 apples", "1e400", "9999999PiB", "nan", "inf", "0x10", "+-1"} {
		if got, err := size.Parse(text); err == nil {
			t.Errorf("Parse(%q) = %d; want an error", text, got)
		}
	}
}

func TestFormat(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 5 << 30: "5.0 GiB", -2048: "-2.0 KiB", 1 << 63: "8.0 EiB",
	} {
		if got := size.Format(v); got != want {
			t.Errorf("Format(%v) = %q; want %q", v, got, want)
		}
	}
}
