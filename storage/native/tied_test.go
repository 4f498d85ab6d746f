package native

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
)

// tiedState is oddState with further names for some tensors: a sharded one, and one that
// both ranks hold and that safetensors cannot store under its own name.
func tiedState(t testing.TB, rank int) plan.State {
	s := oddState(t, rank)
	rows := s["rows"].(*shard.Tensor)
	again := must.Get(shard.New(rows.Layout(), rows.GlobalShape(), rank, rows.Local()))(t)
	s["rows2"] = again // another object with the same memory
	s["tied"], s["tied2"] = s["__cairn__/0"], s["__cairn__/0"]
	return s
}

var wantTies = map[string]string{"rows2": "rows", "tied": "__cairn__/0", "tied2": "__cairn__/0"}

func saveTied(t testing.TB, s blob.Store, o *options) {
	t.Helper()
	must.Do(t, storagetest.Save(t.Context(), at(s, o, storage.ReadOptions{}), storagetest.Storage("odd", 7, 2), tiedState(t, 0), tiedState(t, 1)))
}

func tiesOf(t testing.TB, s blob.Store) map[string]string {
	t.Helper()
	c := must.Get(Format{}.Open(t.Context(), s))(t)
	defer c.Close()
	md := must.Get(c.Metadata(t.Context()))(t)
	return md.Ties()
}

// dataBytes returns the bytes of the data files without their headers.
func dataBytes(t testing.TB, s blob.Store) (n int64) {
	t.Helper()
	for name, b := range contents(t, s) {
		if strings.HasSuffix(name, dataSuffix) {
			n += int64(len(b)) - header(t, s, name).Size
		}
	}
	return n
}

func TestTiedTensorsAreStoredOnce(t *testing.T) {
	for _, files := range []int{1, 3} {
		o := &options{WriteOptions: storage.WriteOptions{FilesPerRank: files}}
		alone, s := new(mem.Store), new(mem.Store)
		saveOdd(t, alone, "odd", o)
		saveTied(t, s, o)
		if got, want := dataBytes(t, s), dataBytes(t, alone); got != want {
			t.Errorf("the data has %d bytes; want %d, as without the further names", got, want)
		}
		if diff := cmp.Diff(wantTies, tiesOf(t, s)); diff != "" {
			t.Errorf("ties (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string(nil), tiesOf(t, alone)); diff != "" {
			t.Errorf("ties of a checkpoint without any (-want +got):\n%s", diff)
		}
		checkWhole(t, s)
		load := plan.State{
			"rows":  storagetest.Filled(t, tensor.Float32, []int64{9, 7}, 0),
			"rows2": storagetest.Filled(t, tensor.Float32, []int64{9, 7}, 0),
			"tied2": storagetest.Filled(t, tensor.Int32, []int64{3}, 0),
		}
		must.Do(t, storagetest.Load(t.Context(), at(s, nil, storage.ReadOptions{}), load))
		for name, want := range map[string]*tensor.Tensor{
			"rows": storagetest.Filled(t, tensor.Float32, []int64{9, 7}, 1), "rows2": storagetest.Filled(t, tensor.Float32, []int64{9, 7}, 1),
			"tied2": storagetest.Filled(t, tensor.Int32, []int64{3}, 3),
		} {
			if !tensor.Equal(load[name].(*tensor.Tensor), want) {
				t.Errorf("%s differs from what was saved", name)
			}
		}
	}
}

// A checkpoint without ties has version 1. One with ties has version 2, which programs
// refuse that know only version 1.
func TestVersionOfTiedTensors(t *testing.T) {
	alone, s := new(mem.Store), new(mem.Store)
	saveOdd(t, alone, "odd", nil)
	saveTied(t, s, nil)
	for want, s := range map[string]blob.Store{`"version": 1,`: alone, `"version": 2,`: s} {
		if rec := string(contents(t, s)[recordName]); !strings.Contains(rec, want) {
			t.Errorf("the record is %s; want %s", rec, want)
		}
	}
	// A record of version 1 does not make sense of ties.
	b := contents(t, s)[recordName]
	rec, err := decodeRecord(b)
	if err != nil {
		t.Fatal(err)
	}
	rec.Tied = false
	if b, err = encodeRecord(rec); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, s, recordName, string(b))
	if got := verified(t, s); len(got) == 0 {
		t.Errorf("Verify of a record of version 1 finds nothing; want chunks that overlap")
	}
}

func TestRepairRestoresTies(t *testing.T) {
	for what, names := range map[string][]string{
		"the record is lost": {recordName}, "the index is lost": {oddIndex}, "both are lost": {recordName, oddIndex},
	} {
		for _, files := range []int{1, 12} {
			s := new(mem.Store)
			saveTied(t, s, &options{WriteOptions: storage.WriteOptions{FilesPerRank: files}})
			want := contents(t, s)
			remove(t, s, names...)
			if rep, err := Repair(t.Context(), s, nil); err != nil || len(rep.Problems) > 0 {
				t.Fatalf("%s: Repair = %+v, %v", what, rep, err)
			}
			checkContents(t, s, want)
			checkWhole(t, s)
		}
	}
}

// Damage shows under all names.
func TestVerifyOfDamagedTiedTensors(t *testing.T) {
	s := new(mem.Store)
	saveTied(t, s, nil)
	file := damageTensor(t, s, "tied")
	names := []string{"__cairn__/0", "tied", "tied2"}
	if got := verified(t, s); len(got) != 1 || got[0].File != file || !slices.Equal(got[0].FQNs, names) {
		t.Errorf("Verify = %+v; want %q in %s", got, names, file)
	}
	remove(t, s, recordName)
	if rep, err := Repair(t.Context(), s, nil); err != nil || len(rep.Problems) != 1 || !slices.Equal(rep.Problems[0].FQNs, names) {
		t.Errorf("Repair = %+v, %v; want %q", rep, err, names)
	}
}

func TestRepairRefusesTiesWithoutNames(t *testing.T) {
	s := new(mem.Store)
	saveTied(t, s, &options{WriteOptions: storage.WriteOptions{FilesPerRank: 1}})
	remove(t, s, recordName, oddIndex)
	edit := func(b []byte) []byte {
		return []byte(strings.Replace(string(b), `\"fqn\":\"rows2\"`, `\"fqn\":\"\",\"x\":1`, 1))
	}
	must.Do(t, fault.Damage(t.Context(), s, DataFileName("odd", 0, 0), edit))
	if rep, err := Repair(t.Context(), s, nil); !errors.Is(err, storage.ErrIncomplete) {
		t.Errorf("Repair of a tie without a name = %+v, %v; want %v", rep, err, storage.ErrIncomplete)
	}
}
