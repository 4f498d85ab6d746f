package saver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// patience bounds every wait of these tests.
const patience = 2 * time.Minute

// trainer is the other side of a Serve that runs in a goroutine.
type trainer struct {
	*testing.T
	conn net.Conn
	r    *bufio.Reader
	mem  []byte // the arena
	done chan error
	over bool
}

const (
	arenaSize = 1 << 20
	content   = "what the trainer had in its memory when it was staged"
)

// newTrainer starts a saver.
func newTrainer(t *testing.T) *trainer {
	t.Helper()
	t.TempDir() // so that folders of the test are removed after the server has ended
	a := must.Get(stage.NewShared(arenaSize))(t)
	t.Cleanup(func() { a.Close() })
	mem := must.Get(stage.MapFile(a.File()))(t)
	t.Cleanup(func() { stage.Unmap(mem) })
	c := &trainer{T: t, mem: mem}
	c.serve(t.Context(), a.File())
	return c
}

// serve runs Serve with an arena.
func (c *trainer) serve(ctx context.Context, arena *os.File) {
	c.Helper()
	ours, theirs, err := socketPair()
	if err != nil {
		c.Fatal(err)
	}
	conn, err := net.FileConn(theirs)
	theirs.Close()
	if err != nil {
		c.Fatal(err)
	}
	c.conn, c.r, c.done = ours, bufio.NewReader(ours), make(chan error, 1)
	ours.SetDeadline(time.Now().Add(patience))
	go func() {
		defer conn.Close()
		c.done <- Serve(ctx, conn, arena, nil)
	}()
	c.Cleanup(func() {
		ours.Close()
		if !c.over {
			c.wait()
		}
	})
}

// send sends a message.
func (c *trainer) send(kind string, body any) {
	c.Helper()
	b := must.Get(appendFrame(nil, kind, body))(c)
	c.write(b)
}

func (c *trainer) write(b []byte) {
	c.Helper()
	must.Get(c.conn.Write(b))(c)
}

// expect returns the next message of a type. Progress is left out, and a fetch of the
// content is answered: the saver may begin before it receives where the content is.
func (c *trainer) expect(kind string) *frame {
	c.Helper()
	for {
		f, err := readFrame(c.r)
		if err != nil {
			c.Fatalf("%v instead of %q", err, kind)
		}
		switch f.Type {
		case kind:
			return f
		case typeProgress, typeReleased:
		case typeFetch:
			b, err := decode[fetchBody](f, true)
			if err != nil || b.Item != 0 {
				c.Fatalf("fetch %s: %v", f.Body, err)
			}
			c.fetched(b)
		default:
			c.Fatalf("%s %s instead of %q", f.Type, f.Body, kind)
		}
	}
}

// next returns the next message.
func (c *trainer) next() *frame {
	c.Helper()
	return must.Get(readFrame(c.r))(c)
}

// fetched answers a fetch of the content.
func (c *trainer) fetched(b *fetchBody) {
	c.Helper()
	copy(c.mem[b.At:b.At+b.Length], content[b.Offset:])
	c.send(typeFetched, fetchedBody{Fetch: b.Fetch})
}

// fetchOf waits until an item is fetched.
func (c *trainer) fetchOf(item int) *fetchBody {
	c.Helper()
	for {
		b := received[fetchBody](c, typeFetch)
		if b.Item == item {
			return b
		}
		c.fetched(b)
	}
}

// hold begins a save that does not end before the trainer answers its fetch.
func (c *trainer) hold(generation uint64, folder string) *fetchBody {
	c.Helper()
	b := newSave(generation, folder)
	b.Items = append(b.Items, itemBody{Name: "more", DType: "uint8", Shape: []int64{8}})
	c.send(typeSave, b)
	c.send(typeStaged, stagedBody{Generation: generation, Units: []unitBody{c.stage(generation, 4096)}})
	return c.fetchOf(2)
}

// received returns the body of the next message of a type.
func received[T any](c *trainer, kind string) *T {
	c.Helper()
	b := must.Get(decode[T](c.expect(kind), true))(c)
	return b
}

// wait returns the error of Serve.
func (c *trainer) wait() error {
	c.Helper()
	select {
	case err := <-c.done:
		c.over = true
		return err
	case <-time.After(patience):
		c.Fatal("Serve does not return")
		return nil
	}
}

// join begins the conversation of a job of one rank.
func (c *trainer) join() {
	c.Helper()
	c.send(typeHello, helloBody{messageVersion})
	c.expect(typeReady)
	c.send(typeJoin, joinBody{Size: 1})
	c.expect(typeJoined)
}

// newSave describes a state with a tensor of the content, and a value.
func newSave(generation uint64, store string) *saveBody {
	return &saveBody{
		Generation: generation, SaveRequest: SaveRequest{Store: store, Format: formats.Native, SaveID: fmt.Sprint("s", generation), Time: "2026-01-02T03:04:05Z"},
		Items: []itemBody{
			{Name: "w", DType: "uint8", Shape: []int64{int64(len(content))}},
			{Name: "step", Codec: "json", Data: []byte("7")},
		},
	}
}

// stage puts the content of newSave into the arena.
func (c *trainer) stage(generation uint64, at int64) unitBody {
	binary.LittleEndian.PutUint64(c.mem[at:], generation)
	copy(c.mem[at+64:], content)
	return unitBody{Stamp: at, Items: []int{0}, At: []int64{at + 64}}
}

// published returns the tensor of a checkpoint, or "" if there is no checkpoint.
func published(t *testing.T, folder string) string {
	t.Helper()
	store := must.Get(file.Open(folder, nil))(t)
	c, err := formats.Open(t.Context(), store, nil)
	if errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrIncomplete) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	md := must.Get(c.Metadata(t.Context()))(t)
	e, ok := md.Find("w")
	if !ok {
		t.Fatal("the checkpoint has no tensor w")
	}
	return chunkOf(t, folder, &e.Tensor.Locs[0])
}

