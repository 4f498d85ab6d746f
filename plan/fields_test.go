package plan_test

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

// eachField calls fn once for each field inside of the value that build returns, with a new
// value in which only that field is changed. Every list must have an element and every pointer
// must be set, so that a new field cannot be left out.
func eachField[T any](t *testing.T, build func() *T, fn func(field string, changed *T)) {
	var names []string
	visitFields(t, reflect.ValueOf(build()).Elem(), "", func(name string, _ reflect.Value) { names = append(names, name) })
	for i, name := range names {
		v := build()
		at := 0
		visitFields(t, reflect.ValueOf(v).Elem(), "", func(_ string, field reflect.Value) {
			if at == i {
				change(t, name, field)
			}
			at++
		})
		fn(name, v)
	}
}

// visitFields calls fn for the fields inside of v that have no fields themselves.
func visitFields(t *testing.T, v reflect.Value, name string, fn func(name string, field reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			of := v.Type().Field(i).Name
			if name != "" {
				of = name + "." + of
			}
			visitFields(t, v.Field(i), of, fn)
		}
	case reflect.Pointer:
		if v.IsNil() {
			t.Fatalf("%s is nil; give it a value in this test", name)
		}
		visitFields(t, v.Elem(), name, fn)
	case reflect.Slice, reflect.Array:
		if v.Len() == 0 {
			t.Fatalf("%s is empty; give it an element in this test", name)
		}
		visitFields(t, v.Index(0), name, fn)
	default:
		fn(name, v)
	}
}

// change gives a field another value.
func change(t *testing.T, name string, v reflect.Value) {
	switch {
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.Kind() == reflect.String:
		v.SetString(v.String() + "x")
	case v.CanInt():
		v.SetInt(v.Int() + 1)
	case v.CanUint():
		v.SetUint(v.Uint() + 1)
	default:
		t.Fatalf("%s has the type %v; add it to change", name, v.Type())
	}
}

func fullInfo() *plan.Info {
	return &plan.Info{
		FQN: "x", Path: meta.Path{{Key: "1"}}, Shape: []int64{8}, Codec: "c",
		Properties: meta.Properties{DType: tensor.Float32, MemoryFormat: "f", Layout: "l"},
	}
}

func fullSavePlan() *plan.SavePlan {
	return &plan.SavePlan{
		Items:  []plan.WriteItem{{Info: fullInfo(), Kind: plan.KindTensor, Box: span(1, 2)}},
		Absent: []string{"a"}, Values: []plan.ValueHash{{FQN: "v", Hash: 1}}, PlannerData: []byte("1"), StorageData: []byte("1"),
	}
}

func TestInfoEqualComparesEveryField(t *testing.T) {
	if !fullInfo().Equal(fullInfo()) {
		t.Error("equal descriptions are not Equal")
	}
	eachField(t, fullInfo, func(field string, changed *plan.Info) {
		if changed.Equal(fullInfo()) {
			t.Errorf("descriptions that differ in %s are Equal", field)
		}
	})
}

func TestSavePlanCodecSendsEveryField(t *testing.T) {
	base := must.Get(plan.SavePlanCodec{}.Encode(fullSavePlan()))(t)
	eachField(t, fullSavePlan, func(field string, changed *plan.SavePlan) {
		b := must.Get(plan.SavePlanCodec{}.Encode(changed))(t)
		if field == "Items.Hash" { // ranks send the copy in Values
			return
		}
		if bytes.Equal(b, base) {
			t.Errorf("a changed %s does not change what is sent", field)
		}
		if got, err := (plan.SavePlanCodec{}).Decode(b); err != nil || !reflect.DeepEqual(got, changed) {
			t.Errorf("changed %s: received %+v, %v; want %+v", field, got, err, changed)
		}
	})
}

// The contents of values change from save to save, which does not change the plan.
func TestFingerprintCoversEveryField(t *testing.T) {
	print := func(p *plan.SavePlan) plan.Fingerprint {
		return must.Get(new(plan.Cache).Local(p, "o"))(t).Fingerprint
	}
	left := []string{"Items.Size", "Items.Hash", "Values.FQN", "Values.Hash", "Fingerprint"}
	eachField(t, fullSavePlan, func(field string, changed *plan.SavePlan) {
		if same := print(changed) == print(fullSavePlan()); same != slices.Contains(left, field) {
			t.Errorf("changed %s: the same fingerprint: %v", field, same)
		}
	})
}

// The local plan of rank 0 stays as it is, and the local plan of rank 1 makes its final plan
// another one.
func TestCacheComparesEveryFieldOfFinalPlans(t *testing.T) {
	left := []string{"Items.Size", "Items.Hash", "Values.FQN", "Values.Hash", "Unchanged", "Fingerprint"}
	eachField(t, fullSavePlan, func(field string, changed *plan.SavePlan) {
		var ranks [2]plan.Cache
		save := func(final *plan.SavePlan, other string) *plan.SavePlan {
			sent := []*plan.SavePlan{
				must.Get(ranks[0].Local(planOf(replica("x", 1)), "o"))(t), must.Get(ranks[1].Local(planOf(replica(other, 1)), "o"))(t),
			}
			answers, _, err := ranks[0].Global(sent, func([]*plan.SavePlan) ([]*plan.SavePlan, *meta.Metadata, error) {
				return []*plan.SavePlan{final, planOf()}, &meta.Metadata{}, nil
			})
			must.Do(t, err)
			for r, a := range answers {
				must.Get(ranks[r].Finish(a))(t)
			}
			return answers[0]
		}
		save(fullSavePlan(), "a")
		if reused := save(changed, "b") != changed; reused != slices.Contains(left, field) {
			t.Errorf("changed %s: rank 0 uses its old final plan: %v", field, reused)
		}
	})
}

func fullLoadPlan() *plan.LoadPlan {
	index := func() meta.Index { return meta.Index{FQN: "x", Offset: []int64{2}} }
	return &plan.LoadPlan{
		Items: []plan.ReadItem{{
			Kind: plan.KindTensor, Dest: index(), Source: index(), DestOffsets: []int64{1}, SourceOffsets: []int64{1}, Lengths: []int64{3},
		}},
		PlannerData: []byte("1"), StorageData: []byte("1"),
	}
}

func TestLoadPlanCodecSendsEveryField(t *testing.T) {
	eachField(t, fullLoadPlan, func(field string, changed *plan.LoadPlan) {
		if field == "Replicated" { // package protocol sets it when the plan was received
			return
		}
		if field == "Items.Kind" {
			changed.Items[0].Kind = plan.KindBytes // KindShard is not for reading
		}
		b := must.Get(plan.LoadPlanCodec{}.Encode(changed))(t)
		if got, err := (plan.LoadPlanCodec{}).Decode(b); err != nil || !reflect.DeepEqual(got, changed) {
			t.Errorf("changed %s: received %+v, %v; want %+v", field, got, err, changed)
		}
	})
}

func TestReadItemKeyHasEveryField(t *testing.T) {
	item := func() *plan.ReadItem { return &fullLoadPlan().Items[0] }
	eachField(t, item, func(field string, changed *plan.ReadItem) {
		if changed.Key() == item().Key() {
			t.Errorf("items that differ in %s have the same key", field)
		}
	})
}
