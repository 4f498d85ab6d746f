package launch_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
	"github.com/cairn-ckpt/cairn/internal/must"
)

func init() {
	// A launcher with ranks that hold its stdout open.
	roles["launcher"] = func(string) {
		os.Setenv(roleVariable, "ready")
		launch.Run(context.Background(), launch.Config{N: 3, Command: os.Args[:1], Stdout: os.Stdout})
	}
	// Rank 1 is killed once all others are connected to it, which end because of that.
	roles["connected"] = func(rank string) {
		path := os.Getenv(fileVariable)
		if rank == "1" {
			ln, err := net.Listen("unix", path)
			for i := 0; i < connected-1 && err == nil; i++ {
				_, err = ln.Accept()
			}
			if err == nil {
				syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			os.Exit(9)
		}
		for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(time.Millisecond) {
			if c, err := net.Dial("unix", path); err == nil {
				c.Read(make([]byte, 1))
				os.Exit(1)
			}
		}
	}
}

// connected is how many ranks the jobs of the role of that name have.
const connected = 6

// A rank that was killed is named, and not a rank that ended because of it.
func TestKilledRankIsNamed(t *testing.T) {
	for i := range 10 {
		c, _, _ := self(t, connected, "connected")
		c.Env = append(c.Env, fileVariable+"="+filepath.Join(t.TempDir(), "s"))
		c.KeepGoing = i%2 == 0
		rep, err := launch.Run(limited(t), c)
		e, ok := errors.AsType[*launch.ExitError](err)
		if !ok || e.Rank != 1 || e.Signal != "SIGKILL" || e.Stopped || *rep.Failed != 1 {
			t.Fatalf("Run = %+v, %v; want that rank 1 was killed", rep, err)
		}
	}
}

// Ranks do not outlive a launcher that is killed.
func TestRanksDieWithLauncher(t *testing.T) {
	cmd := exec.CommandContext(limited(t), os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=launcher")
	out := must.Get(cmd.StdoutPipe())(t)
	must.Do(t, cmd.Start())
	in := bufio.NewReader(out)
	for range 3 {
		if line, err := in.ReadString('\n'); line != "ready\n" {
			t.Fatalf("read %q, %v; want that a rank is ready", line, err)
		}
	}
	must.Do(t, cmd.Process.Kill())
	// The pipe ends when the last rank has.
	if rest, err := in.ReadString('\n'); rest != "" || err == nil {
		t.Errorf("read %q, %v; want nothing more", rest, err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Wait = %v; want that it was killed", err)
	}
}
