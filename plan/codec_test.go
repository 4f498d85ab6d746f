package plan_test

import (
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/tensor"
)

var drawName = rapid.SampledFrom([]string{"", "a", "model.w", "žluť", "\xff"})

// drawBox draws a box inside of a shape.
func drawBox(t *rapid.T, shape []int64) tensor.Box {
	b := box(make([]int64, len(shape)), make([]int64, len(shape)))
	for d, n := range shape {
		b.Offsets[d] = rapid.Int64Range(0, n).Draw(t, "offset")
		b.Sizes[d] = rapid.Int64Range(0, n-b.Offsets[d]).Draw(t, "size")
	}
	return b
}

func drawInfo(t *rapid.T) *plan.Info {
	in := &plan.Info{FQN: drawName.Draw(t, "fqn"), Codec: drawName.Draw(t, "codec")}
	if rapid.Bool().Draw(t, "nested") {
		in.Path = meta.Path{}
		for range rapid.IntRange(0, 3).Draw(t, "steps") {
			in.Path = append(in.Path, drawStep(t))
		}
	}
	in.Shape = rapid.SliceOfN(rapid.Int64Range(0, 1<<20), 0, 3).Draw(t, "shape")
	in.Properties = meta.Properties{
		DType: rapid.SampledFrom(tensor.DTypes()).Draw(t, "dtype"), RequiresGrad: rapid.Bool().Draw(t, "grad"),
		MemoryFormat: drawName.Draw(t, "format"), Layout: drawName.Draw(t, "layout"), PinMemory: rapid.Bool().Draw(t, "pin"),
	}
	return in
}

func drawStep(t *rapid.T) meta.Step {
	if rapid.Bool().Draw(t, "integer") {
		return meta.IntKey(rapid.Int64().Draw(t, "int"))
	}
	return meta.Step{Key: drawName.Draw(t, "key"), Pos: rapid.Int().Draw(t, "pos"), List: rapid.Bool().Draw(t, "list")}
}

func drawSavePlan(t *rapid.T) *plan.SavePlan {
	p := &plan.SavePlan{
		PlannerData: rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "planner data"),
		StorageData: rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "storage data"),
		Absent:      rapid.SliceOfN(drawName, 0, 2).Draw(t, "absent"),
		Fingerprint: plan.Fingerprint{rapid.Byte().Draw(t, "print")},
	}
	for range rapid.IntRange(0, 2).Draw(t, "values") {
		p.Values = append(p.Values, plan.ValueHash{FQN: drawName.Draw(t, "value"), Hash: rapid.Uint64().Draw(t, "sum")})
	}
	if p.Unchanged = rapid.IntRange(0, 9).Draw(t, "unchanged") == 0; p.Unchanged {
		return p
	}
	var in *plan.Info
	for range rapid.IntRange(0, 4).Draw(t, "items") {
		if in == nil || rapid.Bool().Draw(t, "another") {
			in = drawInfo(t)
		}
		it := plan.WriteItem{
			Info: in, Kind: rapid.SampledFrom([]plan.Kind{plan.KindTensor, plan.KindShard, plan.KindBytes}).Draw(t, "kind"),
			Hint: rapid.Int32().Draw(t, "hint"), Size: rapid.Int64Min(0).Draw(t, "size"),
		}
		if it.Kind != plan.KindBytes {
			it.Box = drawBox(t, in.Shape)
		}
		p.Items = append(p.Items, it)
	}
	return p
}

// samePlan ignores the difference between nil and empty, except in paths and
// offsets, in which it has a meaning.
var samePlan = cmp.FilterPath(func(p cmp.Path) bool {
	switch s := p.Last().String(); s {
	case ".Path", ".Offset":
		return false
	}
	return true
}, cmpopts.EquateEmpty())

func TestSavePlanCodecRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		p := drawSavePlan(t)
		b := must.Get(plan.SavePlanCodec{}.Encode(p))(t)
		many := plan.NewSavePlanCodec()
		for name, codec := range map[string]plan.SavePlanCodec{"zero": {}, "new": many, "used": many} {
			got, err := codec.Decode(b)
			if d := cmp.Diff(p, got, samePlan); d != "" || err != nil {
				t.Fatalf("%s codec: Decode(Encode), %v: -want +got\n%s", name, err, d)
			}
			again := must.Get(codec.Encode(got))(t)
			if got, err = codec.Decode(again); err != nil || !cmp.Equal(p, got, samePlan) {
				t.Fatalf("%s codec: carried twice: %v\n%s", name, err, cmp.Diff(p, got, samePlan))
			}
		}
		for n := range b {
			if _, err := (plan.SavePlanCodec{}).Decode(b[:n]); !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("Decode of the first %d of %d bytes = %v; want ErrMalformed", n, len(b), err)
			}
		}
	})
}

