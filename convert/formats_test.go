package convert_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// toFormat is a target of a format in s.
func toFormat(name string, s blob.Store) *convert.Target {
	return &convert.Target{Format: name, Staging: s, NewWriter: func(n int64) (storage.Writer, error) {
		f, err := formats.ByName(name, &formats.Options{File: "model.pt"})
		if err != nil {
			return nil, err
		}
		return f.NewWriter(s, storage.WriteOptions{BufferBytes: n})
	}}
}

// without returns digests without the names of a list, and with only the kind of objects.
func without(ds map[string]inspect.Digest, names []string) map[string]inspect.Digest {
	out := map[string]inspect.Digest{}
	for n, d := range ds {
		if d.Kind == inspect.KindObject {
			d.NumBytes, d.SHA256 = 0, ""
		}
		out[n] = d
	}
	for _, n := range names {
		delete(out, n)
	}
	return out
}

// Every fixture can be converted to every format with the same content, without the
// objects that the format refuses.
func TestConvertFixturesToEveryFormat(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "*/*") {
		src := must.Get(file.Open(c.Dir, nil))(t)
		want := digests(t, src)
		to := formats.Alone()
		for _, i := range rand.Perm(len(to))[:deep.Rounds(2, len(to))] {
			to := to[i]
			t.Run(c.Name+" to "+to, func(t *testing.T) {
				dst := &mem.Store{Name: "target"}
				rep := convertFixture(t, src, dst, to)
				got := digests(t, dst)
				if d := cmp.Diff(without(want, rep.Skipped), without(got, nil)); d != "" {
					t.Errorf("the content differs: -source +target\n%s", d)
				}
			})
		}
	}
}

// convertFixture converts the checkpoint in src. Tensors of types that the format lacks are
// cast.
func convertFixture(t *testing.T, src, dst blob.Store, to string) *convert.Report {
	t.Helper()
	c, at, err := formats.OpenLocated(t.Context(), src, nil)
	must.Do(t, err)
	defer c.Close()
	o := &convert.Options{Merge: formats.WholeTensors(to), SkipObjects: true, Source: at}
	rep, err := run(context.Background(), c, o, toFormat(to, dst))
	if refused, ok := errors.AsType[*convert.RefusedError](err); ok {
		for _, r := range refused.Tensors {
			o.Exclude = append(o.Exclude, r.Name)
		}
		rep, err = run(context.Background(), c, o, toFormat(to, dst))
		if err == nil {
			rep.Skipped = append(rep.Skipped, o.Exclude...)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return rep
}
