package meta_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
)

func TestIntKeysDifferFromStringKeys(t *testing.T) {
	for k, text := range map[int64]string{0: "0", -1: "-1", math.MaxInt64: "9223372036854775807", math.MinInt64: "-9223372036854775808"} {
		s := meta.IntKey(k)
		if s.String() != text || s.Check() != nil {
			t.Errorf("IntKey(%d) = %q, Check %v; want %q", k, s, s.Check(), text)
		}
		p, q := meta.Path{meta.Key("a"), s}, meta.Path{meta.Key("a"), meta.Key(text)}
		if p.Equal(q) || p.FQN() != q.FQN() || p.FQN() != "a."+text {
			t.Errorf("%v and %v: equal %v, called %q and %q; want other steps of one name", p, q, p.Equal(q), p.FQN(), q.FQN())
		}
	}
}

func TestCheckStep(t *testing.T) {
	number := func(s string) meta.Step { return meta.Step{Key: s, Int: true} }
	for _, good := range []meta.Step{
		meta.Key(""), meta.Key("01"), meta.Pos(0), {Key: "x", Pos: 3, List: true}, number("18446744073709551615"),
		number("-1" + strings.Repeat("0", 4000)),
	} {
		if err := good.Check(); err != nil {
			t.Errorf("Check of %+q: %v", good, err)
		}
	}
	for _, bad := range []meta.Step{
		meta.Pos(-1), {Key: "1", Int: true, List: true}, number(""), number("-"), number("-0"), number("00"), number("+1"), number("1 "),
		number("0x1"), number("1.5"), number("\u0661"), number(strings.Repeat("1", meta.MaxFQN+1)),
	} {
		if err := bad.Check(); !errors.Is(err, meta.ErrInvalid) {
			t.Errorf("Check of %+q: %v; want %v", bad, err, meta.ErrInvalid)
		}
	}
}
