package native

import (
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// castagnoli makes the standard library compute the checksum.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const compatID = "20260314t150926-0badcafe"

// compats are checkpoints that the versions of the format wrote, by TestVersionsAreRead
// with -update.
var compats = []struct {
	dir, version string
	state        func(t testing.TB, rank int) plan.State
	ties         map[string]string
}{
	{"testdata/compat/v1", "cairn 1", oddState, nil},
	{"testdata/compat/v2", "cairn 2", tiedState, map[string]string{"rows2": "rows", "tied": "__cairn__/0", "tied2": "__cairn__/0"}},
}

// compatHeld are the names in it: dtype and shape of a tensor or codec of a
// value, and the checksum of the contents.
var compatHeld = map[string]string{
	"__cairn__/":        "bool [0 2] 00000000",
	"__cairn__/0":       "int32 [3] cea00cb8",
	"__metadata__":      "float8_e5m2fnuz [] 95e7c44e",
	"big":               "raw 13bc74cc",
	"complex":           "complex64 [4 2] bde04c51",
	"flat":              "float32 [9 7] c5f2ad05",
	`nested.a"<b>☃.0`:   "bfloat16 [2] 3811fc1c",
	`nested.a"<b>☃.1.k`: "json d95f71ff",
	"rows":              "float32 [9 7] c5f2ad05",
	"small":             "json 7355c460",
}

func TestVersionsAreRead(t *testing.T) {
	for _, v := range compats {
		t.Run(v.version, func(t *testing.T) {
			s := must.Get(file.Open(v.dir, nil))(t)
			if *updateGolden {
				writeCompat(t, s, v.state)
			}
			c := must.Get(Format{}.Open(t.Context(), s))(t)
			defer c.Close()
			st := c.Storage()
			st.ID = ""
			want := storagetest.Storage(compatID, 7, 2)
			want.Version = v.version
			if diff := cmp.Diff(want, st); diff != "" {
				t.Errorf("storage (-want +got):\n%s", diff)
			}
			rep, err := c.Verify(t.Context(), nil)
			if err != nil || len(rep.Problems) > 0 || rep.Bytes != c.TotalBytes() {
				t.Errorf("Verify = %+v, %v", rep, err)
			}
			md := must.Get(c.Metadata(t.Context()))(t)
			if diff := cmp.Diff(v.ties, md.Ties()); diff != "" {
				t.Errorf("ties (-want +got):\n%s", diff)
			}
			wantHeld, got := maps.Clone(compatHeld), map[string]string{}
			for name, first := range v.ties {
				wantHeld[name] = compatHeld[first]
			}
			for i := range md.Entries {
				got[md.Entries[i].FQN] = held(t, s, &md.Entries[i])
			}
			if diff := cmp.Diff(wantHeld, got); diff != "" {
				t.Errorf("what it holds (-want +got):\n%s", diff)
			}
			path := meta.Path{meta.Key("nested"), meta.Key(`a"<b>☃`), meta.Pos(1), meta.Key("k")}
			if e, ok := md.Find(path.FQN()); !ok || !e.Path.Equal(path) {
				t.Errorf("path of %q = %v; want %v", path.FQN(), e, path)
			}
		})
	}
}

// held loads one entry and describes it.
func held(t *testing.T, s blob.Store, e *meta.Entry) string {
	t.Helper()
	crc := func(b []byte) string { return hexCRC(crc32.Checksum(b, castagnoli)) }
	if e.Tensor == nil {
		state := plan.State{e.FQN: nil}
		load(t, s, state)
		_, b, err := value.Encode(state[e.FQN])
		if err != nil {
			t.Fatal(err)
		}
		return e.Bytes.Codec + " " + crc(b)
	}
	x := must.Get(tensor.New(e.Tensor.DType, e.Tensor.Shape))(t)
	load(t, s, plan.State{e.FQN: x})
	return fmt.Sprint(x.DType(), " ", x.Shape(), " ", crc(x.Contents()))
}

func load(t *testing.T, s blob.Store, state plan.State) {
	t.Helper()
	l := storagetest.NewLoading(at(s, nil, storage.ReadOptions{}), 1)
	l.Planners[0] = &plan.DefaultLoad{NoFlatten: true}
	must.Do(t, errors.Join(l.Plan(t.Context(), []plan.State{state}), l.Read(t.Context())))
}

// writeCompat makes the checkpoint if it does not exist. To make it again, remove the
// folder. Do this only as long as no released program writes this version.
func writeCompat(t *testing.T, s blob.Store, state func(t testing.TB, rank int) plan.State) {
	t.Helper()
	if _, err := (Format{}).Open(t.Context(), s); errors.Is(err, storage.ErrNotFound) {
		o := &options{WriteOptions: storage.WriteOptions{FilesPerRank: 2}}
		must.Do(t, storagetest.Save(t.Context(), at(s, o, storage.ReadOptions{}), storagetest.Storage(compatID, 7, 2), state(t, 0), state(t, 1)))
	}
}