// chunkOf returns the bytes at a location.
func chunkOf(t *testing.T, folder string, loc *meta.Location) string {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join(folder, loc.File)))(t)
	return string(b[loc.Offset : loc.Offset+loc.Length])
}

func TestServeSaves(t *testing.T) {
	c := newTrainer(t)
	c.join()
	folder := t.TempDir()
	for g := uint64(1); g < 4; g++ {
		c.send(typeSave, newSave(g, folder))
		c.send(typeStaged, stagedBody{Generation: g, Units: []unitBody{c.stage(g, int64(g)*4096)}, All: true})
		if b := received[savedBody](c, typeSaved); b.Generation != g || b.Report.SaveID != fmt.Sprint("s", g) {
			t.Errorf("saved %+v", b)
		}
		if got := published(t, folder); got != content {
			t.Errorf("the checkpoint has %q", got)
		}
	}
	c.conn.Close()
	if err := c.wait(); err != nil {
		t.Errorf("Serve = %v", err)
	}
}

// A save to memory needs the message memory before it. It ends in a folder of this host, and with
// one host there are no copies.
func TestServeSavesToMemory(t *testing.T) {
	t.Setenv(ram.Variable, filepath.Join(t.TempDir(), "memory"))
	c := newTrainer(t)
	c.join()
	save := func(g uint64) {
		b := newSave(g, "memory:llama/"+run.FolderName(int64(g)))
		b.Run = &InRun{Keep: "last 1"}
		c.send(typeSave, b)
		c.send(typeStaged, stagedBody{Generation: g, Units: []unitBody{c.stage(g, int64(g)*4096)}, All: true})
	}
	save(1)
	if b := received[failedBody](c, typeFailed); !strings.Contains(b.Error.Text, "the message memory") {
		t.Errorf("a save without the message memory: %+v", b)
	}

	c.send(typeMemory, memoryBody{Load: 1, Run: "llama"})
	h := received[hostedBody](c, typeHosted)
	if len(h.Hosts) != 1 || h.Hosts[0].ID != h.Host || !slices.Equal(h.Hosts[0].Ranks, []int{0}) || len(h.Hosts[0].Partners) != 0 {
		t.Errorf("hosted %+v", h)
	}
	for g := uint64(2); g < 5; g++ {
		save(g)
		if b := received[savedBody](c, typeSaved); b.Generation != g {
			t.Errorf("saved %+v", b)
		}
		if b := received[copiedBody](c, typeCopied); b.Generation != g || b.Error != nil || !b.Report.Alone {
			t.Errorf("copied %+v", b)
		}
	}
	folder := must.Get(must.Get(ram.Here())(t).Folder("llama"))(t)
	if got := published(t, filepath.Join(folder, run.FolderName(4))); got != content {
		t.Errorf("the checkpoint has %q", got)
	}
	c.send(typeMemory, memoryBody{Load: 2, Run: "llama", Leave: true})
	c.expect(typeHosted)
	c.conn.Close()
	if err := c.wait(); err != nil {
		t.Errorf("Serve = %v", err)
	}
	if _, err := os.Stat(filepath.Join(folder, run.FolderName(2))); err == nil {
		t.Error("the oldest checkpoint stays")
	}
}

// A save to memory that goes on from an older checkpoint does not replace the newer one of its step. The copies
// are of the folder that it went to.
func TestServeMovesASaveToMemory(t *testing.T) {
	t.Setenv(ram.Variable, filepath.Join(t.TempDir(), "memory"))
	c := newTrainer(t)
	c.join()
	c.send(typeMemory, memoryBody{Load: 1, Run: "llama"})
	c.expect(typeHosted)
	for g, step := range []int64{1, 2, 2} {
		b := newSave(uint64(g+1), "memory:llama/"+run.FolderName(step))
		b.Step, b.Run = &step, &InRun{Keep: "last 3"}
		want := run.FolderName(step)
		if g == 2 {
			b.Run.Loaded = &run.Loaded{Folder: run.FolderName(1), SaveID: "s1"}
			want += "~2"
		}
		c.send(typeSave, b)
		c.send(typeStaged, stagedBody{Generation: b.Generation, Units: []unitBody{c.stage(b.Generation, int64(g+1)*4096)}, All: true})
		var warned bool
		for f := c.next(); f.Type != typeSaved; f = c.next() {
			warned = warned || f.Type == typeWarning
			switch f.Type {
			case typeFetch:
				c.fetched(must.Get(decode[fetchBody](f, true))(t))
			case typeFailed:
				c.Errorf("save %d: %s", g, f.Body)
				return
			}
		}
		if warned != (g == 2) {
			t.Errorf("save %d: warned: %v", g, warned)
		}
		if b := received[copiedBody](c, typeCopied); b.Error != nil {
			t.Errorf("save %d: %+v", g, b.Error)
		}
		if got := published(t, filepath.Join(string(must.Get(ram.Here())(t)), "llama", want)); got != content {
			t.Errorf("%s has %q", want, got)
		}
	}
	c.send(typeMemory, memoryBody{Load: 2, Run: "llama", Forget: true})
	c.expect(typeHosted)
}

