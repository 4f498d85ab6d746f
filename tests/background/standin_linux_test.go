package background

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/tests/jobtest"
)

// standIns are programs that this program can be instead of a saver: its first argument is
// the name, and its second one the name of a file. A stand-in takes the file's place: the
// next process that is started with the same arguments is a saver.
var standIns = map[string]func(text string, conn net.Conn, arena *os.File){
	"killed":  killedSaver,
	"refuses": refusingSaver,
}

// standInMain is the work of this program if it is a stand-in.
func standInMain() {
	if len(os.Args) < 3 || standIns[os.Args[1]] == nil {
		return
	}
	text, err := os.ReadFile(os.Args[2])
	if err != nil {
		saver.Main()
	}
	_ = os.Remove(os.Args[2])
	conn, err := net.FileConn(os.NewFile(3, "socket"))
	if err != nil {
		panic(err)
	}
	standIns[os.Args[1]](string(text), conn, os.NewFile(4, "arena"))
	os.Exit(0)
}

// standIn returns a command that starts a stand-in once, and savers after that.
func standIn(t *testing.T, name, text string) []string {
	t.Helper()
	self := must.Get(os.Executable())(t)
	path := filepath.Join(t.TempDir(), "stand-in")
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	return []string{self, name, path}
}

// killedSaver is a saver that kills itself at the n-th call of Read or Write: before it,
// in the middle of it, or after it.
func killedSaver(text string, conn net.Conn, arena *os.File) {
	n, _ := strconv.ParseInt(text, 10, 64)
	_ = saver.Serve(context.Background(), &fragile{Conn: conn, left: n, note: os.Args[2] + ".killed"}, arena, nil)
}

type fragile struct {
	net.Conn
	left  int64
	note  string // a file to create before it dies
	calls atomic.Int64
}

// die reports whether this is the call at which the process is killed.
func (c *fragile) die() bool { return c.calls.Add(1) == c.left }

func (c *fragile) kill() {
	_ = os.WriteFile(c.note, nil, 0o600)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (c *fragile) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.die() {
		c.kill()
	}
	return n, err
}

func (c *fragile) Write(p []byte) (int, error) {
	if c.die() {
		_, _ = c.Conn.Write(p[:len(p)*int(c.left%3)/2]) // none, a half, or all
		c.kill()
	}
	return c.Conn.Write(p)
}

// refusingSaver answers as a saver does until the first save begins. It fails that save
// before it has read the message, and ends without reading more.
func refusingSaver(_ string, conn net.Conn, _ *os.File) {
	send := func(text string) {
		_, _ = conn.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...))
	}
	for {
		var head [4]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		n := int64(binary.LittleEndian.Uint32(head[:]))
		if n > 100<<10 {
			send(`{"type":"failed","body":{"id":1,"error":{"text":"refused"}}}`)
			time.Sleep(100 * time.Millisecond)
			return
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(conn, text); err != nil {
			return
		}
		switch {
		case strings.Contains(string(text), `"hello"`):
			send(`{"type":"ready","body":{"version":1,"pid":1}}`)
		case strings.Contains(string(text), `"join"`):
			send(`{"type":"joined","body":{}}`)
		}
	}
}

