package commit

import (
	"testing"

	"github.com/cairn-ckpt/cairn/storage"
)

// The coordinator looks for the files of the ranks that write to its store, and for no
// others if ranks have stores of their own.
func TestSeenOf(t *testing.T) {
	rank := func(names ...string) *storage.WriteResults {
		r := new(storage.WriteResults)
		for _, name := range names {
			r.Files = append(r.Files, storage.File{Name: name, Size: 3})
		}
		return r
	}
	have := map[string]int64{"a": 3, "b": 3, "c": 3}
	for name, c := range map[string]struct {
		results []*storage.WriteResults
		ok      bool
	}{
		"all are here":             {[]*storage.WriteResults{rank("a"), rank("b", "c")}, true},
		"one rank is elsewhere":    {[]*storage.WriteResults{rank("a"), rank("x", "y")}, true},
		"a rank without files":     {[]*storage.WriteResults{rank("a"), rank()}, true},
		"a file of a rank is lost": {[]*storage.WriteResults{rank("a"), rank("b", "x")}, false},
	} {
		if err := CheckFiles(have, seenOf(have, c.results)); (err == nil) != c.ok {
			t.Errorf("%s: CheckFiles = %v", name, err)
		}
	}
}
