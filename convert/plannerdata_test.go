package convert_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// Planner data is converted, refused by name, or left out with a warning if objects may
// be left out.
func TestPlannerDataIsConverted(t *testing.T) {
	src := new(mem.Store)
	sv := storagetest.NewSaving(nativeAt(src), storagetest.Storage("x", 1, 1), 1)
	state := plan.State{"m": map[string]any{"w": storagetest.Filled(t, tensor.Float32, []int64{3}, 1)}}
	must.Do(t, errors.Join(sv.Plan(t.Context(), []plan.State{state}), sv.Write(t.Context())))
	sv.Metadata.PlannerData = json.RawMessage(`{"note":1}`)
	must.Do(t, sv.Finish(t.Context()))
	for _, to := range formats.Alone() {
		for _, skip := range []bool{false, true} {
			var warned []error
			c := open(t, src)
			dst := new(mem.Store)
			o := &convert.Options{Merge: formats.WholeTensors(to), SkipObjects: skip, Warn: func(err error) { warned = append(warned, err) }}
			_, err := run(t.Context(), c, o, toFormat(to, dst))
			if !formats.WholeTensors(to) {
				got, openErr := formats.Open(t.Context(), dst, nil)
				if err != nil || openErr != nil || len(warned) > 0 {
					t.Fatalf("%s: %v, %v, warned of %v", to, err, openErr, warned)
				}
				md, err := got.Metadata(t.Context())
				if err != nil || string(md.PlannerData) != `{"note":1}` {
					t.Errorf("%s: planner data %s, %v", to, md.PlannerData, err)
				}
				got.Close()
				continue
			}
			if !skip && (!errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), "planner data")) {
				t.Errorf("%s: %v; want %v about the planner data", to, err, storage.ErrNotRepresentable)
			}
			if skip && (err != nil || len(warned) != 1 || !errors.Is(warned[0], storage.ErrNotRepresentable)) {
				t.Errorf("%s without objects: %v, warned of %v; want one warning", to, err, warned)
			}
		}
	}
}
