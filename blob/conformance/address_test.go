package conformance

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TestRunInS3 saves a run by addresses and finds its newest checkpoint.
func TestRunInS3(t *testing.T) {
	run := place()
	x := must.Get(tensor.Of([]int64{4}, []float32{1, 2, 3, 4}))(t)
	for _, step := range []int64{2, 10, 9} {
		s := must.Get(cairn.OpenStore(blob.JoinAddress(run, fmt.Sprintf("step %d", step))))(t)
		if _, err := cairn.Save(t.Context(), s, cairn.State{"x": x}, &cairn.SaveOptions{Step: &step}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := cairn.Latest(t.Context(), run, &cairn.LatestOptions{Wait: true})
	if err != nil || f.Path != blob.JoinAddress(run, "step 10") || len(f.Skipped) > 0 {
		t.Fatalf("Latest = %+v, %v; want step 10", f, err)
	}
	c := must.Get(cairn.OpenPath(t.Context(), f.Path))(t)
	defer c.Close()
	if got, err := c.ReadTensor(t.Context(), "x"); err != nil || !slices.Equal(got.Shape(), x.Shape()) {
		t.Errorf("ReadTensor = %v, %v; want x", got, err)
	}
}

// testFolders tests that a store finds folders with one request, whatever they hold.
func testFolders(t *testing.T, s *remote.Store) {
	t.Helper()
	for _, name := range []string{"a", "b/x", "b/y/z", "b-c/x", "b0/x"} {
		if _, err := blob.WriteAll(t.Context(), s, name, []byte(name), nil); err != nil {
			t.Fatal(err)
		}
	}
	before := s.Traffic()
	got, err := blob.Folders(t.Context(), s, "")
	if want := []string{"b", "b-c", "b0"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Folders = %v, %v; want %v", got, err, want)
	}
	if n := s.Traffic().Sub(before).Requests; n != 1 {
		t.Errorf("Folders made %d requests; want 1", n)
	}
	if got, err := blob.Folders(t.Context(), s, "b"); err != nil || !slices.Equal(got, []string{"y"}) {
		t.Errorf("Folders(b) = %v, %v; want y", got, err)
	}
	if got, err := blob.Folders(t.Context(), s, "nothing"); err != nil || len(got) > 0 {
		t.Errorf("Folders(nothing) = %v, %v; want none", got, err)
	}
}

// A URL with an extension names an object, if there is one.
func TestObjectInS3(t *testing.T) {
	s := openS3(t, nil)
	one := blob.JoinAddress(s.String(), "one.pt") + "?endpoint=" + endpoint
	if _, err := blob.WriteAll(t.Context(), s, "one.pt", []byte("one"), nil); err != nil {
		t.Fatal(err)
	}
	single, err := blob.OpenAddress(t.Context(), one)
	if _, ok := single.(*blob.Single); err != nil || !ok {
		t.Errorf("OpenAddress(one.pt) = %v, %v; want that object alone", single, err)
	}
	// Saver processes refuse it, because it is not a folder.
	if s, err := cairn.OpenStore(one); err != nil {
		t.Error(err)
	} else if _, ok := s.(*blob.Single); !ok {
		t.Errorf("OpenStore(one.pt) = %T; want *blob.Single", s)
	}
}