// A saver serves its run after its trainer was killed, until another saver of the host does. If that one
// forgets the run, the memory is empty.
func TestServeLingersForOtherHosts(t *testing.T) {
	t.Setenv(ram.Variable, filepath.Join(t.TempDir(), "memory"))
	killed := newTrainer(t)
	killed.join()
	killed.send(typeMemory, memoryBody{Load: 1, Run: "llama"})
	address := received[hostedBody](killed, typeHosted).Hosts[0].Address
	killed.conn.Close()
	must.Do(t, must.Get(net.Dial("tcp", address))(t).Close())

	again := newTrainer(t)
	again.join()
	again.send(typeMemory, memoryBody{Load: 1, Run: "llama"})
	if h := received[hostedBody](again, typeHosted); h.Hosts[0].Address == address {
		t.Errorf("both savers serve at %s", address)
	}
	if err := killed.wait(); err != nil {
		t.Errorf("Serve of the killed trainer = %v", err)
	}
	again.send(typeMemory, memoryBody{Load: 2, Run: "llama", Forget: true})
	again.expect(typeHosted)
	root := must.Get(ram.Here())(t)
	if left := must.Get(os.ReadDir(string(root)))(t); len(left) != 1 || left[0].Name() != "host" {
		t.Errorf("the memory has %v", left)
	}
}

// A saver whose trainer was killed serves its run, and takes part in no save any more: the saves of the other
// ranks fail, and do not wait for it.
func TestServeLeavesTheOtherSavers(t *testing.T) {
	t.Setenv(ram.Variable, filepath.Join(t.TempDir(), "memory"))
	const ranks = 2
	job := newTrainers(t, ranks)
	for _, c := range job {
		c.send(typeMemory, memoryBody{Load: 1, Run: "llama"})
	}
	for _, c := range job {
		c.expect(typeHosted)
	}
	job[0].conn.Close()
	job[1].save(shardOf(1, "memory:llama/"+run.FolderName(1), 1, ranks), true)
	if b := received[failedBody](job[1], typeFailed); !strings.Contains(b.Error.Text, "rank 0") {
		t.Errorf("a save without rank 0: %+v; want an error that names it", b.Error)
	}
	job[1].send(typeMemory, memoryBody{Load: 2, Run: "llama", Forget: true})
	job[1].expect(typeHosted)
}

// waiting is the place of a unit of a save that has not begun.
const waiting = 16384

