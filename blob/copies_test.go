package blob_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
)

// copies is a reader of an object with several copies, each at a place of its own.
type copies struct {
	blob.Reader
	data    []string // empty: it cannot be read
	unknown error
	reports []string
}

var (
	errDamaged = errors.New("damaged on purpose")
	errSilent  = errors.New("silent on purpose")
)

func (c *copies) Copies(context.Context) (places []string, err error) {
	for i := range c.data {
		places = append(places, fmt.Sprint("place ", i))
	}
	return places, c.unknown
}

func (c *copies) ReadCopy(_ context.Context, n int, p []byte, off int64) error {
	if c.data[n] == "" {
		return errSilent
	}
	copy(p, c.data[n][off:])
	return nil
}

func (c *copies) Report(n int, err error) { c.reports = append(c.reports, fmt.Sprint(n, " ", err)) }

// reread reads "good" from the other copies of r.
func reread(ctx context.Context, r blob.Reader) error {
	return blob.Reread(ctx, r, errDamaged, func(read blob.ReadFunc) error {
		p := make([]byte, 4)
		if err := read(ctx, p, 1); err != nil {
			return err
		}
		if string(p) != "good" {
			return fmt.Errorf("%q is damaged", p)
		}
		return nil
	})
}

func TestReread(t *testing.T) {
	for claim, c := range map[string]struct {
		r       *copies
		want    string // part of the error; empty: none
		reports []string
	}{
		"the second copy":   {&copies{data: []string{"-bad!", "-good", "-good"}}, "", []string{"0 damaged on purpose"}},
		"the third copy":    {&copies{data: []string{"-bad!", "", "-good"}}, "", []string{"0 damaged on purpose", "1 silent on purpose"}},
		"no good copy":      {&copies{data: []string{"-bad!", "-bad!"}}, `(on place 0; on place 1: "bad!" is damaged)`, []string{"0 damaged on purpose", `1 "bad!" is damaged`}},
		"one copy":          {&copies{data: []string{"-bad!"}}, "(on place 0)", []string{"0 damaged on purpose"}},
		"others may exist":  {&copies{data: []string{"-bad!"}, unknown: errSilent}, "there may be other copies: silent", []string{"0 damaged on purpose"}},
		"a good one anyway": {&copies{data: []string{"-bad!", "-good"}, unknown: errSilent}, "", []string{"0 damaged on purpose"}},
		"no place":          {&copies{}, "damaged on purpose", nil},
	} {
		err := reread(t.Context(), c.r)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, errDamaged) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: Reread = %v; want %q", claim, err, c.want)
		}
		if !slices.Equal(c.r.reports, c.reports) {
			t.Errorf("%s: reports %q; want %q", claim, c.r.reports, c.reports)
		}
	}
}

func TestRereadWithoutCopies(t *testing.T) {
	if err := reread(t.Context(), struct{ blob.Reader }{}); err != errDamaged {
		t.Errorf("Reread of a reader without copies = %v; want the error", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &copies{data: []string{"-bad!", "-good"}}
	if err := reread(ctx, c); err != errDamaged || c.reports != nil {
		t.Errorf("Reread after the end of the context = %v, reports %q; want the error alone", err, c.reports)
	}
}
