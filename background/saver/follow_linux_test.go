package saver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/blob/fault"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/run/versions"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/tensor"
)

// large is the shape of a tensor of several segments.
var large = []int64{400, 500}

// saveVersions saves versions of a tensor to a run, each on the base of the one before, and
// returns the contents of each, from version 1 on.
func saveVersions(t *testing.T, dir string, versions int64) []*tensor.Tensor {
	t.Helper()
	x := matrix(t, tensor.Int16, large, 7)
	out := []*tensor.Tensor{nil}
	for v := int64(1); v <= versions; v++ {
		for b := x.Contents()[2*v:]; len(b) > 100; b = b[100:] {
			b[0]++
		}
		store := must.Get(file.Open(filepath.Join(dir, run.FolderName(v)), nil))(t)
		base := &storage.Base{}
		if v > 1 {
			base.Folder = run.FolderName(v - 1)
		}
		w := must.Get(native.Format{}.NewWriter(store, storage.WriteOptions{Base: base}))(t)
		must.Get(protocol.Save(t.Context(), protocol.RankSave{
			Group: group.Solo(), Planner: new(plan.DefaultSave), Writer: w, State: plan.State{"x": x},
			Storage: meta.Storage{SaveID: fmt.Sprintf("save-%d", v), Step: &v, Time: time.Unix(1e9+v, 0).UTC(), WorldSize: 1},
		}))(t)
		out = append(out, x.Clone())
	}
	return out
}

// newest asks for a version of a run.
func (c *trainer) newest(b newestBody) (foundBody, error) {
	c.Helper()
	b.Load = 9
	c.send(typeNewest, b)
	f := must.Get(readFrame(c.r))(c)
	body := must.Get(decodeBody(f))(c)
	switch b := body.(type) {
	case foundBody:
		return b, nil
	case failedBody:
		return foundBody{}, b.Error.err()
	}
	c.Fatalf("%s %s", f.Type, f.Body)
	return foundBody{}, nil
}

