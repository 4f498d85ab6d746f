package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/remote"
	"github.com/cairn-ckpt/cairn/blob/s3"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
)

// A saver that dies at any of its requests, before or after the service has carried it
// out, leaves the old checkpoint or the new one, and nothing else that clean does not find:
// data files, and uploads that were begun.
func TestS3SaverDies(t *testing.T) {
	for _, late := range []bool{false, true} {
		name := "before the request"
		if late {
			name = "before the answer"
		}
		t.Run(name, func(t *testing.T) {
			uploads := 0
			for n := int64(1); ; n++ {
				died, temps := dieAt(t, n, late)
				uploads += temps
				if t.Failed() {
					t.Fatalf("at request %d", n)
				}
				if !died {
					if n < 8 || uploads == 0 {
						t.Errorf("%d requests, %d uploads that were left: the test saw too little", n-1, uploads)
					}
					return
				}
			}
		})
	}
}

// dieAt saves while the saver dies at its n-th request. It reports whether the saver has
// died, and how many uploads it has left.
func dieAt(t *testing.T, n int64, late bool) (died bool, uploads int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	good := openS3(t, nil)
	save := func(s *remote.Store, id int) error {
		w, err := tensor.Of([]int64{11 << 20}, make([]uint8, 11<<20))
		if err != nil {
			return err
		}
		state := cairn.State{"n": id}
		if id == 2 {
			state["w"] = w // it takes several parts
		}
		_, err = cairn.Save(ctx, s, state, nil)
		return err
	}
	if err := save(good, 1); err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, 0, 0)
	p.CutAt, p.CutLate = n, late
	s, err := s3.Open(ctx, good.String()+"?endpoint="+p.URL(), &remote.Options{Policy: remote.Policy{Attempts: 1, Hedge: -1}})
	if err != nil {
		t.Fatal(err)
	}
	err = save(s, 2)
	died = p.Counts()[Cut] > 0
	if !died && err != nil {
		t.Fatal(err)
	}
	got, _, loadErr := cairn.LoadNew(ctx, good, nil)
	held := fmt.Sprint(got["n"])
	if loadErr != nil || held != "1" && held != "2" || err == nil && held != "2" {
		t.Errorf("the save = %v; then the checkpoint holds %v, %v", err, held, loadErr)
	}
	temps, err := good.Temps(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := formats.Clean(ctx, good, 0); err != nil {
		t.Error(err)
	}
	if left, err := good.Temps(ctx, ""); len(left) > 0 || err != nil {
		t.Errorf("uploads that clean did not find: %v, %v", left, err)
	}
	c, err := cairn.Open(ctx, good)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := []string{"cairn.json"}
	for _, f := range c.Files() {
		want = append(want, f.Name)
	}
	slices.Sort(want)
	if now := names(t, good); now != strings.Join(want, " ") {
		t.Errorf("there is %s; want the files of the checkpoint, %q", now, want)
	}
	if got, _, err := cairn.LoadNew(ctx, good, nil); err != nil || fmt.Sprint(got["n"]) != held {
		t.Errorf("after a sweep the checkpoint holds %v, %v; want %v", got["n"], err, held)
	}
	return died, len(temps)
}
