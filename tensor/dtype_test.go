package tensor

import (
	"errors"
	"testing"
)

// The metadata that PyTorch 2.11 wrote for a tensor of shape (5, 3) of each dtype, and the
// number of the dtype in cairn's own format.
var torchDTypes = []struct {
	number DType
	name   string
	nbytes int64
}{
	{1, "float64", 120},
	{2, "float32", 60},
	{3, "float16", 30},
	{4, "bfloat16", 30},
	{5, "float8_e4m3fn", 15},
	{6, "float8_e4m3fnuz", 15},
	{7, "float8_e5m2", 15},
	{8, "float8_e5m2fnuz", 15},
	{9, "float8_e8m0fnu", 15},
	{10, "int64", 120},
	{11, "int32", 60},
	{12, "int16", 30},
	{13, "int8", 15},
	{14, "uint64", 120},
	{15, "uint32", 60},
	{16, "uint16", 30},
	{17, "uint8", 15},
	{18, "bool", 15},
	{19, "complex64", 120},
	{20, "complex128", 240},
}

func TestDTypesArePyTorchs(t *testing.T) {
	all := DTypes()
	if len(all) != len(torchDTypes) {
		t.Fatalf("DTypes() has %d; want %d", len(all), len(torchDTypes))
	}
	for i, want := range torchDTypes {
		d, err := ParseDType("torch." + want.name)
		if err != nil || d != want.number || all[i] != d || !d.Valid() {
			t.Errorf("ParseDType(torch.%s) = %d, %v; want %d", want.name, d, err, want.number)
		}
		if d.String() != want.name {
			t.Errorf("DType(%d).String() = %q; want %q", d, d, want.name)
		}
		if n, err := NumBytes(d, []int64{5, 3}); n != want.nbytes || err != nil {
			t.Errorf("NumBytes(%v, 5x3) = %d, %v; want %d", d, n, err, want.nbytes)
		}
	}
}

func TestParseDType(t *testing.T) {
	for _, s := range []string{"Float32", "FLOAT32", "torch.float32"} {
		if d, err := ParseDType(s); d != Float32 || err != nil {
			t.Errorf("ParseDType(%q) = %v, %v; want float32", s, d, err)
		}
	}
	for _, s := range []string{"", "invalid", "float", "torch.", "numpy.float32", "float32 "} {
		if d, err := ParseDType(s); d != Invalid || !errors.Is(err, ErrDType) {
			t.Errorf("ParseDType(%q) = %v, %v; want %v", s, d, err, ErrDType)
		}
	}
}

func TestInvalidDTypes(t *testing.T) {
	for _, d := range []DType{Invalid, 21, 255} {
		if d.Valid() || d.Size() != 0 {
			t.Errorf("DType(%d): Valid %v, Size %d; want false, 0", uint8(d), d.Valid(), d.Size())
		}
	}
	if got := DType(99).String(); got != "dtype(99)" {
		t.Errorf("DType(99).String() = %q; want dtype(99)", got)
	}
}
