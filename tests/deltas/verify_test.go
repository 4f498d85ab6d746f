package deltas

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// A verification of a run reads each file once, although most checkpoints refer to others.
func TestVerifyOfARunReadsFilesOnce(t *testing.T) {
	s, store := jobtest.NewTrained(t, 51), registerService("verified")
	r := must.Get(cairn.NewRun("verified://run", &cairn.RunOptions{Remember: true}))(t)
	for v := range int64(8) {
		saveVersion(t, r, s, v)
		s.Step()
	}
	must.Do(t, r.Close(t.Context()))
	opened := must.Get(run.Open(t.Context(), "verified://run", ""))(t)
	before := store.read.Load()
	all := must.Get(opened.Verify(t.Context(), nil))(t)
	for _, v := range all {
		if len(v.Problems) > 0 {
			t.Errorf("%s: %v", v.Name, v.Problems)
		}
	}
	size := sizeIn(t, store, "run")
	if n := store.read.Load() - before; len(all) != 8 || n > size+size/10 || n < size/2 {
		t.Errorf("Verify of %d checkpoints read %d bytes of %d", len(all), n, size)
	}
}

// A damaged file is a problem of all checkpoints that need its bytes, and of no other.
func TestVerifyOfADamagedRun(t *testing.T) {
	dir, s := t.TempDir(), jobtest.NewTrained(t, 52)
	jobtest.SaveChain(t, dir, s, 12, 1) // the later ones stand alone, or refer to one that does
	flipByte(t, filepath.Join(dir, "step-0", "*.safetensors"))
	r := must.Get(run.Open(t.Context(), dir, ""))(t)
	var want []string
	for _, c := range must.Get(r.Checkpoints(t.Context()))(t) {
		if c.Name == "step-0" || slices.Contains(c.Bases, "step-0") {
			want = append(want, c.Name)
		}
	}
	var got []string
	for _, v := range must.Get(r.Verify(t.Context(), nil))(t) {
		if len(v.Problems) > 0 {
			got = append(got, v.Name)
		}
	}
	if !slices.Equal(got, want) || len(got) < 2 {
		t.Errorf("Verify finds problems of %v; want %v", got, want)
	}
}
