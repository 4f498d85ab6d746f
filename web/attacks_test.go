package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// mostAnswer bounds the JSON of an answer about a file of an attack.
const mostAnswer = 64 << 20

// Questions about files that expand without end are answered soon, with an error or with an
// answer that is not much larger than the file.
func TestAttacksAreAnswered(t *testing.T) {
	w := newWorld(t, 1, nil)
	n := 0
	for name, data := range storagetest.Attacks(t) {
		n++
		id := fmt.Sprint("attack-", n)
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(w.dir, id)
			must.Do(t, os.Mkdir(dir, 0o755))
			must.Do(t, os.WriteFile(filepath.Join(dir, "model.pt"), data, 0o644))
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()

			asked := []string{"checkpoint?c=" + id, "names?c=" + id, "compare?a=" + id + "&b=step-1"}
			for _, fqn := range firstNames(ctx, w, id, 2) {
				for _, q := range []string{"item", "heat", "stats"} {
					asked = append(asked, q+"?c="+id+"&name="+url.QueryEscape(fqn))
				}
			}
			for _, text := range asked {
				if kind, _, _ := strings.Cut(text, "?"); questions[kind].answer == nil {
					t.Fatalf("there is no question %s", kind)
				}
				v, err := w.ask(ctx, text)
				if ctx.Err() != nil {
					t.Fatalf("%s: %v", text, err)
				}
				if b, _ := json.Marshal(v); err == nil && len(b) > mostAnswer {
					t.Errorf("%s: an answer of %d bytes; want at most %d", text, len(b), mostAnswer)
				}
			}
		})
	}
}

// firstNames returns some names of the checkpoint of an attack, if it opens.
func firstNames(ctx context.Context, w *world, id string, n int) (out []string) {
	o, err := w.open(ctx, id, false)
	if err != nil {
		return nil
	}
	defer o.Close()
	md, err := o.Metadata(ctx)
	if err != nil {
		md = &meta.Metadata{}
	}
	for i := range md.Entries[:min(n, len(md.Entries))] {
		out = append(out, md.Entries[i].FQN)
	}
	return out
}
