package tensor

import (
	"strings"
	"testing"
)

// The kind of a type is in its name, and each type is of one kind but bool, which
// has no kind.
func TestKinds(t *testing.T) {
	for _, d := range DTypes() {
		name := d.String()
		for kind, k := range map[string]struct{ got, want bool }{
			"float":   {d.IsFloat(), strings.HasPrefix(name, "float") || strings.HasPrefix(name, "bfloat")},
			"integer": {d.IsInteger(), strings.HasPrefix(name, "int") || strings.HasPrefix(name, "uint")},
			"complex": {d.IsComplex(), strings.HasPrefix(name, "complex")},
		} {
			if k.got != k.want {
				t.Errorf("%v is of the kind %s: %v; want %v", d, kind, k.got, k.want)
			}
		}
	}
	for _, d := range []DType{Invalid, 21, 255} {
		if d.IsFloat() || d.IsInteger() || d.IsComplex() {
			t.Errorf("DType(%d) is of a kind; want none", uint8(d))
		}
	}
}
