package engine

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

func sampleMessage(tb testing.TB) []byte {
	b, err := loadCodec{}.Encode(loadMessage{saveID: "id", plan: &plan.LoadPlan{
		Items: []plan.ReadItem{{
			Kind: plan.KindTensor, Dest: meta.Index{FQN: "d", Offset: []int64{1}}, DestOffsets: []int64{2},
			Source: meta.Index{FQN: "s", Offset: []int64{3}, Hint: 4}, SourceOffsets: []int64{5}, Lengths: []int64{6},
		}},
		PlannerData: []byte(`["s"]`),
	}})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestLoadMessageSurvivesTheWay(t *testing.T) {
	b := sampleMessage(t)
	m, err := loadCodec{}.Decode(b)
	if err != nil || m.saveID != "id" || len(m.plan.Items) != 1 || m.plan.Items[0].Source.Hint != 4 {
		t.Errorf("Decode = %+v, %v", m, err)
	}
	for n := range b {
		if _, err := (loadCodec{}).Decode(b[:n]); err == nil {
			t.Errorf("Decode of %d bytes of %d = nil; want an error", n, len(b))
		}
	}
}

func FuzzDecodeLoadMessage(f *testing.F) {
	f.Add(sampleMessage(f))
	f.Add([]byte{0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := loadCodec{}.Decode(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Errorf("Decode = %v; want %v", err, wire.ErrMalformed)
			}
			return
		}
		c, err := loadCodec{}.Encode(m)
		if err != nil {
			t.Fatalf("Encode of what was decoded = %v", err)
		}
		again, err := loadCodec{}.Decode(c)
		if diff := cmp.Diff(m, again, cmp.AllowUnexported(loadMessage{})); err != nil || diff != "" {
			t.Errorf("decoded again: %v (-first +second):\n%s", err, diff)
		}
	})
}