// badMessages are messages that a saver refuses after hello, join and two saves.
var badMessages = map[string]func(c *trainer){
	"garbage":                       func(c *trainer) { c.write([]byte("GET / HTTP/1.1\r\n\r\n")) },
	"a frame longer than the limit": func(c *trainer) { c.write([]byte{1, 0, 0, 0x40}) },
	"the longest length":            func(c *trainer) { c.write([]byte{255, 255, 255, 255}) },
	"an empty frame":                func(c *trainer) { c.write([]byte{0, 0, 0, 0}) },
	"a frame that is not JSON":      func(c *trainer) { c.write([]byte{2, 0, 0, 0, '{', '{'}) },
	"a frame that is not an object": func(c *trainer) { c.text(`[]`) },
	"a frame without a type":        func(c *trainer) { c.text(`{"body":{}}`) },
	"a type that is not a string":   func(c *trainer) { c.text(`{"type":7,"body":{}}`) },
	"an unknown type":               func(c *trainer) { c.send("dance", struct{}{}) },
	"a type of the saver":           func(c *trainer) { c.send(typeSaved, savedBody{Generation: 1}) },
	"no body":                       func(c *trainer) { c.text(`{"type":"drop"}`) },
	"a body that is null":           func(c *trainer) { c.text(`{"type":"drop","body":null}`) },
	"a body that is a list":         func(c *trainer) { c.text(`{"type":"drop","body":[1]}`) },
	"an unknown field":              func(c *trainer) { c.text(`{"type":"drop","body":{"generation":1,"reason":"x"}}`) },
	"a negative generation":         func(c *trainer) { c.text(`{"type":"drop","body":{"generation":-1}}`) },
	"a fraction":                    func(c *trainer) { c.text(`{"type":"cancel","body":{"load":1.5}}`) },
	"a number that is too large":    func(c *trainer) { c.text(`{"type":"cancel","body":{"load":18446744073709551616}}`) },
	"deep nesting":                  func(c *trainer) { c.text(`{"type":"save","body":` + strings.Repeat(`{"items":[`, 20000)) },
	"hello again":                   func(c *trainer) { c.send(typeHello, helloBody{messageVersion}) },
	"join again":                    func(c *trainer) { c.send(typeJoin, joinBody{Size: 1}) },
	"listen after join":             func(c *trainer) { c.send(typeListen, listenBody{Size: 2, Secret: []byte("x")}) },
	"join of a rank beyond the size": func(c *trainer) {
		c.send(typeJoin, joinBody{Rank: 2, Size: 2, Address: "127.0.0.1:1", Secret: []byte("x")})
	},
	"an answer to no fetch":          func(c *trainer) { c.send(typeFetched, fetchedBody{Fetch: 99}) },
	"a generation that is under way": func(c *trainer) { c.send(typeSave, newSave(1, c.TempDir())) },
	"generation 0":                   func(c *trainer) { c.send(typeSave, newSave(0, c.TempDir())) },

	"an item without a name":      item(func(m *itemBody) { m.Name = "" }),
	"an item without a type":      item(func(m *itemBody) { m.DType = "" }),
	"an item of an unknown type":  item(func(m *itemBody) { m.DType = "float12" }),
	"a negative shape":            item(func(m *itemBody) { m.Shape = []int64{-4} }),
	"a shape that overflows":      item(func(m *itemBody) { m.Shape = []int64{math.MaxInt64, math.MaxInt64} }),
	"bytes that overflow":         item(func(m *itemBody) { m.DType, m.Shape = "float64", []int64{math.MaxInt64 / 2} }),
	"a box outside of its tensor": item(func(m *itemBody) { m.Sharded, m.Offsets, m.Sizes = true, []int64{50}, []int64{50} }),
	"a box that overflows":        item(func(m *itemBody) { m.Sharded, m.Offsets, m.Sizes = true, []int64{math.MaxInt64}, []int64{2} }),
	"a negative box":              item(func(m *itemBody) { m.Sharded, m.Offsets, m.Sizes = true, []int64{-1}, []int64{2} }),
	"a box of other dimensions":   item(func(m *itemBody) { m.Sharded, m.Offsets, m.Sizes = true, []int64{0, 0}, []int64{1, 1} }),
	"a box of a plain tensor":     item(func(m *itemBody) { m.Offsets, m.Sizes = []int64{0}, []int64{2} }),
	"strides of other dimensions": item(func(m *itemBody) { m.Strides = []int64{1, 1} }),
	"a negative stride":           item(func(m *itemBody) { m.Strides = []int64{-1} }),
	"a stride that overflows":     item(func(m *itemBody) { m.Strides = []int64{math.MaxInt64} }),
	"a tensor with data":          item(func(m *itemBody) { m.Data = []byte("x") }),
	"a value with a shape":        item(func(m *itemBody) { m.DType, m.Codec = "", "raw" }),
	"an unknown codec":            item(func(m *itemBody) { m.DType, m.Shape, m.Codec = "", nil, "pickle" }),
	"a value that is not JSON":    item(func(m *itemBody) { m.DType, m.Shape, m.Codec, m.Data = "", nil, "json", []byte("{") }),
	"an unknown step of a path": func(c *trainer) {
		c.text(`{"type":"save","body":{"generation":2,"items":[{"name":"w","path":[null]}]}}`)
	},
	"an unknown owner rule":        func(c *trainer) { c.text(`{"type":"save","body":{"generation":2,"owner":"me","items":[]}}`) },
	"an absent name that is empty": func(c *trainer) { b := newSave(2, c.TempDir()); b.Absent = []string{""}; c.send(typeSave, b) },

	"a stamp outside of the arena": unit(func(u *unitBody) { u.Stamp = arenaSize }),
	"a negative stamp":             unit(func(u *unitBody) { u.Stamp = -8 }),
	"the largest stamp":            unit(func(u *unitBody) { u.Stamp = math.MaxInt64 - 7 }),
	"a stamp that is not aligned":  unit(func(u *unitBody) { u.Stamp++ }),
	"a stamp in the window":        unit(func(u *unitBody) { u.Stamp, _ = stage.Window(arenaSize) }),
	"an item outside of the arena": unit(func(u *unitBody) { u.At[0] = arenaSize }),
	"a negative place":             unit(func(u *unitBody) { u.At[0] = -1 }),
	"the largest place":            unit(func(u *unitBody) { u.At[0] = math.MaxInt64 }),
	"an item that reaches into the window": unit(func(u *unitBody) {
		u.At[0], _ = stage.Window(arenaSize)
		u.At[0]--
	}),
	"an item over its stamp":         unit(func(u *unitBody) { u.At[0] = u.Stamp - 5 }),
	"an item that does not exist":    unit(func(u *unitBody) { u.Items[0] = 2 }),
	"a negative item":                unit(func(u *unitBody) { u.Items[0] = -1 }),
	"a value that is staged":         unit(func(u *unitBody) { u.Items[0] = 1 }),
	"an item twice":                  unit(func(u *unitBody) { u.Items, u.At = []int{0, 0}, []int64{u.At[0], u.At[0]} }),
	"more items than places":         unit(func(u *unitBody) { u.Items = []int{0, 0} }),
	"more places than items":         unit(func(u *unitBody) { u.Items = nil }),
	"all with an item missing":       func(c *trainer) { c.send(typeStaged, stagedBody{Generation: 1, All: true}) },
	"the unit of another generation": func(c *trainer) { c.overlap(waiting - 64) },
	"a unit around another one":      func(c *trainer) { c.overlap(waiting + 32) },

	"load 0":                       load(func(b *loadBody) { b.Load = 0 }),
	"a load without a name":        load(func(b *loadBody) { b.Items[0].Name = "" }),
	"a load of an unknown type":    load(func(b *loadBody) { b.Items[0].DType = "float12" }),
	"a load outside of the arena":  load(func(b *loadBody) { b.Items[0].At = arenaSize }),
	"a load to a negative place":   load(func(b *loadBody) { b.Items[0].At = -1 }),
	"a load to the largest place":  load(func(b *loadBody) { b.Items[0].At = math.MaxInt64 }),
	"a load into the window":       load(func(b *loadBody) { b.Items[0].At, _ = stage.Window(arenaSize) }),
	"a load of a negative shape":   load(func(b *loadBody) { b.Items[0].Shape = []int64{-1} }),
	"a load larger than the arena": load(func(b *loadBody) { b.Items[0].Shape = []int64{arenaSize} }),
	"a load that overflows":        load(func(b *loadBody) { b.Items[0].Shape = []int64{1 << 40, 1 << 40} }),
	"a load of a box outside":      load(func(b *loadBody) { b.Items[0].Offsets, b.Items[0].Sizes = []int64{9}, []int64{9} }),
	"a load of half a box":         load(func(b *loadBody) { b.Items[0].Offsets = []int64{9} }),
	"a value with a place":         load(func(b *loadBody) { b.Items[0].DType = "" }),
	"a value twice":                load(func(b *loadBody) { b.Items = []wantBody{{Name: "v"}, {Name: "v"}} }),
	"a tensor and a value":         load(func(b *loadBody) { b.Items = append(b.Items, wantBody{Name: "w"}) }),
	"a value and a tensor":         load(func(b *loadBody) { b.Items = []wantBody{{Name: "w"}, b.Items[0]} }),
	"a tensor of two shapes":       load(func(b *loadBody) { b.Items = append(b.Items, wantBody{Name: "w", DType: "uint8", Shape: []int64{3}}) }),
	"destinations that overlap": load(func(b *loadBody) {
		b.Items = append(b.Items, wantBody{Name: "x", DType: "int64", At: b.Items[0].At + 1})
	}),
	"a destination in another one": load(func(b *loadBody) {
		b.Items = append(b.Items, wantBody{Name: "x", DType: "uint8", At: b.Items[0].At + 8})
	}),
	"a destination twice":           load(func(b *loadBody) { b.Items = append(b.Items, b.Items[0]) }),
	"a load over a unit":            load(func(b *loadBody) { b.Items[0].At = waiting + 4 }),
	"a load over a unit's items":    load(func(b *loadBody) { b.Items[0].At = waiting + 64 + 10 }),
	"an unknown field of a load":    func(c *trainer) { c.text(`{"type":"load","body":{"load":1,"items":[{"name":"w","offset":3}]}}`) },
	"an unknown field of an option": func(c *trainer) { c.text(`{"type":"load","body":{"load":1,"options":{},"items":[]}}`) },
}

