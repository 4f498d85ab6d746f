package cairn_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cairn-ckpt/cairn"
)

// TestOverlapStagesAfterReturn changes the state when it is staged, which is later than
// the return of SaveAsync.
func TestOverlapStagesAfterReturn(t *testing.T) {
	for mode, options := range modes {
		for _, ceiling := range []int64{4 << 20, 64 << 10} {
			t.Run(fmt.Sprint(mode, ceiling), func(t *testing.T) {
				store, s := tempStore(t), stager(t, options(ceiling))
				x := numbered(t, 300<<10, 3)
				for range 3 {
					want := x.Clone().Contents()
					p, err := cairn.SaveAsync(t.Context(), store, cairn.State{"x": x}, &cairn.AsyncOptions{Stager: s, Overlap: true})
					if err != nil {
						t.Fatal(err)
					}
					<-p.Staged()
					overwrite(x)
					if _, err := p.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(loadBytes(t, store, "x"), want) {
						t.Fatal("x is not what was staged")
					}
				}
			})
		}
	}
}
