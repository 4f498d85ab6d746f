package saves

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// labelling is a writer that keeps a label with each item.
type labelling struct{ storage.PassWriter }

func (l *labelling) WriteData(ctx context.Context, p *plan.SavePlan, data storage.Resolver) (*storage.WriteResults, error) {
	out, err := l.Writer.WriteData(ctx, p, data)
	if err != nil {
		return nil, err
	}
	for i := range out.Items {
		it := &out.Items[i]
		it.Loc.SetStorageData([]byte(label(it.Index)))
	}
	return out, nil
}

func label(i meta.Index) string { return fmt.Sprintf("of %s at %v", i.FQN, i.Offset) }

// saveLabelled saves the states of some ranks.
func saveLabelled(t *testing.T, f storage.Format, store blob.Store, states ...cairn.State) error {
	t.Helper()
	return inproc.Run(t.Context(), len(states), func(ctx context.Context, g group.Group) error {
		w, err := f.NewWriter(store, storage.WriteOptions{})
		if err != nil {
			return err
		}
		o := &cairn.SaveOptions{Group: g, Writer: &labelling{storage.PassWriter{Writer: w}}}
		_, err = cairn.Save(ctx, store, states[g.Rank()], o)
		return err
	})
}

// Storage data of a writer reaches the reader: of chunks, of values in the index and of
// values in files, all of which load as before.
func TestStorageDataReachesReader(t *testing.T) {
	store, x := new(mem.Store), jobtest.Whole(t, []int64{4, 3}, 1)
	long := strings.Repeat("long", 50_000)
	must.Do(t, saveLabelled(t, native.Format{}, store,
		cairn.State{"w": jobtest.Cut(t, jobtest.Rows(2), x, 0), "inline": 7},
		cairn.State{"w": jobtest.Cut(t, jobtest.Rows(2), x, 1), "small": jobtest.Whole(t, []int64{2}, 5), "long": long}))
	c := must.Get(cairn.Open(t.Context(), store))(t)
	defer c.Close()
	md := must.Get(c.Metadata(t.Context()))(t)
	for _, i := range []meta.Index{
		{FQN: "w", Offset: []int64{0, 0}}, {FQN: "w", Offset: []int64{2, 0}}, {FQN: "small", Offset: []int64{0}}, {FQN: "inline"}, {FQN: "long"},
	} {
		if l, ok := md.Location(i); !ok || string(l.StorageData()) != label(i) {
			t.Errorf("the location of %v is %+v; want the storage data %q", i, l, label(i))
		}
	}
	if e, _ := md.Find("inline"); e.Bytes.Inline == nil {
		t.Error("the value is not in the index; the test saw too little")
	}
	if e, err := c.Entry(t.Context(), "w"); err != nil || string(e.Tensor.Locs[1].StorageData()) != "of w at [2 0]" {
		t.Errorf("Entry(w) = %+v, %v; want storage data", e, err)
	}
	if report, err := c.Verify(t.Context(), nil); err != nil || len(report.Problems) > 0 {
		t.Errorf("Verify = %+v, %v; want no problem", report, err)
	}
	got := cairn.State{"w": jobtest.Whole(t, []int64{4, 3}, 0), "inline": 0, "long": ""}
	must.Get(cairn.Load(t.Context(), store, got, nil))(t)
	if !tensor.Equal(got["w"].(*tensor.Tensor), x) || got["inline"] != 7 || got["long"] != long {
		t.Errorf("the state is %.200v", got)
	}
}

// begunObjects counts the objects that are begun.
type begunObjects struct {
	*mem.Store
	created atomic.Int64
}

func (c *begunObjects) Create(ctx context.Context, name string, opts *blob.CreateOptions) (blob.Writer, error) {
	c.created.Add(1)
	return c.Store.Create(ctx, name, opts)
}

// If a writer says that it adds storage data, formats without a place for it refuse the save
// before anything is written, and the native format keeps it.
func TestStorageDataIsRefusedBeforeWriting(t *testing.T) {
	for _, f := range []storage.Format{torchdcp.Format{}, hyper.Format{}, hf.Format{}, torchfile.Format{File: "x.pt"}, native.Format{}} {
		t.Run(f.Name(), func(t *testing.T) {
			store := &begunObjects{Store: new(mem.Store)}
			w := must.Get(f.NewWriter(store, storage.WriteOptions{}))(t)
			l := &labelling{storage.PassWriter{Writer: storage.PassWriter{Writer: w}, AddsData: true}}
			_, err := cairn.Save(t.Context(), store, cairn.State{"w": jobtest.Whole(t, []int64{2}, 1)}, &cairn.SaveOptions{Writer: l})
			if f.Name() == (native.Format{}).Name() {
				if err != nil || store.created.Load() == 0 {
					t.Errorf("the save = %v, and %d objects were begun; want some", err, store.created.Load())
				}
				return
			}
			if !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), `"w"`) {
				t.Errorf("the save = %v; want ErrNotRepresentable that names w", err)
			}
			if n := store.created.Load(); n > 0 {
				t.Errorf("%d objects were begun; want none", n)
			}
		})
	}
}

// Formats without a place for storage data refuse it and leave no files.
func TestStorageDataIsRefused(t *testing.T) {
	for _, f := range []storage.Format{torchdcp.Format{}, hyper.Format{}, hf.Format{}, torchfile.Format{File: "x.pt"}} {
		t.Run(f.Name(), func(t *testing.T) {
			store := new(mem.Store)
			err := saveLabelled(t, f, store, cairn.State{"w": jobtest.Whole(t, []int64{2}, 1)})
			if !errors.Is(err, storage.ErrNotRepresentable) || !strings.Contains(err.Error(), "storage data") || !strings.Contains(err.Error(), `"w"`) {
				t.Errorf("the save = %v; want ErrNotRepresentable that names w and storage data", err)
			}
			if names := storagetest.Names(t, store); len(names) > 0 {
				t.Errorf("there are %q; want nothing", names)
			}
		})
	}
}
