package convert

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
)

// fingerprint identifies a conversion: equal ones write equal files. It covers
// the source, its files and what lies where in them, the plans of all ranks, and
// the target.
func (j *Job) fingerprint(ctx context.Context, t *Target) (string, error) {
	f := fingerprinter{h: sha256.New()}
	st := j.md.Storage
	f.text("cairn convert 3", t.Format, t.Details, fmt.Sprint(j.opts.SkipObjects), st.SaveID, st.Version, st.Time.UTC().String(), string(j.md.PlannerData))
	f.numbers(int64(j.ranks))
	if j.step != nil {
		f.text("step")
		f.numbers(*j.step)
	}
	for _, k := range slices.Sorted(maps.Keys(j.tags)) {
		f.text(k, j.tags[k])
	}
	for _, file := range j.src.Files() {
		f.text(file.Name)
		f.numbers(file.Size, int64(file.CRC32C))
	}
	if err := f.source(ctx, j); err != nil {
		return "", err
	}
	for _, e := range j.entries {
		f.entry(e)
	}
	for _, p := range j.plans() {
		f.plan(p)
	}
	f.flush()
	return hex.EncodeToString(f.h.Sum(nil)), nil
}

// fingerprinter writes to a hash by way of a buffer: most of what is written is
// numbers.
type fingerprinter struct {
	h   hash.Hash
	buf []byte
}

func (f *fingerprinter) flush() {
	f.h.Write(f.buf)
	f.buf = f.buf[:0]
}

func (f *fingerprinter) text(all ...string) {
	for _, s := range all {
		f.numbers(int64(len(s)))
		f.buf = append(f.buf, s...)
	}
}

func (f *fingerprinter) numbers(ns ...int64) {
	if len(f.buf) > 32<<10 {
		f.flush()
	}
	for _, n := range ns {
		f.buf = binary.AppendVarint(f.buf, n)
	}
}

func (f *fingerprinter) entry(e *entry) {
	f.text(e.src.FQN, e.info.FQN, e.info.Codec, fmt.Sprint(e.info.Path == nil, []meta.Step(e.info.Path)), fmt.Sprint(e.info.Properties))
	f.numbers(e.info.Shape...)
	if v := e.value; v != nil {
		f.numbers(v.size)
		f.text(string(v.bytes), v.sum)
		return
	}
	f.numbers(int64(e.src.Tensor.DType))
	for i, c := range e.src.Tensor.Chunks {
		f.numbers(c.Offsets...)
		f.numbers(c.Sizes...)
		if i < len(e.src.Tensor.Locs) {
			l := &e.src.Tensor.Locs[i]
			f.text(l.File)
			f.numbers(l.Offset, l.Length)
		}
	}
}

func (f *fingerprinter) plan(p *plan.SavePlan) {
	f.numbers(int64(len(p.Items)))
	for i := range p.Items {
		it := &p.Items[i]
		f.text(it.FQN())
		f.numbers(it.Box.Offsets...)
		f.numbers(it.Box.Sizes...)
	}
}
