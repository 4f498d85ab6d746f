package blobtest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/blob"
)

// many is more than a page of the listings of object stores.
const many = 3000

var listing = []claim{
	{"EmptyStoreListsNothing", func(t *testing.T, s blob.Store) {
		for _, prefix := range []string{"", "a", "a/", "a/b"} {
			if ns := names(t, s, prefix); len(ns) > 0 {
				t.Errorf("List(%q) = %q; want nothing", prefix, ns)
			}
		}
	}},
	{"ListInOrderOfNames", func(t *testing.T, s blob.Store) {
		want := []string{
			"A", "a!/x", "a-b", "a.b", "a/b", "a/b!", "a/b-c/d", "a/b0/c/d", "a/c", "a0", "a01", "aa/b", "b", "ä", "世/界",
		}
		for _, n := range slices.Backward(want) {
			put(t, s, n, n)
		}
		if diff := cmp.Diff(want, names(t, s, "")); diff != "" {
			t.Errorf("List, -want +got:\n%s", diff)
		}
	}},
	{"ListByPrefix", func(t *testing.T, s blob.Store) {
		all := []string{".hidden", "..a", "run/1/a", "run/1/b", "run/10/a", "run/2/a", "runner", "x"}
		slices.Sort(all)
		for _, n := range all {
			put(t, s, n, n)
		}
		for _, prefix := range []string{"", "r", "run", "run/", "run/1", "run/1/", "run/1/a", "run/1/a/", "run/3", "s", ".", "..", "x/", "runners"} {
			want := slices.DeleteFunc(slices.Clone(all), func(n string) bool { return !strings.HasPrefix(n, prefix) })
			if diff := cmp.Diff(want, names(t, s, prefix)); diff != "" {
				t.Errorf("List(%q), -want +got:\n%s", prefix, diff)
			}
		}
	}},
	{"ListTellsWhatStatTells", func(t *testing.T, s blob.Store) {
		put(t, s, "a/b", "hello")
		info, err := s.Stat(t.Context(), "a/b")
		if err != nil {
			t.Fatal(err)
		}
		got := list(t, s, "a/b")
		if len(got) != 1 || got[0].Name != info.Name || got[0].Size != info.Size || !got[0].ModTime.Equal(info.ModTime) {
			t.Errorf("List = %+v; want %+v, as Stat tells", got, info)
		}
	}},
	{"ListManyAndBreakEarly", func(t *testing.T, s blob.Store) {
		want := putMany(t, s, many)
		if diff := cmp.Diff(want, names(t, s, "")); diff != "" {
			t.Errorf("List of %d objects, -want +got:\n%s", many, diff)
		}
		var got []string
		for info, err := range s.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, info.Name); len(got) == 1234 {
				break
			}
		}
		if diff := cmp.Diff(want[:1234], got); diff != "" {
			t.Errorf("List left after 1234, -want +got:\n%s", diff)
		}
	}},
	{"ListTwice", func(t *testing.T, s blob.Store) {
		put(t, s, "a", "1")
		seq := s.List(t.Context(), "")
		for range 2 {
			n := 0
			for _, err := range seq {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if n != 1 {
				t.Errorf("the sequence gave %d objects; want 1 each time", n)
			}
		}
	}},
	{"LoopMayUseTheStore", func(t *testing.T, s blob.Store) {
		want := []string{"a/1", "a/2", "a/3", "b"}
		for _, n := range want {
			put(t, s, n, n)
		}
		var got []string
		for info, err := range s.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, info.Name)
			wantObject(t, s, info.Name, info.Name)
			if err := s.Remove(t.Context(), info.Name); err != nil {
				t.Errorf("Remove(%q) = %v; want nil", info.Name, err)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("List while removing, -want +got:\n%s", diff)
		}
		if ns := names(t, s, ""); len(ns) > 0 {
			t.Errorf("List = %q after all was removed; want nothing", ns)
		}
	}},
	{"BadPrefixRefused", func(t *testing.T, s blob.Store) {
		put(t, s, "a", "1")
		for _, prefix := range badPrefixes {
			n := 0
			for _, err := range s.List(t.Context(), prefix) {
				wantErr(t, err, blob.ErrName, "list", prefix)
				n++
			}
			if n != 1 {
				t.Errorf("List(%q) yielded %d times; want one error", prefix, n)
			}
		}
	}},
}

// putMany makes n small objects, several at a time, and returns their names in
// order.
func putMany(t *testing.T, s blob.Store, n int) []string {
	t.Helper()
	all := make([]string, n)
	todo := make(chan string, n)
	for i := range all {
		all[i] = fmt.Sprintf("run/%02d/%04d", i%7, i)
		todo <- all[i]
	}
	close(todo)
	var wg sync.WaitGroup
	for range 64 { // so that the syncs of a slow disk share their wait
		wg.Go(func() {
			for name := range todo {
				tryPut(t, s, name, name)
			}
		})
	}
	wg.Wait()
	slices.Sort(all)
	return all
}
