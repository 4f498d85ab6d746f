package saves

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
)

// saveStates saves states, one for each rank.
func saveStates(t *testing.T, f storage.Format, s blob.Store, states ...plan.State) {
	t.Helper()
	p := storagetest.Place{Writer: func() storage.Writer { return storagetest.NewWriter(f, s, storage.WriteOptions{}) }}
	must.Do(t, storagetest.Save(t.Context(), p, storagetest.Storage("s", 1, len(states)), states...))
}

// fourFiles saves a checkpoint of four data files, and returns its contents.
func fourFiles(t *testing.T, format, kind string) (storage.Format, *mem.Store, plan.State) {
	t.Helper()
	s, states, all := new(mem.Store), make([]plan.State, 4), plan.State{}
	for i := range 12 {
		name := fmt.Sprintf("w%d.%d", i/3, i%3)
		all[name] = storagetest.Filled(t, tensor.Float32, []int64{70, 30}, byte(i))
		if i%3 == 0 {
			states[i/3] = plan.State{}
		}
		states[i/3][name] = all[name]
	}
	if format == formats.Torch {
		var list []string
		for i, w := range states {
			file := fmt.Sprintf("pytorch_model-%d.bin", i)
			saveStates(t, torchfile.Format{File: file}, s, w)
			for name := range w {
				list = append(list, fmt.Sprintf("%q: %q", name, file))
			}
		}
		const index = "pytorch_model.bin.index.json"
		storagetest.Put(t, s, index, fmt.Appendf(nil, `{"weight_map": {%s}}`, strings.Join(list, ", ")))
		return torchfile.Format{File: index}, s, all
	}
	o := &formats.Options{Distributed: kind == "distributed"}
	if kind == "index" {
		o.Shards, states = 4, []plan.State{all}
	}
	f := must.Get(formats.ByName(format, o))(t)
	saveStates(t, f, s, states...)
	return f, s, all
}

// Two files that were cut short and one that is gone are three problems, each with
// the name of its file, in every format. The names in the fourth file can be read. The
// distributed form of hf has a fourth problem: the names that are lost, of which it
// does not know the files.
func TestDamagedFilesAreNamed(t *testing.T) {
	for _, c := range [][2]string{
		{formats.Native, ""}, {formats.TorchDCP, ""}, {formats.HF, "index"}, {formats.HF, "distributed"}, {formats.Torch, "index"}, {formats.Hyper, ""},
	} {
		t.Run(strings.TrimSpace(c[0]+" "+c[1]), func(t *testing.T) {
			f, s, want := fourFiles(t, c[0], c[1])
			files := slices.DeleteFunc(storagetest.Names(t, s), func(name string) bool {
				return !slices.Contains([]string{".safetensors", ".distcp", ".bin"}, path.Ext(name))
			})
			if len(files) != 4 {
				t.Fatalf("the data files are %q; want four", files)
			}
			bad, whole := files[:3], files[3]
			for i, file := range bad[:2] {
				b := must.Get(blob.ReadAll(t.Context(), s, file, 1<<20))(t)
				storagetest.Put(t, s, file, b[:[]int{len(b) / 2, len(b) - 1}[i]])
			}
			storagetest.Remove(t, s, bad[2])
			opened, err := f.Open(t.Context(), s)
			if err != nil {
				t.Fatalf("Open = %v", err)
			}
			ck := cairn.NewCheckpoint(s, opened)
			defer ck.Close()
			rep, err := ck.Verify(t.Context(), nil)
			if !errors.Is(err, cairn.ErrCorrupt) || !strings.Contains(err.Error(), ": "+rep.Problems[0].File+": "+rep.Problems[0].Text) {
				t.Errorf("Verify = %v; want %v and the first problem", err, cairn.ErrCorrupt)
			}
			var got []string
			for _, p := range rep.Problems {
				got = append(got, p.File)
			}
			if c[1] == "distributed" {
				bad = append([]string{"cairn-save.json"}, bad...)
			}
			slices.Sort(got)
			if !slices.Equal(got, bad) {
				t.Errorf("problems %+v; want one for each of %q", rep.Problems, bad)
			}
			md := must.Get(ck.Metadata(t.Context()))(t)
			read := 0
			for _, e := range md.Entries {
				if e.Tensor.Locs[0].File != whole {
					continue
				}
				x, err := ck.ReadTensor(t.Context(), e.FQN)
				if err != nil || !tensor.Equal(x, want[e.FQN].(*tensor.Tensor)) {
					t.Errorf("ReadTensor(%s) = %v, %v; want what was saved", e.FQN, x, err)
				}
				read++
			}
			if read != 3 {
				t.Errorf("%d names are in %s; want 3", read, whole)
			}
		})
	}
}