// text sends a frame with a text.
func (c *trainer) text(s string) {
	c.Helper()
	c.write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(s))), s...))
}

// item sends a save with an item that a lie has changed.
func item(lie func(m *itemBody)) func(c *trainer) {
	return func(c *trainer) {
		b := newSave(2, c.TempDir())
		lie(&b.Items[0])
		c.send(typeSave, b)
	}
}

// unit sends a save, and a unit of it that a lie has changed.
func unit(lie func(u *unitBody)) func(c *trainer) {
	return func(c *trainer) {
		c.send(typeSave, newSave(2, c.TempDir()))
		u := c.stage(2, 64<<10)
		lie(&u)
		c.send(typeStaged, stagedBody{Generation: 2, Units: []unitBody{u}, All: true})
	}
}

// overlap sends a save, and a unit of it with its stamp at an offset.
func (c *trainer) overlap(at int64) {
	c.send(typeSave, newSave(2, c.TempDir()))
	c.send(typeStaged, stagedBody{Generation: 2, Units: []unitBody{c.stage(2, at)}, All: true})
}

// load sends a load that a lie has changed.
func load(lie func(b *loadBody)) func(c *trainer) {
	return func(c *trainer) {
		b := &loadBody{Load: 1, source: source{Store: c.TempDir()}, Items: []wantBody{{Name: "w", DType: "uint8", Shape: []int64{16}, At: 64 << 10}}}
		lie(b)
		c.send(typeLoad, b)
	}
}

// TestServeRefusesBadMessages sends each bad message while a save is staged in part: the
// saver says why it ends, and publishes no checkpoint.
func TestServeRefusesBadMessages(t *testing.T) {
	before := openDescriptors(t)
	for claim, bad := range badMessages {
		t.Run(claim, func(t *testing.T) {
			c := newTrainer(t)
			c.join()
			folder := t.TempDir()
			c.hold(1, folder)
			c.send(typeSave, newSave(3, folder))
			c.send(typeStaged, stagedBody{Generation: 3, Units: []unitBody{c.stage(3, waiting)}})
			bad(c)
			why := c.refused()
			if !errors.Is(why, ErrMessage) {
				t.Errorf("refused: %v; want the code of ErrMessage", why)
			}
			err := c.wait()
			if !errors.Is(err, ErrMessage) {
				t.Errorf("Serve = %v; want ErrMessage", err)
			}
			if got := published(t, folder); got != "" {
				t.Errorf("the save was published, with %q", got)
			}
			if left, _ := filepath.Glob(filepath.Join(folder, "*")); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
		})
	}
	if now := openDescriptors(t); now > before {
		t.Errorf("%d descriptors are open; before there were %d", now, before)
	}
}

// refused returns why the saver ends. Outcomes may come before that.
func (c *trainer) refused() error {
	c.Helper()
	for {
		f, err := readFrame(c.r)
		if err != nil {
			c.Fatalf("%v instead of %q", err, typeRefused)
		}
		if f.Type == typeSaved {
			c.Fatalf("%s", f.Body)
		}
		if f.Type == typeRefused {
			b := must.Get(decode[refusedBody](f, true))(c)
			return b.Error.err()
		}
	}
}

// openDescriptors returns the number of open descriptors.
func openDescriptors(t *testing.T) int {
	t.Helper()
	d := must.Get(os.ReadDir("/proc/self/fd"))(t)
	return len(d)
}

func TestServeRefusesTheFirstMessage(t *testing.T) {
	for claim, bad := range map[string]func(c *trainer){
		"a save before hello":         func(c *trainer) { c.send(typeSave, newSave(1, c.TempDir())) },
		"a load before hello":         func(c *trainer) { c.send(typeLoad, loadBody{Load: 1}) },
		"a join before hello":         func(c *trainer) { c.send(typeJoin, joinBody{Size: 1}) },
		"an unknown type":             func(c *trainer) { c.send("dance", struct{}{}) },
		"an older version":            func(c *trainer) { c.send(typeHello, helloBody{messageVersion - 1}) },
		"a newer version with fields": func(c *trainer) { c.text(`{"type":"hello","body":{"version":2,"compression":"zstd"}}`) },
		"garbage":                     func(c *trainer) { c.write(bytes.Repeat([]byte{0x20}, 16)) },
		"a save before join": func(c *trainer) {
			c.send(typeHello, helloBody{messageVersion})
			c.expect(typeReady)
			c.send(typeSave, newSave(1, c.TempDir()))
		},
		"rank 0 joins without listening": func(c *trainer) {
			c.send(typeHello, helloBody{messageVersion})
			c.expect(typeReady)
			c.send(typeJoin, joinBody{Size: 2, Address: "127.0.0.1:1", Secret: []byte("x")})
		},
		"no secret": func(c *trainer) {
			c.send(typeHello, helloBody{messageVersion})
			c.expect(typeReady)
			c.send(typeListen, listenBody{Size: 2})
		},
		"a group of no ranks": func(c *trainer) {
			c.send(typeHello, helloBody{messageVersion})
			c.expect(typeReady)
			c.send(typeListen, listenBody{Secret: []byte("x")})
		},
	} {
		t.Run(claim, func(t *testing.T) {
			c := newTrainer(t)
			bad(c)
			if err := c.refused(); !errors.Is(err, ErrMessage) {
				t.Errorf("refused: %v; want the code of ErrMessage", err)
			}
			if err := c.wait(); !errors.Is(err, ErrMessage) {
				t.Errorf("Serve = %v; want ErrMessage", err)
			}
		})
	}
}

