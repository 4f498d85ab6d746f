package memory

import (
	"errors"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
)

// A Run in Go does not save to memory: without the other hosts, there would be no copies.
func TestRunRefusesMemory(t *testing.T) {
	for _, address := range []string{"memory:llama", "memory://llama"} {
		_, err := cairn.NewRun(address, nil)
		if !errors.Is(err, cairn.ErrOptions) || !strings.Contains(err.Error(), "docs/memory.md") {
			t.Errorf("NewRun(%q) = %v; want ErrOptions", address, err)
		}
	}
}
