package recipe

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/tensor"
)

// TestLearn checks which sizes a shape tells, and which shapes contradict a layout.
func TestLearn(t *testing.T) {
	for _, c := range []struct {
		layout string
		given  map[string]int64
		shape  []int64
		want   string // the sizes, or the error
	}{
		{"n, m", nil, []int64{2, 3}, "map[m:3 n:2]"},
		{"", nil, nil, "map[]"},
		{"", nil, []int64{1}, "it has 1 dimensions"},
		{"n", nil, []int64{1, 2}, "it has 2 dimensions"},
		{"2 n", nil, []int64{6}, "map[n:3]"},
		{"2 n", nil, []int64{7}, "dimension 0: size 7 cannot be 2 n"},
		{"n m", nil, []int64{6}, "map[]"},
		{"n m", map[string]int64{"m": 3}, []int64{6}, "map[m:3 n:2]"},
		{"n m", map[string]int64{"m": 4}, []int64{6}, "dimension 0: size 6 cannot be n m with m=4"},
		{"n", map[string]int64{"n": 4}, []int64{6}, "dimension 0: it has size 6, the rule wants 4 (n with n=4)"},
		{"ffn + ffn", nil, []int64{6}, "map[ffn:3]"},
		{"ffn + ffn", nil, []int64{7}, "dimension 0: size 7 cannot be ffn + ffn"},
		{"n + m", nil, []int64{7}, "map[]"},
		{"n + m", map[string]int64{"m": 5}, []int64{7}, "map[m:5 n:2]"},
		{"n + m", map[string]int64{"m": 7}, []int64{7}, "map[m:7 n:0]"},
		{"n + m", map[string]int64{"m": 8}, []int64{7}, "dimension 0: size 7 cannot be n + m with m=8"},
		{"kv (g + 1 + 1) d, h", map[string]int64{"kv": 2, "d": 4}, []int64{40, 5}, "map[d:4 g:3 h:5 kv:2]"},
		{"kv (g + 1 + 1) d", map[string]int64{"g": 3, "d": 4}, []int64{40}, "map[d:4 g:3 kv:2]"},
		{"kv (g + 1 + 1) d", map[string]int64{"g": 3, "kv": 2, "d": 4}, []int64{41}, "dimension 0: it has size 41, the rule wants 40 (kv (g + 1 + 1) d with kv=2, g=3, d=4)"},
		{"kv (g + 1 + 1) d", map[string]int64{"kv": 2, "d": 4}, []int64{8}, "dimension 0: size 8 cannot be"},
		{"kv (g + 1 + 1) d", nil, []int64{40}, "map[]"},
		{"vocab + zeros(extra), h", map[string]int64{"vocab": 5}, []int64{8, 2}, "map[extra:3 h:2 vocab:5]"},
		{"vocab + zeros(extra), h", map[string]int64{"vocab": 9}, []int64{8, 2}, "dimension 0: size 8 cannot be vocab + zeros(extra) with vocab=9"},
		{"n (m + 1), k", nil, []int64{6, 2}, "map[k:2]"},
		{"n, ...", nil, []int64{2, 3, 4}, "map[n:2] [3 4]"},
		{"..., n", nil, []int64{2, 3, 4}, "map[n:4] [2 3]"},
		{"..., n", nil, []int64{4}, "map[n:4]"},
		{"..., n", nil, nil, "it has 0 dimensions"},
		{"2 n", map[string]int64{"n": maxSize}, []int64{6}, "times"},
		{"n + m", map[string]int64{"n": maxSize, "m": maxSize}, []int64{6}, "the sum is too large"},
		{"0n", nil, nil, "is not a size"},
		{"n k", map[string]int64{"n": 0}, []int64{0}, "cannot be n k"},
	} {
		t.Run(fmt.Sprint(c.layout, c.given, c.shape), func(t *testing.T) {
			got := func() string {
				l, err := parseLayout(c.layout)
				if err != nil {
					return err.Error()
				}
				if l.String() != "["+c.layout+"]" {
					t.Errorf("String: %s", l)
				}
				s := &sizes{of: maps.Clone(c.given)}
				if s.of == nil {
					s.of = map[string]int64{}
				}
				for found := true; found; {
					if found, err = s.learn(l, c.shape); err != nil {
						return err.Error()
					}
				}
				if len(s.rest) > 0 {
					return fmt.Sprint(s.of, s.rest)
				}
				shape, unknown, err := s.shape(l)
				if err != nil || len(unknown) == 0 && fmt.Sprint(shape) != fmt.Sprint(c.shape) {
					t.Errorf("shape %v, %v", shape, err)
				}
				return fmt.Sprint(s.of)
			}()
			if !strings.Contains(got, c.want) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestShapeOverflow checks that sizes cannot overflow.
func TestShapeOverflow(t *testing.T) {
	for _, text := range []string{"n, k n2", "n + n2, k", "n k n2", "n, n2"} {
		l, err := parseLayout(text)
		if err != nil {
			t.Fatal(err)
		}
		s := &sizes{of: map[string]int64{"n": 1 << 60, "n2": 1 << 60, "k": 1 << 40}}
		if _, _, err := s.shape(l); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"a*", "ab", true}, {"*b", "ab", true}, {"a*b", "ab", true}, {"ab*b", "ab", false},
		{"*", "", true}, {"a*b*c", "abbc", true}, {"a*bc*c", "abc", false}, {"*.w", "x.w.w", true}, {"a**b", "a.b", true}, {"*x*x*", "ax", false}, {"a.c", "abc", false},
	} {
		g, err := parseGlob(c.glob)
		if err != nil || g.match(c.name) != c.want {
			t.Errorf("%s %s: %v", c.glob, c.name, err)
		}
	}
}
