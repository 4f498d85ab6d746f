package launch_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/launch"
)

func init() {
	// A launcher whose ranks hold its stdout open.
	roles["launcher"] = func(string) {
		os.Setenv(roleVariable, "ready")
		launch.Run(context.Background(), launch.Config{N: 3, Command: os.Args[:1], Stdout: os.Stdout})
	}
}

// Ranks do not outlive a launcher that is killed.
func TestRanksEndWithTheLauncher(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=launcher")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	for range 3 {
		if line, err := in.ReadString('\n'); line != "ready\n" {
			t.Fatalf("read %q, %v; want that a rank is ready", line, err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The pipe ends when the last rank has.
	if rest, err := in.ReadString('\n'); rest != "" || err == nil {
		t.Errorf("read %q, %v; want nothing more", rest, err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Wait = %v; want that it was killed", err)
	}
}
