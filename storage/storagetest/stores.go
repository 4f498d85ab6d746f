package storagetest

import (
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
)

// Setup is a format with the options of its writers and readers.
type Setup struct {
	Format storage.Format
	Write  storage.WriteOptions
	Read   storage.ReadOptions
}

// At returns the place at the root of a store. Its Writer panics if the format
// refuses the options.
func (s Setup) At(store blob.Store) Place {
	return Place{
		Writer: func() storage.Writer { return NewWriter(s.Format, store, s.Write) },
		Reader: func() storage.Reader { return storage.NewReader(s.Format.Open, store, s.Read) },
	}
}

// Save saves the states, one for each rank, at the root of a store.
func (s Setup) Save(t testing.TB, store blob.Store, id string, states ...plan.State) error {
	t.Helper()
	return Save(t.Context(), s.At(store), Storage(id, 1, len(states)), states...)
}

// RunSetups runs Run for each of the setups of a format in memory, and for the one of
// the name "plain" in files, too.
func RunSetups(t *testing.T, setups map[string]Setup, o *Options) {
	for name, setup := range setups {
		t.Run(name, func(t *testing.T) {
			Run(t, func(*testing.T) Place { return setup.At(new(mem.Store)) }, o)
		})
	}
	t.Run("files", func(t *testing.T) {
		Run(t, func(t *testing.T) Place { return setups["plain"].At(openDir(t, t.TempDir())) }, o)
	})
}

// NewWriter returns a writer of a format. It panics if the format refuses the
// options.
func NewWriter(f storage.Format, s blob.Store, o storage.WriteOptions) storage.Writer {
	w, err := f.NewWriter(s, o)
	if err != nil {
		panic(err)
	}
	return w
}

// Names returns the names of all objects of a store, in their order.
func Names(t testing.TB, s blob.Store) []string {
	t.Helper()
	var out []string
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, info.Name)
	}
	return out
}

// Put writes an object, in place of one of that name if there is one.
func Put(t testing.TB, s blob.Store, name string, data []byte) {
	t.Helper()
	must.Get(blob.WriteAll(t.Context(), s, name, data, nil))(t)
}

// Remove deletes objects.
func Remove(t testing.TB, s blob.Store, names ...string) {
	t.Helper()
	for _, name := range names {
		must.Do(t, s.Remove(t.Context(), name))
	}
}

// Flip changes a bit in the middle of an object, and one in every thousandth byte
// after it.
func Flip(t testing.TB, s blob.Store, name string) {
	t.Helper()
	must.Do(t, fault.Damage(t.Context(), s, name, func(b []byte) []byte {
		for i := len(b) / 2; i < len(b); i += 1000 {
			b[i] ^= 1
		}
		return b
	}))
}

// CopyOf returns a copy of a store in memory.
func CopyOf(t testing.TB, from blob.Store) *mem.Store {
	t.Helper()
	to := new(mem.Store)
	for _, name := range Names(t, from) {
		b, err := blob.ReadAll(t.Context(), from, name, 1<<30)
		must.Do(t, err)
		Put(t, to, name, b)
	}
	return to
}
