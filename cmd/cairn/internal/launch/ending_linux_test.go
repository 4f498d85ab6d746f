package launch

import (
	"os/exec"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// A process that is ending stays so, also at the moment in which it is waited for.
func TestIsEndingWhileWaited(t *testing.T) {
	for range 50 {
		cmd := exec.Command("true") // it ends at once, so that nearly all looks are at its end
		must.Do(t, cmd.Start())
		waited := make(chan error)
		go func() { waited <- cmd.Wait() }()
		seen, over := false, false
		for !over {
			select {
			case err := <-waited:
				over = true
				if err != nil {
					t.Fatal(err)
				}
			default:
			}
			is := isEnding(cmd.Process.Pid)
			if (seen || over) && !is {
				t.Fatalf("the process is not ending; it was before (waited for: %v)", over)
			}
			seen = is
		}
	}
}
