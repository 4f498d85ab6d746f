package convert_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// storageOf converts the checkpoint in src to a format, and returns the description of the
// new one.
func storageOf(t *testing.T, src blob.Store, to string, o convert.Options) meta.Storage {
	t.Helper()
	c := open(t, src)
	o.Merge, o.SkipObjects = formats.WholeTensors(to), true
	dst := new(mem.Store)
	rep := must.Get(run(context.Background(), c, &o, toFormat(to, dst)))(t)
	d := open(t, dst)
	out := d.Storage()
	if formats.Records(to) {
		if diff := cmp.Diff(rep.Step, out.Step); diff != "" {
			t.Errorf("the step in the report is not that in the checkpoint:\n%s", diff)
		}
	}
	return out
}

// The step comes from --step, from the source, from its state, or is unknown: it is never zero.
func TestStepOfAConversion(t *testing.T) {
	for claim, c := range map[string]struct {
		recorded *int64
		state    plan.State
		o        convert.Options
		want     *int64
	}{
		"unknown stays unknown":          {},
		"zero stays zero":                {recorded: new(int64(0)), want: new(int64(0))},
		"the source's":                   {recorded: new(int64(5)), state: plan.State{"step": 9}, want: new(int64(5))},
		"of the state":                   {state: plan.State{"step": 9, "iteration": 3}, want: new(int64(9))},
		"of a trainer's state":           {state: plan.State{"global_step": 9, "epoch": 1}, want: new(int64(9))},
		"of the state, if left out too":  {state: plan.State{"iteration": 9}, o: convert.Options{Exclude: []string{"iteration"}}, want: new(int64(9))},
		"not of something else":          {state: plan.State{"step": "nine", "global_step": 1.5}},
		"not of something further below": {state: plan.State{"optimizer": map[string]any{"step": 9}}},
		"as was asked for":               {recorded: new(int64(5)), o: convert.Options{Step: new(int64(6))}, want: new(int64(6))},
	} {
		t.Run(claim, func(t *testing.T) {
			src := new(mem.Store)
			state := plan.State{"w": storagetest.Filled(t, tensor.Float32, []int64{3}, 1)}
			for k, v := range c.state {
				state[k] = v
			}
			st := storagetest.Storage("20260314t150926-00000001", 0, 1)
			st.Step = c.recorded
			must.Do(t, storagetest.Save(t.Context(), nativeAt(src), st, state))
			for _, to := range []string{formats.Native, formats.HF} {
				if d := cmp.Diff(c.want, storageOf(t, src, to, c.o).Step); d != "" {
					t.Errorf("to %s: -want +got\n%s", to, d)
				}
			}
			if c.recorded != nil || len(c.o.Exclude) > 0 {
				return // torchdcp records no step
			}
			dcp := new(mem.Store)
			at := nativeAt(dcp)
			at.Writer = func() storage.Writer { return storagetest.NewWriter(torchdcp.Format{}, dcp, storage.WriteOptions{}) }
			must.Do(t, storagetest.Save(t.Context(), at, st, state))
			if d := cmp.Diff(c.want, storageOf(t, dcp, formats.Native, c.o).Step); d != "" {
				t.Errorf("from torchdcp: -want +got\n%s", d)
			}
		})
	}
}

// A file of torch.save does not contain its time.
func TestTimeOfATorchFileIsUnknown(t *testing.T) {
	src := saved(t, 1)
	if st := storageOf(t, src, formats.Torch, convert.Options{}); !st.Time.IsZero() || st.Step != nil {
		t.Errorf("time %v, step %v; want both unknown", st.Time, st.Step)
	}
}

// Tags of hf are the metadata of its files, under their own names.
func TestMetadataOfSafetensorsStays(t *testing.T) {
	src := saved(t, 1)
	o := convert.Options{Tags: map[string]string{"license": "mit", "purpose": "mine", "format": "mlx", "DCP_SHARDING_INFO": "no"}}
	if d := cmp.Diff(o.Tags, storageOf(t, src, formats.HF, o).Tags); d != "" {
		t.Errorf("tags: -want +got\n%s", d)
	}
}