// TestSaverFailsAndEndsWhileSaveIsSent lets a saver fail a save and end before it has read
// the description of the state: SaveAsync and Wait return, and the next save has a new
// saver.
func TestSaverFailsAndEndsWhileSaveIsSent(t *testing.T) {
	store := jobtest.TempStore(t)
	s := jobtest.Stager(t, &cairn.StagerOptions{Ceiling: 1 << 20, Process: &saver.Options{Command: standIn(t, "refuses", "")}})
	state := cairn.State{"value": strings.Repeat("x", 512<<10)}
	p, err := cairn.SaveAsync(t.Context(), store, state, &cairn.AsyncOptions{Stager: s})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "refused") && !errors.Is(err, saver.ErrSaver) {
		t.Errorf("Wait = %v; want what the saver has answered", err)
	}
	for again := true; again; { // perhaps the first saver is still there
		if p, err = cairn.SaveAsync(t.Context(), store, state, &cairn.AsyncOptions{Stager: s}); err != nil {
			t.Fatal(err)
		}
		_, err = p.Wait(t.Context())
		again = errors.Is(err, saver.ErrSaver)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestSaverKilledAtEveryMessage kills the saver of one of two ranks at each of its reads
// and writes in turn. The save fails, or the new checkpoint is there. A save that begins
// after that succeeds.
func TestSaverKilledAtEveryMessage(t *testing.T) {
	for _, c := range []struct {
		name    string
		rank    int
		ceiling int64
	}{
		{"rank 0, which has little memory", 0, 32 << 10},
		{"rank 1", 1, 1 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			late := 0 // how often a save began when the saver was dead, and the trainer had not noticed yet
			for n := range deep.Steps[int]() {
				command := standIn(t, "killed", strconv.Itoa(n))
				k := &killTest{store: jobtest.TempStore(t), ceiling: c.ceiling, note: command[2] + ".killed"}
				jobtest.EachRank(t, 2, func(ctx context.Context, g group.Group) error {
					if g.Rank() == c.rank {
						return k.run(ctx, g, command)
					}
					return k.run(ctx, g, nil)
				})
				if t.Failed() {
					t.Fatalf("when the saver of rank %d was killed at call %d", c.rank, n)
				}
				if k.late.Load() {
					late++
				}
				if !k.early.Load() {
					if n < 8 || late > n/2 {
						t.Fatalf("%d calls; %d times the save after the kill has failed", n, late)
					}
					return
				}
			}
		})
	}
}

type killTest struct {
	store   *file.Store
	ceiling int64
	note    string      // the file that shows that the saver was killed
	early   atomic.Bool // it was killed before the third save
	late    atomic.Bool // it was killed before the third save, which failed all the same
	failed  atomic.Bool // the third save has failed on a rank
}

func (k *killTest) killed() bool {
	_, err := os.Stat(k.note)
	return err == nil
}

// run saves three times: without a saver process, with one that is killed, if not later,
// and with another one. If the third save began before the end of the saver was noticed,
// it may fail, and a fourth must not.
func (k *killTest) run(ctx context.Context, g group.Group, command []string) error {
	w, err := shard.Zeros[int64](shard.Rows(2), []int64{2, 4 << 10}, g.Rank())
	if err != nil {
		return err
	}
	mem, err := tensor.Values[int64](w.Local())
	if err != nil {
		return err
	}
	fill := func(v int64) {
		for i := range mem {
			mem[i] = v
		}
	}
	fill(1)
	if _, err := cairn.Save(ctx, k.store, cairn.State{"w": w}, &cairn.SaveOptions{Group: g}); err != nil {
		return err
	}
	s, err := cairn.NewStager(&cairn.StagerOptions{Ceiling: k.ceiling, Process: &saver.Options{Command: command}})
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	for step := int64(2); step <= 3 || step == 4 && k.failed.Load(); step++ {
		before := k.killed()
		if step <= 3 {
			k.early.Store(before)
		}
		fill(step)
		p, err := cairn.SaveAsync(ctx, k.store, cairn.State{"w": w}, &cairn.AsyncOptions{Stager: s, SaveOptions: cairn.SaveOptions{Group: g}})
		fill(-1)
		if err == nil {
			_, err = p.Wait(ctx)
		}
		if err != nil && (step > 3 || !errors.Is(err, saver.ErrSaver) || errors.Is(err, group.ErrGone)) {
			return fmt.Errorf("save %d; the saver was killed before: %v: %w", step, before, err)
		}
		if err != nil && step == 3 {
			k.failed.Store(true)
			if before {
				k.late.Store(true)
			}
		}
		if e := g.Barrier(ctx); e != nil {
			return e
		}
		if got, e := k.saved(ctx); e != nil || got > step || err == nil && got != step {
			return fmt.Errorf("save %d returned %v; the checkpoint is of %d, %v", step, err, got, e)
		}
		if e := g.Barrier(ctx); e != nil {
			return e
		}
	}
	return nil
}

// saved returns which state the checkpoint holds.
func (k *killTest) saved(ctx context.Context) (int64, error) {
	c, err := cairn.Open(ctx, k.store)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	x, err := c.ReadTensor(ctx, "w")
	if err != nil {
		return 0, err
	}
	all, err := tensor.Values[int64](x)
	if err != nil {
		return 0, err
	}
	for _, v := range all {
		if v != all[0] {
			return 0, fmt.Errorf("the checkpoint mixes %d and %d", all[0], v)
		}
	}
	return all[0], nil
}
