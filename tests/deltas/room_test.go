package deltas

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
	"github.com/cairn-ckpt/cairn/transfer"
)

// A run gets a second store and a ceiling later. A local checkpoint makes no room if others
// refer to it that are not uploaded.
func TestBaseMakesNoRoom(t *testing.T) {
	dir, remote, s := t.TempDir(), t.TempDir(), jobtest.NewTrained(t, 18)
	want := jobtest.SaveChain(t, dir, s, 2, 1)
	must.Get(transfer.Copy(t.Context(), stepAt(t, dir, 0), stepAt(t, remote, 0), nil))(t)
	r := must.Get(cairn.NewRun(dir, &cairn.RunOptions{Remote: remote, LocalBytes: 2 << 20}))(t)
	p := must.Get(r.SaveAsync(context.Background(), s.Parts(t, 0, 1), &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: new(int64(7))}}))(t)
	must.Get(p.Wait(t.Context()))(t)
	must.Do(t, r.Close(t.Context()))
	for i := range 2 {
		at := filepath.Join(dir, fmt.Sprintf("step-%d", i))
		checkContents(t, must.Get(file.Open(at, nil))(t), want[i], s.State, 1)
	}
}