func TestNewest(t *testing.T) {
	dir := t.TempDir()
	c := newLoader(t)
	none := func(what string, b newestBody) {
		t.Helper()
		if got, err := c.newest(b); err != nil || got.Version != nil {
			t.Errorf("%s: %+v, %v; want no version", what, got, err)
		}
	}
	none("a run that does not exist", newestBody{Store: filepath.Join(dir, "nothing")})
	saveVersions(t, dir, 3)
	none("the version of the last update", newestBody{Store: dir, Known: versions.Known{Last: &versions.Version{Step: 3, SaveID: "save-3"}}})
	none("another format", newestBody{Store: dir, Format: "torchdcp"})
	for name, q := range map[string]struct {
		known versions.Known
		want  int64
	}{
		"the newest":                   {versions.Known{}, 3},
		"another save of the last":     {versions.Known{Last: &versions.Version{Step: 3, SaveID: "another"}}, 3},
		"one that is known as damaged": {versions.Known{Damaged: map[int64]string{3: "save-3"}}, 2},
	} {
		got, err := c.newest(newestBody{Store: dir, Known: q.known})
		want := foundBody{Load: 9, Version: &versionBody{versions.Version{Step: q.want, SaveID: fmt.Sprintf("save-%d", q.want)}, filepath.Join(dir, run.FolderName(q.want))}}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	if _, err := c.newest(newestBody{Store: "gopher://x"}); !errors.Is(err, storage.ErrOptions) {
		t.Errorf("an unknown scheme: %v; want ErrOptions", err)
	}

	must.Do(t, os.Truncate(filepath.Join(dir, run.FolderName(3), "cairn.json"), 5))
	got, err := c.newest(newestBody{Store: dir})
	if err != nil || got.Version.Step != 2 || len(got.Problems) != 1 || !strings.HasPrefix(got.Problems[0], "version 3: ") {
		t.Errorf("newest = %+v, %v; want version 2, and a problem of version 3", got, err)
	}
	got, err = c.newest(newestBody{Store: dir, Known: versions.Known{Last: &versions.Version{Step: 3}}})
	if err != nil || got.Version == nil && len(got.Problems) != 1 {
		t.Errorf("with a damaged version as the last: %+v, %v; want a problem", got, err)
	}
}

// A search that receives the outcome of each attempt, across messages.
func TestSearch(t *testing.T) {
	dir := t.TempDir()
	saveVersions(t, dir, 3)
	c := newLoader(t)
	b := newestBody{Store: dir, Search: new(versions.Search)}
	next := func(outcome error) foundBody {
		t.Helper()
		if b.Outcome = nil; outcome != nil {
			e := newErrorBody(outcome)
			b.Outcome = &e
		}
		got := must.Get(c.newest(b))(t)
		b.Known, b.Search = *got.Known, got.Search
		return got
	}
	for i, step := range []struct {
		outcome error
		version int64
	}{{nil, 3}, {storage.ErrCorrupt, 3}, {storage.ErrCorrupt, 2}, {storage.ErrChanged, 2}} {
		got := next(step.outcome)
		if got.Version == nil || got.Version.Step != step.version || len(got.Problems) != i {
			t.Fatalf("attempt %d: %+v; want version %d and %d problems", i, got, step.version, i)
		}
	}
	if got := next(plan.ErrMissing); got.Version != nil || got.Over != overFailed || got.Known.Unfit.Step != 2 {
		t.Errorf("after a version that does not fit: %+v", got)
	}
	if want := map[int64]string{3: "save-3"}; !reflect.DeepEqual(b.Known.Damaged, want) {
		t.Errorf("known as damaged: %v; want %v", b.Known.Damaged, want)
	}

	b.Search = &versions.Search{Step: new(int64(7))}
	if got := next(nil); got.Version != nil || got.Over != versions.None || !errors.Is(got.Why.err(), storage.ErrNotFound) {
		t.Errorf("version 7: %+v; want no version", got)
	}
}

// Loads with keep read only the changes. If one of them fails, the next one reads everything.
func TestLoadsOfVersions(t *testing.T) {
	dir := t.TempDir()
	want := saveVersions(t, dir, 6)
	full := want[1].NumBytes()
	c := newLoader(t)
	load := func(v, keep int64) *loaded {
		t.Helper()
		items := []wantBody{{Name: "x", DType: "int16", Shape: large}}
		clear(c.mem[:full])
		l := c.load(loadBody{source: source{Store: filepath.Join(dir, run.FolderName(v)), Keep: keep}, Items: items})
		if l.err == nil {
			c.check(items[0], want[v])
		}
		return l
	}
	const keep = 1 << 30
	for v := int64(1); v <= 3; v++ {
		l := load(v, keep)
		if l.err != nil {
			t.Fatal(l.err)
		}
		if got := l.report.Local.Read; (v == 1) != (got >= full) || v > 1 && got > full/4 {
			t.Errorf("version %d: %d bytes were read, all are %d", v, got, full)
		}
	}
	if l := load(4, 0); l.err != nil || l.report.Local.Read < full {
		t.Errorf("without keep: %+v, %v; want more than %d bytes", l.report, l.err, full)
	}
	// The changes of version 4 are damaged.
	store := must.Get(file.Open(filepath.Join(dir, run.FolderName(4)), nil))(t)
	for _, e := range must.Get(os.ReadDir(store.Dir()))(t) {
		if strings.HasSuffix(e.Name(), ".delta") {
			must.Do(t, fault.Damage(t.Context(), store, e.Name(), func(b []byte) []byte {
				b[len(b)*3/4] ^= 0x55 // a body; the table is at the end
				return b
			}))
		}
	}
	if l := load(4, keep); !errors.Is(l.err, storage.ErrCorrupt) {
		t.Errorf("a damaged version: %v; want ErrCorrupt", l.err)
	}
	if l := load(3, keep); l.err != nil || l.report.Local.Read < full {
		t.Errorf("after a failure: %+v, %v; want more than %d bytes", l.report, l.err, full)
	}
}

func TestBadVersionsAreRefused(t *testing.T) {
	for name, m := range map[string]struct {
		kind string
		body any
	}{
		"a negative cache of a load":        {typeLoad, loadBody{Load: 1, source: source{Store: "/x", Keep: -1}}},
		"a negative cache of a description": {typeDescribe, describeBody{Load: 1, source: source{Store: "/x", Keep: -1}}},
		"an impossible search":              {typeNewest, newestBody{Load: 1, Store: "/x", Search: &versions.Search{Again: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newLoader(t)
			c.send(m.kind, m.body)
			c.expect(typeRefused)
		})
	}
}