// A save that only waits for its turn is not published either.
func TestServeRefusalFailsSavesThatAreStaged(t *testing.T) {
	c := newTrainer(t)
	c.join()
	first, second := t.TempDir(), t.TempDir()
	c.hold(1, first)
	c.send(typeSave, newSave(2, second))
	c.send(typeStaged, stagedBody{Generation: 2, Units: []unitBody{c.stage(2, 8192)}, All: true})
	c.send("dance", struct{}{})
	if err := c.wait(); !errors.Is(err, ErrMessage) {
		t.Errorf("Serve = %v; want ErrMessage", err)
	}
	if published(t, first) != "" || published(t, second) != "" {
		t.Error("a save was published")
	}
}

// conversationOf returns the messages of a trainer that saves and loads.
func conversationOf(t *testing.T, u unitBody, folder string) []byte {
	t.Helper()
	var b []byte
	for _, m := range []struct {
		kind string
		body any
	}{
		{typeHello, helloBody{messageVersion}},
		{typeJoin, joinBody{Size: 1}},
		{typeLoad, loadBody{Load: 1, source: source{Store: filepath.Join(folder, "nothing")}, Items: []wantBody{{Name: "w"}}}},
		{typeCancel, cancelBody{1}},
		{typeSave, newSave(1, folder)},
		{typeDrop, dropBody{77}},
		{typeAbandon, abandonBody{Generation: 77}},
		{typeStaged, stagedBody{Generation: 1, Units: []unitBody{u}}},
		{typeStaged, stagedBody{Generation: 1, All: true}},
	} {
		var err error
		if b, err = appendFrame(b, m.kind, m.body); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// TestServeTrainerEndsAfterEveryByte ends the trainer after each byte of a conversation.
// The save is published if and only if the trainer has sent everything.
func TestServeTrainerEndsAfterEveryByte(t *testing.T) {
	root := t.TempDir()
	sample := conversationOf(t, unitBody{4096, []int{0}, []int64{4160}}, filepath.Join(root, "0000"))
	step := 17
	if deep.On() {
		step = 1
	}
	for n := 0; n <= len(sample); n += step {
		folder := filepath.Join(root, fmt.Sprintf("%04d", n))
		c := newTrainer(t)
		all := conversationOf(t, c.stage(1, 4096), folder)
		c.write(all[:n])
		c.conn.Close()
		if err := c.wait(); err != nil {
			t.Fatalf("%d bytes of %d: Serve = %v", n, len(all), err)
		}
		got, want := published(t, folder), ""
		if n == len(all) {
			want = content
		}
		if got != want {
			t.Fatalf("%d bytes of %d: the checkpoint has %q", n, len(all), got)
		}
	}
}

// TestServeReadsLastMessagesOfTrainer ends the trainer before the saver has read anything:
// the first answer cannot be sent, but everything that the trainer sent counts.
func TestServeReadsLastMessagesOfTrainer(t *testing.T) {
	for range 5 {
		a := must.Get(stage.NewShared(arenaSize))(t)
		defer a.Close()
		mem, err := stage.MapFile(a.File())
		if err != nil {
			t.Fatal(err)
		}
		defer stage.Unmap(mem)
		folder := t.TempDir()
		all := conversationOf(t, (&trainer{T: t, mem: mem}).stage(1, 4096), folder)
		hello := binary.LittleEndian.Uint32(all) + 4
		text := all[:hello:hello]
		for range 2000 { // so that the answer fails before the save is read
			if text, err = appendFrame(text, typeDrop, dropBody{77}); err != nil {
				t.Fatal(err)
			}
		}
		text = append(text, all[hello:]...)
		ours, theirs, err := socketPair()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.FileConn(theirs)
		theirs.Close()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		must.Get(ours.Write(text))(t)
		ours.Close()
		must.Do(t, Serve(t.Context(), conn, a.File(), nil))
		if got := published(t, folder); got != content {
			t.Fatalf("the checkpoint has %q; want what was staged", got)
		}
	}
}

// The end of the stream is a quiet end, even if the trainer has not read its messages.
func TestServeTrainerThatDoesNotRead(t *testing.T) {
	c := newTrainer(t)
	c.send(typeHello, helloBody{messageVersion})
	nothing := t.TempDir()
	for i := range uint64(3000) { // the answers do not fit into the buffers of the socket
		c.send(typeLoad, loadBody{Load: i + 1, source: source{Store: nothing}, Items: []wantBody{{Name: "w"}}})
	}
	must.Do(t, c.conn.(*net.UnixConn).CloseWrite())
	if err := c.wait(); err != nil {
		t.Errorf("Serve = %v", err)
	}
}

func TestServeStopsWithItsContext(t *testing.T) {
	c := &trainer{T: t}
	a := must.Get(stage.NewShared(arenaSize))(t)
	t.Cleanup(func() { a.Close() })
	cause := errors.New("the machine goes down")
	ctx, cancel := context.WithCancelCause(t.Context())
	c.serve(ctx, a.File())
	c.join()
	cancel(cause)
	if err := c.wait(); !errors.Is(err, cause) {
		t.Errorf("Serve = %v; want %v", err, cause)
	}
}

// memoryFile returns a memory file.
func memoryFile(t *testing.T, size int64, flags int, seals int) *os.File {
	t.Helper()
	fd := must.Get(unix.MemfdCreate("arena", flags|unix.MFD_CLOEXEC))(t)
	f := os.NewFile(uintptr(fd), "arena")
	t.Cleanup(func() { f.Close() })
	must.Do(t, f.Truncate(size))
	if flags&unix.MFD_ALLOW_SEALING != 0 {
		must.Get(unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals))(t)
	}
	return f
}

func TestServeRefusesAnArena(t *testing.T) {
	const sealed, shrink = unix.MFD_ALLOW_SEALING, unix.F_SEAL_SHRINK
	open := func(t *testing.T, name string) *os.File {
		f := must.Get(os.Open(name))(t)
		t.Cleanup(func() { f.Close() })
		return f
	}
	for claim, arena := range map[string]func(t *testing.T) *os.File{
		"without a seal":       func(t *testing.T) *os.File { return memoryFile(t, arenaSize, 0, 0) },
		"with another seal":    func(t *testing.T) *os.File { return memoryFile(t, arenaSize, sealed, unix.F_SEAL_GROW) },
		"empty":                func(t *testing.T) *os.File { return memoryFile(t, 0, sealed, shrink) },
		"too small":            func(t *testing.T) *os.File { return memoryFile(t, 3*4096, sealed, shrink) },
		"not whole pages":      func(t *testing.T) *os.File { return memoryFile(t, arenaSize+5, sealed, shrink) },
		"larger than memory":   func(t *testing.T) *os.File { return memoryFile(t, math.MaxInt64&^4095, sealed, shrink) },
		"that is read-only":    func(t *testing.T) *os.File { return memoryFile(t, arenaSize, sealed, shrink|unix.F_SEAL_WRITE) },
		"that is a device":     func(t *testing.T) *os.File { return open(t, "/dev/zero") },
		"that is a folder":     func(t *testing.T) *os.File { return open(t, t.TempDir()) },
		"that is this program": func(t *testing.T) *os.File { return open(t, "/proc/self/exe") },
	} {
		t.Run(claim, func(t *testing.T) {
			c := &trainer{T: t}
			c.serve(t.Context(), arena(t))
			if err := c.wait(); !errors.Is(err, stage.ErrArena) {
				t.Errorf("Serve = %v; want ErrArena", err)
			}
		})
	}
}

// An arena of any size has a window with blocks that lie inside of it.
func TestServeFetchesIntoTheWindow(t *testing.T) {
	for _, size := range []int64{4 * 4096, 5 * 4096, 47 * 4096, 64 << 10, 1 << 20, 3<<20 + 4096} {
		a := must.Get(stage.NewShared(size))(t)
		mem := must.Get(stage.MapFile(a.File()))(t)
		c := &trainer{T: t, mem: mem}
		c.serve(t.Context(), a.File())
		c.join()
		folder := t.TempDir()
		c.send(typeSave, newSave(1, folder))
		f := received[fetchBody](c, typeFetch)
		start, block := stage.Window(size)
		if f.At < start || f.At+block > size || f.Length != int64(len(content)) || f.Offset != 0 {
			t.Errorf("arena of %d bytes: %+v is fetched; the window begins at %d and has blocks of %d", size, f, start, block)
		}
		copy(mem[f.At:], content)
		c.send(typeFetched, fetchedBody{Fetch: f.Fetch})
		b := received[releasedBody](c, typeReleased)
		if !slices.Equal(b.Items, []int{0}) {
			t.Errorf("%v are released", b.Items)
		}
		c.send(typeStaged, stagedBody{Generation: 1, All: true})
		c.expect(typeSaved)
		if got := published(t, folder); got != content {
			t.Errorf("the checkpoint has %q", got)
		}
		c.conn.Close()
		if err := c.wait(); err != nil {
			t.Error(err)
		}
		stage.Unmap(mem)
		a.Close()
	}
}

// If a trainer stages an item while the saver asks to fetch it, and then ends, the
// saver reads the staged item.
func TestServeReadsWhatWasStagedDuringAFetch(t *testing.T) {
	c := newTrainer(t)
	c.join()
	folder := t.TempDir()
	c.send(typeSave, newSave(1, folder))
	c.expect(typeFetch)
	c.send(typeStaged, stagedBody{Generation: 1, Units: []unitBody{c.stage(1, 4096)}, All: true})
	c.conn.Close()
	if err := c.wait(); err != nil {
		t.Errorf("Serve = %v", err)
	}
	if got := published(t, folder); got != content {
		t.Errorf("the checkpoint has %q", got)
	}
}

// A state that a trainer cannot stage or fetch fails only its own save.
func TestServeFailedSaveHarmsNothing(t *testing.T) {
	c := newTrainer(t)
	c.join()
	folder := t.TempDir()
	lost := errorBody{Text: "the device is lost", Codes: []string{"syscall.EIO"}}
	generation := uint64(0)
	for claim, want := range map[string]error{"fetched": syscall.EIO, "abandon": syscall.EIO, "generation": stage.ErrGeneration, "drop": ErrReplaced} {
		generation += 2
		held := c.hold(generation, t.TempDir()) // so that the next one does not begin
		c.send(typeSave, newSave(generation+1, folder))
		u := c.stage(generation+1, 8192)
		switch claim {
		case "abandon":
			c.send(typeAbandon, abandonBody{generation + 1, lost})
		case "generation":
			c.stage(99, 8192)
			c.send(typeStaged, stagedBody{Generation: generation + 1, Units: []unitBody{u}, All: true})
		case "drop":
			c.send(typeDrop, dropBody{generation + 1})
		}
		c.send(typeFetched, fetchedBody{Fetch: held.Fetch})
		c.send(typeStaged, stagedBody{Generation: generation, Units: []unitBody{{Stamp: 16384, Items: []int{2}, At: []int64{16448}}}, All: true})
		c.expect(typeSaved)
		if claim == "fetched" {
			c.send(typeFetched, fetchedBody{c.fetchOf(0).Fetch, &lost})
		}
		b := received[failedBody](c, typeFailed)
		if b.Generation != generation+1 || !errors.Is(b.Error.err(), want) {
			t.Errorf("%s: failed %+v; want %v", claim, b, want)
		}
		if published(t, folder) != "" {
			t.Fatalf("%s: the save was published", claim)
		}
	}
	c.send(typeSave, newSave(1, folder))
	c.send(typeStaged, stagedBody{Generation: 1, Units: []unitBody{c.stage(1, 8192)}, All: true})
	c.expect(typeSaved)
	if got := published(t, folder); got != content {
		t.Errorf("the checkpoint has %q", got)
	}
}

// A save that is abandoned does not wait for an answer to its fetch.
func TestServeAbandonDuringAFetch(t *testing.T) {
	c := newTrainer(t)
	c.join()
	held := c.hold(1, t.TempDir())
	c.send(typeAbandon, abandonBody{1, errorBody{Text: "the device is lost", Codes: []string{"syscall.EIO"}}})
	if b := received[failedBody](c, typeFailed); b.Generation != 1 || !errors.Is(b.Error.err(), syscall.EIO) {
		t.Errorf("failed %+v; want the error of the trainer", b)
	}
	c.send(typeFetched, fetchedBody{Fetch: held.Fetch}) // it may come late, but it must come
	folder := t.TempDir()
	c.send(typeSave, newSave(2, folder))
	c.send(typeStaged, stagedBody{Generation: 2, Units: []unitBody{c.stage(2, 4096)}, All: true})
	c.expect(typeSaved)
	if got := published(t, folder); got != content {
		t.Errorf("the checkpoint has %q", got)
	}
}

// A trainer that does not read any more, such as one that is stopped, does not hold up a
// save that is staged.
func TestServeSavesForATrainerThatDoesNotRead(t *testing.T) {
	c := newTrainer(t)
	c.join()
	c.hold(1, t.TempDir())
	nothing := t.TempDir()
	for i := range uint64(3000) { // the answers do not fit into the buffers of the socket
		c.send(typeLoad, loadBody{Load: i + 1, source: source{Store: nothing}, Items: []wantBody{{Name: "w"}}})
	}
	folder := t.TempDir()
	c.send(typeSave, newSave(2, folder))
	c.send(typeStaged, stagedBody{Generation: 2, Units: []unitBody{c.stage(2, 8192)}, All: true})
	c.send(typeAbandon, abandonBody{1, errorBody{Text: "no"}}) // so that the next one begins
	for deadline := time.Now().Add(patience); published(t, folder) == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the save is not published")
		}
	}
}