func drawIndex(t *rapid.T, dims int) meta.Index {
	i := meta.Index{FQN: drawName.Draw(t, "fqn"), Hint: rapid.Int32().Draw(t, "hint")}
	if rapid.Bool().Draw(t, "tensor") {
		i.Offset = append([]int64{}, rapid.SliceOfN(rapid.Int64(), dims, dims).Draw(t, "offset")...)
	}
	return i
}

func drawLoadPlan(t *rapid.T) *plan.LoadPlan {
	p := &plan.LoadPlan{
		PlannerData: rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "planner data"),
		StorageData: rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "storage data"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "items") {
		n := rapid.IntRange(0, 3).Draw(t, "dims")
		list := func(limit int64) []int64 { return rapid.SliceOfN(rapid.Int64Range(0, limit), n, n).Draw(t, "list") }
		p.Items = append(p.Items, plan.ReadItem{
			Kind: rapid.SampledFrom([]plan.Kind{plan.KindTensor, plan.KindBytes}).Draw(t, "kind"),
			Dest: drawIndex(t, n), Source: drawIndex(t, n),
			DestOffsets: list(math.MaxInt64), SourceOffsets: list(math.MaxInt64), Lengths: list(1 << 20),
		})
	}
	return p
}

func TestLoadPlanCodecRoundTrip(t *testing.T) {
	deep.Check(t, func(t *rapid.T) {
		p := drawLoadPlan(t)
		b := must.Get(plan.LoadPlanCodec{}.Encode(p))(t)
		got, err := plan.LoadPlanCodec{}.Decode(b)
		if d := cmp.Diff(p, got, samePlan); d != "" || err != nil {
			t.Fatalf("Decode(Encode), %v: -want +got\n%s", err, d)
		}
		for n := range b {
			if _, err := (plan.LoadPlanCodec{}).Decode(b[:n]); !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("Decode of the first %d of %d bytes = %v; want ErrMalformed", n, len(b), err)
			}
		}
	})
}

func TestDecodedPlansShareDescriptions(t *testing.T) {
	codec := plan.NewSavePlanCodec()
	plans := append(three(), three()...)
	infos := make([]*plan.Info, len(plans))
	var wg sync.WaitGroup
	for i, p := range plans {
		wg.Go(func() {
			q, err := carried(codec, p)
			if err != nil {
				t.Error(err)
				return
			}
			infos[i] = q.Items[0].Info
		})
	}
	wg.Wait()
	if len(slices.Compact(infos)) != 1 {
		t.Error("six plans have several descriptions of x; want one that they share")
	}
	p := planOf(item("x", []int64{4}, span(0, 2)))
	p.Items = append(p.Items, p.Items[0])
	one, _ := codec.Encode(planOf(p.Items[0]))
	if two, _ := codec.Encode(p); len(two)-len(one) > 8 {
		t.Errorf("a second item of the same tensor takes %d bytes", len(two)-len(one))
	}
}

func TestEncodeRefusesIncompleteItems(t *testing.T) {
	for name, it := range map[string]plan.WriteItem{
		"no description": {Kind: plan.KindTensor},
		"half a box":     {Kind: plan.KindTensor, Info: &plan.Info{}, Box: tensor.Box{Sizes: []int64{1}}},
	} {
		if _, err := (plan.SavePlanCodec{}).Encode(planOf(it)); !errors.Is(err, plan.ErrProtocol) {
			t.Errorf("%s: Encode = %v; want ErrProtocol", name, err)
		}
	}
}

// allocated returns the bytes that fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

const huge = "\xff\xff\xff\xff\x0f" // 2³²-1 as a varint

