package native

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// A save writes the data files, then the index, then the record, and removes no file before
// the record exists.
func TestOrderOfOperations(t *testing.T) {
	inner := new(mem.Store)
	for _, c := range []struct {
		golden, id string
		o          *options
	}{
		{"order-first-save.txt", "first", nil},
		{"order-overwrite.txt", "second", nil},
		{"order-refused.txt", "third", &options{WriteOptions: storage.WriteOptions{FailIfExists: true}}},
	} {
		s := fault.New(inner)
		if err := saveTwo(t, s, c.id, 1, c.o); (err != nil) != (c.o != nil) {
			t.Fatalf("%s: save = %v", c.id, err)
		}
		checkGoldenOrder(t, c.golden, s.Ops())
		checkOrder(t, s.Ops())
	}
	s := fault.New(inner)
	into := small(t, 0)
	must.Do(t, storagetest.Load(t.Context(), at(s, nil, storage.ReadOptions{Parallel: 1}), into))
	checkGoldenOrder(t, "order-load.txt", s.Ops())
	must.Do(t, inner.Remove(t.Context(), recordName))
	s = fault.New(inner)
	must.Get(Repair(t.Context(), s, nil))(t)
	checkGoldenOrder(t, "order-repair.txt", s.Ops())
}

func checkGoldenOrder(t *testing.T, name string, ops fault.Ops) {
	t.Helper()
	got := ops.String()
	if diff := cmp.Diff(string(golden(t, name, []byte(got))), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// checkOrder checks the order of operations that the golden files show.
func checkOrder(t *testing.T, ops fault.Ops) {
	t.Helper()
	stage := 0
	for _, e := range ops {
		switch {
		case e.Op == fault.Commit && strings.HasSuffix(e.Name, dataSuffix) && stage > 0,
			e.Op == fault.Commit && strings.HasSuffix(e.Name, indexSuffix) && stage > 0,
			e.Op == fault.Remove && stage < 2:
			t.Errorf("%v at stage %d", e, stage)
		case e.Op == fault.Commit && strings.HasSuffix(e.Name, indexSuffix):
			stage = 1
		case e.Op == fault.Commit && e.Name == recordName:
			if stage != 1 {
				t.Errorf("%v at stage %d", e, stage)
			}
			stage = 2
		}
	}
}

// A load of one small tensor reads one block of the index's data and no header.
func TestLoadReadsNoMoreThanItNeeds(t *testing.T) {
	inner := new(mem.Store)
	must.Do(t, save(t, inner, "id", small(t, 1), nil))
	s := fault.New(inner)
	state := plan.State{"w": small(t, 0)["w"]}
	must.Do(t, storagetest.Load(t.Context(), at(s, nil, storage.ReadOptions{}), state))
	var data []fault.Entry
	for _, e := range s.Ops() {
		if e.Op == fault.Read && strings.HasSuffix(e.Name, dataSuffix) {
			data = append(data, e)
		}
	}
	if len(data) != 1 || data[0].Len != 48 {
		t.Errorf("read %v of the data file; want the 48 bytes of the tensor, once", data)
	}
}
