package web

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// mostAnswer bounds the JSON of an answer about a file of an attack.
const mostAnswer = 64 << 20

// Questions about files that expand without end are answered soon, with an error or with an
// answer that is not much larger than the file.
//
// SOAK is how long it asks about files at random, such as 5m, and SEED repeats it.
func TestAttacksAreAnswered(t *testing.T) {
	w := newWorld(t, 1, nil)
	n := 0
	for name, data := range storagetest.Attacks(t) {
		n++
		t.Run(name, func(t *testing.T) { askAbout(t, w, fmt.Sprint("attack-", n), data) })
	}
	length := deep.Soak(t, 0, time.Minute)
	seed := deep.Seed(t)
	random, files := rand.New(rand.NewPCG(seed, 0)), 0
	for begun := time.Now(); (files < 4 || time.Since(begun) < length) && !t.Failed(); files++ {
		askAbout(t, w, fmt.Sprint("random-", files), storagetest.Attack(t, random))
	}
	t.Logf("%d files at random", files)
}

// askAbout asks about a checkpoint that is one file.
func askAbout(t *testing.T, w *world, id string, data []byte) {
	dir := filepath.Join(w.dir, id)
	must.Do(t, os.Mkdir(dir, 0o755))
	defer os.RemoveAll(dir)
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
