package plan_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

func drawShare(t *rapid.T) *plan.SharedReads {
	lists := [][]int{nil, {1}, {0, 2, 300}}
	s := &plan.SharedReads{Pieces: []plan.Piece{}}
	for range rapid.IntRange(0, 6).Draw(t, "pieces") {
		s.Pieces = append(s.Pieces, plan.Piece{
			ID: rapid.Int64().Draw(t, "id"), Item: rapid.IntRange(0, 1<<31-1).Draw(t, "item"),
			Rows:   [2]int64{rapid.Int64Min(0).Draw(t, "begin"), rapid.Int64Min(0).Draw(t, "end")},
			Reader: rapid.IntRange(0, 5).Draw(t, "reader"), To: rapid.SampledFrom(lists).Draw(t, "to"),
		})
	}
	ints := func(name string) []int64 { return rapid.SliceOfN(rapid.Int64Min(0), 1, 3).Draw(t, name) }
	for range rapid.IntRange(0, 3).Draw(t, "strips") {
		c := plan.Strip{Source: meta.Index{FQN: "w", Offset: ints("chunk"), Hint: 2}, Offsets: ints("offsets"), Lengths: ints("lengths")}
		for range rapid.IntRange(0, 3).Draw(t, "parts") {
			c.Parts = append(c.Parts, plan.StripPart{
				ID: rapid.Int64Min(0).Draw(t, "part"), To: rapid.IntRange(0, 9).Draw(t, "rank"), Offsets: ints("at"), Lengths: ints("of"),
			})
		}
		s.Strips = append(s.Strips, c)
	}
	return s
}

func TestSharedReadsCodecRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		s := drawShare(t)
		b := must.Get(plan.SharedReadsCodec{}.Encode(s))(t)
		got, err := plan.SharedReadsCodec{}.Decode(b)
		if d := cmp.Diff(s, got); d != "" || err != nil {
			t.Fatalf("Decode(Encode), %v: -want +got\n%s", err, d)
		}
		for n := range b {
			if _, err := (plan.SharedReadsCodec{}).Decode(b[:n]); !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("Decode of the first %d of %d bytes = %v; want ErrMalformed", n, len(b), err)
			}
		}
	})
}

func FuzzDecodeShare(f *testing.F) {
	b := must.Get(plan.SharedReadsCodec{}.Encode(&plan.SharedReads{Pieces: []plan.Piece{
		{ID: 1, Item: 2, Rows: [2]int64{3, 4}, Reader: 5, To: []int{6, 7}}, {ID: 9, Reader: 1},
	}, Strips: []plan.Strip{{
		Source: meta.Index{FQN: "w"}, Offsets: []int64{1, 0}, Lengths: []int64{2, 8},
		Parts: []plan.StripPart{{ID: 9, To: 1, Offsets: []int64{0, 4}, Lengths: []int64{2, 4}}},
	}}}))(f)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := plan.SharedReadsCodec{}.Decode(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Errorf("Decode = %v; want ErrMalformed", err)
			}
			return
		}
		_ = s.Check(&plan.LoadPlan{Items: make([]plan.ReadItem, 3)}, 1, 4) // does not panic
		c := must.Get(plan.SharedReadsCodec{}.Encode(s))(t)
		again, err := plan.SharedReadsCodec{}.Decode(c)
		if d := cmp.Diff(s, again, samePlan); err != nil || d != "" {
			t.Errorf("decoded again, %v: -first +second\n%s", err, d)
		}
	})
}