func TestDecodeRefusesHostileSavePlans(t *testing.T) {
	var (
		head  = "\x03\x00" + string(make([]byte, 32)) + "\x00\x00\x00\x00" // version, changed, fingerprint, no data, none absent, no values
		float = "\x0b\x01x\x00\x02\x00\x00\x00\x00\x00\x01\x08"            // x: float32 [4], with its length
		one   = head + "\x01\x00" + float                                  // one item of x
	)
	if p, err := (plan.SavePlanCodec{}).Decode([]byte(one + "\x02\x00\x00\x00\x01\x00\x08")); err != nil || !p.Items[0].Box.Equal(span(0, 4)) {
		t.Fatalf("the plan that the others are made from = %+v, %v", p, err)
	}
	for name, in := range map[string]string{
		"another version":              "\x01" + head[1:] + "\x00",
		"a boolean of two":             "\x03\x02" + head[2:] + "\x00",
		"bytes after the end":          head + "\x00\x00",
		"planner data":                 head[:34] + huge,
		"absent names":                 head[:36] + huge,
		"value sums":                   head[:37] + huge,
		"items":                        head + huge,
		"a description":                head + "\x01\x00" + huge,
		"no first description":         head + "\x01\x01\x02\x00\x00\x00\x01\x00\x08",
		"half a description":           head + "\x01\x00\x02\x01x\x02\x00\x00\x00\x01\x00\x08",
		"a path of very many steps":    head + "\x01\x00\x08\x01x\x01" + huge + "\x02\x00\x00\x00\x01\x00\x08",
		"a shape of very many dims":    head + "\x01\x00\x0f\x01x\x00\x02\x00\x00\x00\x00\x00" + huge + "xx\x02\x00\x00\x00\x01\x00\x08",
		"a shape that is not there":    head + "\x01\x00\x0a\x01x\x00\x02\x00\x00\x00\x00\x00\x40" + "\x02\x00\x00\x00\x01\x00\x08",
		"no dtype":                     head + "\x01\x00\x0b\x01x\x00\x00\x00\x00\x00\x00\x00\x01\x08\x02\x00\x00\x00\x01\x00\x08",
		"a negative shape":             head + "\x01\x00\x0b\x01x\x00\x02\x00\x00\x00\x00\x00\x01\x07\x02\x00\x00\x00\x01\x00\x08",
		"kind zero":                    one + "\x00\x00\x00\x00\x01\x00\x08",
		"kind nine":                    one + "\x09\x00\x00\x00\x01\x00\x08",
		"a hint beyond 32 bits":        one + "\x02\xff" + huge + "\x00\x00\x01\x00\x08",
		"a size beyond 63 bits":        one + "\x02\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x01\x00\x08",
		"an alias beyond 31 bits":      one + "\x02\x00\x00\xff" + huge + "\x01\x00\x08",
		"a box of very many dims":      one + "\x02\x00\x00\x00" + huge,
		"a box of 65 dims":             one + "\x02\x00\x00\x00\x41" + string(make([]byte, 130)),
		"a box that is not there":      one + "\x02\x00\x00\x00\x40\x00\x08",
		"a box of other dims":          one + "\x02\x00\x00\x00\x02\x00\x00\x00\x00",
		"a box that leaves its tensor": one + "\x02\x00\x00\x00\x01\x02\x08",
		"a box of a value":             one + "\x03\x00\x00\x00\x01\x00\x08",
	} {
		t.Run(name, func(t *testing.T) {
			n := allocated(func() {
				if _, err := (plan.SavePlanCodec{}).Decode([]byte(in)); !errors.Is(err, wire.ErrMalformed) {
					t.Errorf("Decode(%q) = %v; want ErrMalformed", in, err)
				}
			})
			if n > 1<<17 {
				t.Errorf("Decode(%q) took %d bytes", in, n)
			}
		})
	}
}

