package saves

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// registerMem lets addresses of a scheme open folders of one store in memory.
func registerMem(scheme string) *mem.Store {
	s := &mem.Store{Name: scheme}
	blob.Register(scheme, func(_ context.Context, address string) (blob.Store, error) {
		path, _, _ := strings.Cut(strings.TrimPrefix(address, scheme+"://"), "?")
		return blob.NewSub(s, strings.Trim(path, "/"))
	})
	return s
}

func TestAddressesOfStores(t *testing.T) {
	s := registerMem("addresses")
	for step, dir := range map[int64]string{2: "step-2", 10: "step-10", 3: "other"} {
		jobtest.SaveStep(t, "addresses://run/"+dir+"?key=hush", step, nil)
	}
	c, err := cairn.OpenPath(t.Context(), "addresses://run/step-2")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.Info().Step; got == nil || *got != 2 {
		t.Errorf("OpenPath(step-2).Info().Step = %v; want 2", got)
	}
	latest := func(want string, skipped int) {
		t.Helper()
		f, err := cairn.Latest(t.Context(), "addresses://run?key=hush", &cairn.LatestOptions{Wait: true})
		if err != nil || f.Path != want || len(f.Skipped) != skipped {
			t.Fatalf("Latest = %+v, %v; want %s and %d skipped", f, err, want, skipped)
		}
		if skipped > 0 && strings.Contains(f.Skipped[0].Problem, "hush") {
			t.Errorf("Latest = %+v; want no secrets in problems", f)
		}
	}
	latest("addresses://run/step-10?key=hush", 0)
	for info, err := range s.List(t.Context(), "run/step-10/") {
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(info.Name, ".safetensors") {
			must.Do(t, s.Remove(t.Context(), info.Name))
		}
	}
	latest("addresses://run/other?key=hush", 1)
	_, err = cairn.Latest(t.Context(), "addresses://nothing?key=hush", nil)
	if !errors.Is(err, cairn.ErrNotFound) || strings.Contains(err.Error(), "hush") {
		t.Errorf("Latest of nothing = %v; want ErrNotFound without secrets", err)
	}
	for _, address := range []string{"unknown://user:hush@host/x", "file://user:hush@host/x", "file:///x?key=hush", "file://user:hush@host:port/%zz"} {
		_, err := cairn.OpenStore(address)
		_, err2 := cairn.Latest(t.Context(), address, nil)
		for _, err := range []error{err, err2} {
			if !errors.Is(err, blob.ErrAddress) || strings.Contains(err.Error(), "hush") {
				t.Errorf("an address that is not valid: %v; want ErrAddress without secrets", err)
			}
		}
	}
}
