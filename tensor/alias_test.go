package tensor

import (
	"errors"
	"strings"
	"testing"
)

func TestLookupDType(t *testing.T) {
	for text, want := range map[string]DType{
		"bf16": BFloat16, "BF16": BFloat16, "torch.half": Float16, "fp16": Float16, "f32": Float32, "float": Float32,
		"double": Float64, "fp8_e4m3": Float8E4M3FN, "F8_E5M2": Float8E5M2, "bfloat16": BFloat16, "torch.int8": Int8, "long": Int64,
	} {
		if got, err := LookupDType(text); err != nil || got != want {
			t.Errorf("LookupDType(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	_, err := LookupDType("float17")
	if !errors.Is(err, ErrDType) || !strings.Contains(err.Error(), "float16, bfloat16, ") {
		t.Errorf("LookupDType(float17) = %v; want %v with the names", err, ErrDType)
	}
}

func TestAliasesAreUnique(t *testing.T) {
	of := map[string]DType{}
	for _, d := range DTypes() {
		for _, a := range append(d.Aliases(), d.String()) {
			if other, ok := of[a]; ok {
				t.Errorf("%q is %v and %v", a, other, d)
			}
			of[a] = d
		}
	}
}