// A saver describes the contents of a checkpoint, by a number, as in a load.
func TestServeDescribes(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a")
	c := newTrainer(t)
	c.join()
	c.send(typeSave, newSave(1, folder))
	c.send(typeStaged, stagedBody{Generation: 1, Units: []unitBody{c.stage(1, 4096)}, All: true})
	c.expect(typeSaved)
	c.send(typeDescribe, describeBody{Load: 5, source: source{Store: folder}})
	got := received[describedBody](c, typeDescribed)
	if got.Load != 5 || got.SaveID != "s1" || got.WorldSize != 1 || got.Time == nil {
		t.Errorf("the checkpoint is %+v", got)
	}
	want := []entryBody{
		{itemBody: itemBody{Name: "step", Codec: "json", Data: []byte("7")}, Bytes: 1},
		{itemBody: itemBody{Name: "w", DType: "uint8", Shape: []int64{int64(len(content))}}},
	}
	if d := cmp.Diff(want, got.Entries, cmp.AllowUnexported(entryBody{})); d != "" {
		t.Errorf("-want +described\n%s", d)
	}
	c.send(typeDescribe, describeBody{Load: 5, source: source{Store: filepath.Join(folder, "nothing")}})
	if f := received[failedBody](c, typeFailed); f.Load != 5 || !errors.Is(f.Error.err(), storage.ErrNotFound) {
		t.Errorf("of a folder without a checkpoint: %+v", f)
	}
	c.send(typeDescribe, describeBody{source: source{Store: folder}})
	if err := c.refused(); !errors.Is(err, ErrMessage) {
		t.Errorf("without a number: %v", err)
	}
}

