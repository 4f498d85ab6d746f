package bench

import "testing"

func TestPlanBench(t *testing.T) {
	r, err := Plan(t.Context(), PlanOptions{Ranks: 16, Tensors: 20})
	if err != nil {
		t.Fatal(err)
	}
	if r.Items != 320 || r.IndexBytes == 0 || len(r.Phases) != 4 || r.RepeatSeconds <= 0 {
		t.Errorf("Plan = %+v; want 320 items, an index, four phases and a repeat", r)
	}
}
