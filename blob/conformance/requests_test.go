package conformance

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
)

// requests runs fn and returns how many requests the store made.
func requests(t *testing.T, s blob.Store, fn func() error) int64 {
	t.Helper()
	since := blob.Since(s)
	must.Do(t, fn())
	return since().Requests
}

// TestRequestsOfSavesAndLoads counts the requests of a save and of loads. Hedged reads
// would count too, so they are switched off.
func TestRequestsOfSavesAndLoads(t *testing.T) {
	s := openS3(t, &remote.Options{Policy: remote.Policy{Hedge: -1}})
	// Whether the service keeps conditions is found out once, not by each store.
	for i, s := range []*remote.Store{openS3(t, nil), s} {
		n := requests(t, s, func() error {
			_, err := blob.WriteAll(t.Context(), s, "probes/1", []byte("probe"), &blob.CreateOptions{IfAbsent: true})
			return err
		})
		if n > 2 || i > 0 && n != 1 {
			t.Errorf("store %d made %d requests to write an object; want 1, and at most one to try out conditions", i, n)
		}
	}
	const ranks, tensors, size = 3, 20, 64 << 10
	save := func(g group.Group, step int64) (*cairn.SaveReport, error) {
		state := cairn.State{"step": step}
		for i := range tensors {
			x, err := shard.Zeros[float32](shard.Rows(ranks), []int64{ranks, size}, g.Rank())
			if err != nil {
				return nil, err
			}
			state[fmt.Sprint("layer", i)] = x
		}
		return cairn.Save(t.Context(), s, state, &cairn.SaveOptions{Group: g, Step: &step})
	}
	saveAll := func(step int64) (files int, reported int64) {
		results := make(chan *cairn.SaveReport, ranks)
		errs := make(chan error, ranks)
		for _, g := range inproc.New(ranks) {
			go func() {
				r, err := save(g, step)
				results <- r
				errs <- err
			}()
		}
		for range ranks {
			r := must.Get(<-results, <-errs)(t)
			if r.Traffic == nil {
				t.Fatal("the report of a save does not count requests")
			}
			files, reported = r.Files, max(reported, r.Traffic.Requests)
		}
		return files, reported
	}
	for step, others := range []int64{4, 6} { // into an empty place, and replacing a checkpoint
		var files int
		var reported int64
		n := requests(t, s, func() error {
			files, reported = saveAll(int64(step))
			return nil
		})
		t.Logf("save %d: %d data files, %d requests", step, files, n)
		// Data files of one part are sent with one request.
		if most := int64(files) + others; n > most || files < ranks || reported > n || reported == 0 {
			t.Errorf("save %d of %d data files made %d requests, its reports say up to %d; want at most %d", step, files, n, reported, most)
		}
	}
	n := requests(t, s, func() error {
		c, err := cairn.Open(t.Context(), s)
		if err != nil {
			return err
		}
		defer c.Close()
		x, err := tensor.New(tensor.Float32, []int64{1, size})
		if err != nil {
			return err
		}
		return c.ReadBox(t.Context(), "layer7", tensor.Box{Offsets: []int64{1, 0}, Sizes: []int64{1, size}}, x)
	})
	t.Logf("to open a checkpoint and read a part of a tensor: %d requests", n)
	if n > 4 {
		t.Errorf("to open a checkpoint and read a part of a tensor took %d requests; want at most 4", n)
	}
	state := cairn.State{}
	var err error
	if state["layer3"], err = shard.Zeros[float32](shard.Rows(ranks), []int64{ranks, size}, 2); err != nil {
		t.Fatal(err)
	}
	var r *cairn.LoadReport
	n = requests(t, s, func() error {
		r, err = cairn.Load(t.Context(), s, state, nil)
		return err
	})
	t.Logf("a load of one tensor: %d requests", n)
	if n > 4 || r.Traffic == nil || r.Traffic.Requests != n || r.Traffic.Received < size*4 {
		t.Errorf("a load of one tensor made %d requests, its report says %+v; want at most 4, and the same", n, r.Traffic)
	}
}

// TestFilesThatAreNotThere: files are opened without a request, so reads report files that
// are missing or have another size.
func TestFilesThatAreNotThere(t *testing.T) {
	for _, what := range []string{"missing", "shorter"} {
		for _, suffix := range []string{"-index.cairn", ".safetensors"} {
			s := openS3(t, nil)
			x := must.Get(tensor.New(tensor.Float32, []int64{1000}))(t)
			if _, err := cairn.Save(t.Context(), s, cairn.State{"x": x}, nil); err != nil {
				t.Fatal(err)
			}
			damage(t, s, suffix, what == "shorter")
			read := func() error {
				c, err := cairn.Open(t.Context(), s)
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = c.ReadTensor(t.Context(), "x")
				return err
			}
			if err := read(); !isCorrupt(err) {
				t.Errorf("%s %s: reading = %v; want ErrCorrupt", what, suffix, err)
			}
			if _, err := cairn.Load(t.Context(), s, cairn.State{"x": x}, nil); !isCorrupt(err) {
				t.Errorf("%s %s: Load = %v; want ErrCorrupt", what, suffix, err)
			}
		}
	}
}

func isCorrupt(err error) bool { return errors.Is(err, cairn.ErrCorrupt) }

// damage removes the objects with a suffix, or makes them shorter.
func damage(t *testing.T, s blob.Store, suffix string, shorter bool) {
	t.Helper()
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(info.Name, suffix) {
			continue
		}
		b, err := blob.ReadAll(t.Context(), s, info.Name, 1<<20)
		if err == nil {
			err = s.Remove(t.Context(), info.Name)
		}
		if err == nil && shorter {
			_, err = blob.WriteAll(t.Context(), s, info.Name, b[:len(b)/2], nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFileThatIsReplaced: a checkpoint sees one version of each file. If a data file is
// replaced by one of the same size, later reads fail instead of mixing the two.
func TestFileThatIsReplaced(t *testing.T) {
	s := openS3(t, nil)
	x := must.Get(tensor.New(tensor.Float32, []int64{1000}))(t)
	if _, err := cairn.Save(t.Context(), s, cairn.State{"x": x, "y": x}, nil); err != nil {
		t.Fatal(err)
	}
	c := must.Get(cairn.Open(t.Context(), s))(t)
	defer c.Close()
	if _, err := c.ReadTensor(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(info.Name, ".safetensors") {
			b := must.Get(blob.ReadAll(t.Context(), s, info.Name, 1<<20))(t)
			b[8] = ' ' // in the header, which the native format does not read again
			b[9]++
			if _, err := blob.WriteAll(t.Context(), s, info.Name, b, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := c.ReadTensor(t.Context(), "y"); !isCorrupt(err) || !errors.Is(err, blob.ErrChanged) {
		t.Errorf("a read of a file that was replaced = %v; want ErrCorrupt and ErrChanged", err)
	}
}