func TestDecodeRefusesHostileLoadPlans(t *testing.T) {
	// version, no data, one item: a tensor, from x at [0] to x at [0], 4 from 0 to 0
	const head, index = "\x03\x00\x00\x01\x01", "\x01x\x01\x01\x00\x00"
	const good = head + index + index + "\x01\x00\x01\x00\x01\x08"
	if p, err := (plan.LoadPlanCodec{}).Decode([]byte(good)); err != nil || p.Items[0].Lengths[0] != 4 {
		t.Fatalf("the plan that the others are made from = %+v, %v", p, err)
	}
	for name, in := range map[string]string{
		"another version":      "\x01" + good[1:],
		"bytes after the end":  good + "\x00",
		"items":                "\x03\x00\x00" + huge,
		"a name":               head + huge,
		"very many dims":       head + "\x01x\x01" + huge,
		"dims not there":       head + "\x01x\x01\x40\x00",
		"a hint of 33 bits":    head + "\x01x\x01\x01\x00\xff" + huge + index + "\x01\x00\x01\x00\x01\x08",
		"a shard":              "\x03\x00\x00\x01\x02" + good[5:],
		"other dims":           head + index + index + "\x00\x01\x00\x01\x08",
		"a negative offset":    head + index + index + "\x01\x01\x01\x00\x01\x08",
		"a negative source":    head + index + index + "\x01\x00\x01\x01\x01\x08",
		"a negative length":    head + index + index + "\x01\x00\x01\x00\x01\x07",
		"lengths that overrun": head + index + index + "\x02\x00\x00\x02\x00\x00\x02" + string(binary.AppendVarint(binary.AppendVarint(nil, 1<<40), 1<<40)),
	} {
		t.Run(name, func(t *testing.T) {
			n := allocated(func() {
				if _, err := (plan.LoadPlanCodec{}).Decode([]byte(in)); !errors.Is(err, wire.ErrMalformed) {
					t.Errorf("Decode(%q) = %v; want ErrMalformed", in, err)
				}
			})
			if n > 1<<17 {
				t.Errorf("Decode(%q) took %d bytes", in, n)
			}
		})
	}
}

func FuzzDecodeSavePlan(f *testing.F) {
	for _, b := range encodeAll(f, append(three(), &plan.SavePlan{Unchanged: true, Absent: []string{"a"}})) {
		f.Add(b)
		f.Add(b[:len(b)-3])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := plan.SavePlanCodec{}.Decode(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("Decode: %v; want ErrMalformed", err)
			}
			return
		}
		again, err := plan.SavePlanCodec{}.Encode(p)
		if err != nil {
			t.Fatalf("Encode of what was decoded: %v", err)
		}
		if q, err := (plan.SavePlanCodec{}).Decode(again); err != nil || !cmp.Equal(p, q) {
			t.Fatalf("decoded again, %v: -first +second\n%s", err, cmp.Diff(p, q))
		}
		// Whatever a rank may send must not break the coordinator.
		finals, md, err := plan.Global([]*plan.SavePlan{p, p}, plan.LeastLoaded)
		if err == nil {
			checkFinals(t, []*plan.SavePlan{p, p}, finals, md)
		} else if !errors.Is(err, plan.ErrState) && !errors.Is(err, plan.ErrStale) {
			t.Fatalf("Global: %v; want ErrState", err)
		}
	})
}

func FuzzDecodeLoadPlan(f *testing.F) {
	items := must.Get(reads(tiled([]int64{4}, span(0, 1), span(1, 3)), span(0, 3)))(f)
	items = append(items, plan.ReadItem{Kind: plan.KindBytes, Dest: meta.Index{FQN: "v"}, Source: meta.Index{FQN: "w"}})
	b := must.Get(plan.LoadPlanCodec{}.Encode(&plan.LoadPlan{Items: items, PlannerData: []byte("{}")}))(f)
	f.Add(b)
	f.Add(b[:len(b)-3])
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := plan.LoadPlanCodec{}.Decode(b)
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("Decode: %v; want ErrMalformed", err)
			}
			return
		}
		again, err := plan.LoadPlanCodec{}.Encode(p)
		if err != nil {
			t.Fatalf("Encode of what was decoded: %v", err)
		}
		if q, err := (plan.LoadPlanCodec{}).Decode(again); err != nil || !cmp.Equal(p, q) {
			t.Fatalf("decoded again, %v: -first +second\n%s", err, cmp.Diff(p, q))
		}
	})
}

func TestDecodeRefusesInvalidSteps(t *testing.T) {
	for name, step := range map[string]meta.Step{"no integer": {Key: "a", Int: true}, "zeros in front": {Key: "00", Int: true}} {
		p := planOf(bytesItem("v", 5))
		p.Items[0].Info.Path = meta.Path{step}
		b := must.Get(plan.SavePlanCodec{}.Encode(p))(t)
		if _, err := (plan.SavePlanCodec{}).Decode(b); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: Decode = %v; want %v", name, err, wire.ErrMalformed)
		}
	}
}
