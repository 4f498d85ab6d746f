package recipe_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/tensor"
)

// multiplied is a rule that multiplies by a constant of side b.
func multiplied(constant string) string {
	return sides + "[variables]\nd = 'config.d'\n[[rule]]\na = 'x [n, m]'\nb = 'y [m, n]'\nmultiply = { b = " + constant + " }\n"
}

// TestMultiplyConstants checks the constants of both directions, and what the binding says about
// the result.
func TestMultiplyConstants(t *testing.T) {
	root6 := math.Sqrt(6)
	for _, c := range []struct {
		constant, from string
		want           float64
		inexact        string
	}{
		{"0.5", "a", 0.5, "multiplied by 0.5: numbers near zero are rounded to bfloat16"},
		{"0.5", "b", 2, ""},
		{"-8", "a", -8, ""},
		{"3", "b", 1.0 / 3, "multiplied by 0.33333334 in float32 and rounded to bfloat16"},
		{"1", "a", 0, ""},
		{"'sqrt(d)'", "a", root6, "multiplied by 2.4494898 in float32 and rounded to bfloat16"},
		{"'sqrt(d)'", "b", 1 / root6, "multiplied by 0.4082483 in float32 and rounded to bfloat16"},
		{"'sqrt(n * n)'", "a", 2, ""},
		{"'sqrt(n * n)'", "b", 0.5, "multiplied by 0.5: numbers near zero are rounded to bfloat16"},
		{"'config.scale'", "a", 1.25, "multiplied by 1.25 in float32 and rounded to bfloat16"},
	} {
		md := shapes{map[string]string{"a": "x", "b": "y"}[c.from]: map[string][]int64{"a": {2, 3}, "b": {3, 2}}[c.from]}.metadata()
		md.Entries[0].Tensor.DType = tensor.BFloat16
		r, err := recipe.Parse("test", []byte(multiplied(c.constant)))
		if err != nil {
			t.Fatal(err)
		}
		b, err := recipe.Bind(r, c.from, md, recipe.Options{Config: map[string]any{"d": 6, "scale": 1.25}})
		if err != nil {
			t.Fatal(err)
		}
		x := b.Tensors[0]
		if x.Multiply != c.want || x.Inexact != c.inexact || x.Arithmetic() != (c.want != 0) {
			t.Errorf("%s from %s: Multiply = %v, Inexact = %q, Arithmetic = %v; want %v, %q", c.constant, c.from, x.Multiply, x.Inexact, x.Arithmetic(), c.want, c.inexact)
		}
		if got := len(b.Inexact()); (got == 1) != (c.inexact != "") {
			t.Errorf("%s from %s: %d tensors are not exact", c.constant, c.from, got)
		}
	}
}

// TestMultiplyRefused checks the errors of constants that no element can be multiplied by.
func TestMultiplyRefused(t *testing.T) {
	for constant, want := range map[string]string{
		"0":     "want a finite number other than zero, not 0",
		"-0.0":  "want a finite number other than zero",
		"nan":   "want a finite number other than zero, not NaN",
		"inf":   "want a finite number other than zero, not +Inf",
		"-inf":  "want a finite number other than zero, not -Inf",
		"1e39":  "float32 has no number near 1e+39",
		"1e-60": "float32 has no number near 1e-60",
		"true":  "want a number or a formula",
		"'d +'": "it ends too early",
		"'k'":   "k is not defined; known are",
		"'m?'":  "has no meaning in a formula",
	} {
		_, err := recipe.Parse("test", []byte(multiplied(constant)))
		if !errors.Is(err, recipe.ErrSyntax) || !strings.Contains(fmt.Sprint(err), want) || !strings.Contains(fmt.Sprint(err), "multiply: ") {
			t.Errorf("%s: %v; want %q", constant, err, want)
		}
	}

	for constant, want := range map[string]string{
		"'d'":           "multiply: d is 0: want a finite number other than zero",
		"'config.text'": `multiply: config.text is "x": want a number`,
		"'config.none'": "the value of config.none is not known",
		"'sqrt(0 - n)'": "sqrt: -2 has no square root",
		"'config.huge'": "float32 has no number near 1e+39",
		"'config.tiny'": "float32 has no number near",
		"1e-39":         "float32 has no number near 1.0",
	} {
		from, md := "a", shapes{"x": {2, 3}}.metadata()
		if constant == "1e-39" { // in the other direction it is too large
			from, md = "b", shapes{"y": {3, 2}}.metadata()
		}
		r, err := recipe.Parse("test", []byte(multiplied(constant)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = recipe.Bind(r, from, md, recipe.Options{Config: map[string]any{"d": 0, "text": "x", "huge": 1e39, "tiny": 1e-60}})
		if !errors.Is(err, recipe.ErrVariable) && !strings.Contains(want, "root") || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v; want %q", constant, err, want)
		}
	}
}

// TestMultiplyIntegers checks that only floating-point numbers are multiplied.
func TestMultiplyIntegers(t *testing.T) {
	md := shapes{"x": {2, 3}}.metadata()
	md.Entries[0].Tensor.DType = tensor.Int32
	r, err := recipe.Parse("test", []byte(multiplied("2")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := recipe.Bind(r, "a", md, recipe.Options{}); !errors.Is(err, recipe.ErrIncomplete) || !strings.Contains(fmt.Sprint(err), "only floating-point numbers can be added to a constant or multiplied by one") {
		t.Error(err)
	}
}
