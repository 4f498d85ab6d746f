package native

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
)

// A save is refused if another one was saved while it waited. A clock that was set back, or is
// behind the clock of another host, does not refuse it.
func TestSavesOfOtherClocks(t *testing.T) {
	step := int64(1)
	for name, c := range map[string]struct {
		there, asked time.Duration // times of both saves, relative to now
		changed      bool
	}{
		"the clock was set back":                                 {there: time.Hour, asked: 0},
		"the one there was saved before":                         {there: -time.Hour, asked: 0},
		"the one there was saved meanwhile":                      {there: -time.Minute, asked: -2 * time.Minute, changed: true},
		"the one there was saved meanwhile, with a faster clock": {there: time.Minute, asked: -2 * time.Minute, changed: true},
	} {
		for kind, make := range stores {
			s := make(t)
			save := func(id string, by time.Duration) error {
				md := meta.Storage{SaveID: id, Step: &step, Time: time.Now().Add(by), WorldSize: 1, Writer: "test"}
				return storagetest.Save(context.Background(), at(s, nil, storage.ReadOptions{}), md, plan.State(small(t, 1)))
			}
			if err := save("there", c.there); err != nil {
				t.Fatal(err)
			}
			if err := save("new", c.asked); errors.Is(err, storage.ErrChanged) != c.changed || !c.changed && err != nil {
				t.Errorf("%s, in %s: %v; want ErrChanged: %t", name, kind, err, c.changed)
			}
		}
	}
}
