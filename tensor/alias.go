package tensor

import (
	"fmt"
	"strings"
)

// aliases are the usual short names of element types.
var aliases = map[DType][]string{
	Float64:        {"fp64", "f64", "double"},
	Float32:        {"fp32", "f32", "float"},
	Float16:        {"fp16", "f16", "half"},
	BFloat16:       {"bf16"},
	Float8E4M3FN:   {"float8_e4m3", "fp8_e4m3", "fp8_e4m3fn", "f8_e4m3", "f8_e4m3fn"},
	Float8E4M3FNUZ: {"fp8_e4m3fnuz", "f8_e4m3fnuz"},
	Float8E5M2:     {"fp8_e5m2", "f8_e5m2"},
	Float8E5M2FNUZ: {"fp8_e5m2fnuz", "f8_e5m2fnuz"},
	Float8E8M0FNU:  {"float8_e8m0", "fp8_e8m0", "fp8_e8m0fnu", "f8_e8m0", "f8_e8m0fnu"},
	Int64:          {"i64", "long"},
	Int32:          {"i32", "int"},
	Int16:          {"i16", "short"},
	Int8:           {"i8"},
	Uint64:         {"u64"},
	Uint32:         {"u32"},
	Uint16:         {"u16"},
	Uint8:          {"u8"},
	Complex64:      {"c64", "cfloat"},
	Complex128:     {"c128", "cdouble"},
}

// Aliases returns the short names by which people call d, the usual one first.
func (d DType) Aliases() []string { return append([]string(nil), aliases[d]...) }

// LookupDType is ParseDType for what people type: it takes short names such as
// "bf16" too, and its error lists the names that there are. What files say is for
// ParseDType.
func LookupDType(s string) (DType, error) {
	if d, err := ParseDType(s); err == nil {
		return d, nil
	}
	name := strings.ToLower(strings.TrimPrefix(s, "torch."))
	for d, list := range aliases {
		for _, a := range list {
			if a == name {
				return d, nil
			}
		}
	}
	var known []string
	for _, d := range DTypes() {
		known = append(known, d.String())
	}
	return Invalid, fmt.Errorf("%w %q: want one of %s", ErrDType, s, strings.Join(known, ", "))
}
