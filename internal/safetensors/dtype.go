package safetensors

import "github.com/cairn-ckpt/cairn/tensor"

// dtypes are the format's element types of whole bytes. Those that every
// library since safetensors 0.4 knows are stock; F4, F6_E2M3 and F6_E3M2, which
// are packed below a byte, have no counterpart here.
var dtypes = [...]struct {
	name  string
	dtype tensor.DType
	stock bool
}{
	{"F64", tensor.Float64, true},
	{"F32", tensor.Float32, true},
	{"F16", tensor.Float16, true},
	{"BF16", tensor.BFloat16, true},
	{"F8_E4M3", tensor.Float8E4M3FN, true},
	{"F8_E5M2", tensor.Float8E5M2, true},
	{"I64", tensor.Int64, true},
	{"I32", tensor.Int32, true},
	{"I16", tensor.Int16, true},
	{"I8", tensor.Int8, true},
	{"U64", tensor.Uint64, true},
	{"U32", tensor.Uint32, true},
	{"U16", tensor.Uint16, true},
	{"U8", tensor.Uint8, true},
	{"BOOL", tensor.Bool, true},
	{"F8_E8M0", tensor.Float8E8M0FNU, false},
	{"F8_E4M3FNUZ", tensor.Float8E4M3FNUZ, false},
	{"F8_E5M2FNUZ", tensor.Float8E5M2FNUZ, false},
	{"C64", tensor.Complex64, false},
}

var byName = func() map[string]tensor.DType {
	m := make(map[string]tensor.DType, len(dtypes))
	for _, t := range dtypes {
		m[t.name] = t.dtype
	}
	return m
}()

// TensorDType returns the type that the format calls name. It knows every name
// of whole bytes that some version of the format has: what can be read.
func TensorDType(name string) (tensor.DType, bool) {
	d, ok := byName[name]
	return d, ok
}

// DTypeName returns the format's name of d if every library since safetensors
// 0.4 knows it: what may be written so that others can read it. It reports
// false for the float8 types beside float8_e4m3fn and float8_e5m2 and for the
// complex types, also where newer libraries have a name for them.
func DTypeName(d tensor.DType) (string, bool) {
	for _, t := range dtypes {
		if t.dtype == d {
			if !t.stock {
				break
			}
			return t.name, true
		}
	}
	return "", false
}