// A description can keep a checkpoint open: loads that follow do not read its manifest again.
func TestServeHolds(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a")
	c := newTrainer(t)
	c.join()
	c.send(typeSave, newSave(1, folder))
	c.send(typeStaged, stagedBody{Generation: 1, Units: []unitBody{c.stage(1, 4096)}, All: true})
	c.expect(typeSaved)
	c.send(typeDescribe, describeBody{Load: 5, source: source{Store: folder}, Hold: true})
	received[describedBody](c, typeDescribed)
	manifests, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil || len(manifests) == 0 {
		t.Fatalf("%s has the manifests %v, %v", folder, manifests, err)
	}
	for _, m := range manifests {
		if err := os.Rename(m, m+".away"); err != nil {
			t.Fatal(err)
		}
	}
	load := loadBody{Load: 6, source: source{Store: folder}, Items: []wantBody{{Name: "step"}}}
	c.send(typeLoad, load)
	received[pieceBody](c, typePiece)
	c.expect(typeLoaded)
	c.send(typeCancel, cancelBody{Load: 5})
	load.Load = 7
	c.send(typeLoad, load)
	if f := received[failedBody](c, typeFailed); f.Load != 7 {
		t.Errorf("after the cancel: %+v", f)
	}
	c.send(typeDescribe, describeBody{Load: 8, source: source{Store: folder}, Hold: true})
	c.expect(typeFailed)
}
