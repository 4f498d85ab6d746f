package memory

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/tensor"
)

func init() { works = append(works, trainerWork) }

// trainerVariable makes this program a trainer of the soak test.
const trainerVariable = "CAIRN_TEST_MEMORY_TRAINER"

// soakRows is the number of rows of the sharded tensor. Any number of ranks up to this divides them.
const soakRows = 24

// trainerConfig describes a trainer: a rank of a job, with a saver process of its own.
type trainerConfig struct {
	Run        string
	Rank, Size int
	Epoch      int64 // the number of the job
	Columns    int64 // of the sharded tensor
	Replicas   int   // how many tensors all ranks hold
	Log        string
}

// order is what the test wants of a trainer, and outcome what has come of it. A save has two
// outcomes: "saved" and, if it succeeds, "copied".
type (
	order struct {
		ID      int
		Op      string
		Address string      // of rank 0's saver, or of a checkpoint
		Secret  []byte      // of the savers
		Step    int64       // of a save
		Loaded  *run.Loaded // the checkpoint that the job has loaded since its last save
	}
	outcome struct {
		ID      int
		Kind    string `json:",omitempty"`
		Err     string `json:",omitempty"`
		None    bool   `json:",omitempty"` // there is no checkpoint
		Address string `json:",omitempty"`
		Epoch   int64  `json:",omitempty"` // of the state that was loaded
		Step    int64  `json:",omitempty"`
		SaveID  string `json:",omitempty"`
		Host    string `json:",omitempty"`
		Hosts   []struct {
			ID       string
			Partners []string
		} `json:",omitempty"`
	}
)

// trainerWork is the process of a trainer: it does what the test orders until its input ends.
func trainerWork() {
	text := os.Getenv(trainerVariable)
	if text == "" {
		return
	}
	x := &trainer{}
	err := json.Unmarshal([]byte(text), &x.trainerConfig)
	if err == nil {
		err = x.work(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "trainer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// trainer is a trainer in its process.
type trainer struct {
	trainerConfig
	c   *client // of its saver; nil: it has none
	gen uint64

	printing sync.Mutex
	out      *json.Encoder
}

func (x *trainer) work(in io.Reader, out io.Writer) error {
	x.out = json.NewEncoder(out)
	for d := json.NewDecoder(in); ; {
		var o order
		if err := d.Decode(&o); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		x.do(&o)
	}
}

// print sends an outcome to the test.
func (x *trainer) print(o outcome, err error) {
	if err != nil {
		o.Err = err.Error()
	}
	x.printing.Lock()
	defer x.printing.Unlock()
	_ = x.out.Encode(o) // without a test, this process ends soon
}

// do carries out an order. The test gives one after another, and waits for the outcomes.
func (x *trainer) do(o *order) {
	out := outcome{ID: o.ID}
	var err error
	switch o.Op {
	case "start":
		if x.c != nil {
			x.c.close()
		}
		x.c, err = startClient(x.stateBytes(), x.Log)
	case "listen":
		joined := x.c.expect("joined")
		var b struct{ Address string }
		err = x.c.ask("listening", "listen", map[string]any{"address": o.Address, "size": x.Size, "secret": o.Secret, "job": fmt.Sprint("soak ", x.Epoch)}, &b)
		if err == nil {
			x.print(outcome{ID: o.ID, Kind: "listening", Address: b.Address}, nil)
			err = (<-joined).err
		}
	case "join":
		body := map[string]any{"rank": x.Rank, "size": x.Size, "address": o.Address, "secret": o.Secret, "job": fmt.Sprint("soak ", x.Epoch)}
		if x.Size == 1 {
			body["job"] = ""
		}
		err = x.c.ask("joined", "join", body, nil)
	case "memory", "leave", "forget":
		n := x.number()
		var b struct {
			Host  string
			Hosts []struct {
				ID       string
				Partners []string
			}
		}
		err = x.c.ask(fmt.Sprint("load ", n), "memory", map[string]any{"load": n, "run": x.Run, "leave": o.Op == "leave", "forget": o.Op == "forget"}, &b)
		out.Host, out.Hosts = b.Host, b.Hosts
	case "latest":
		var f *cairn.Found
		f, err = cairn.Latest(context.Background(), "memory:"+x.Run, &cairn.LatestOptions{Wait: true})
		if errors.Is(err, cairn.ErrNotFound) {
			out.None, err = true, nil
		} else if err == nil {
			out.Address = f.Path
		}
	case "load":
		err = x.load(o.Address, &out)
	case "save":
		x.save(o)
		return
	default:
		err = fmt.Errorf("order %q", o.Op)
	}
	x.print(out, err)
}

func (x *trainer) number() uint64 {
	x.gen++
	return x.gen
}

// rows returns the first row of this rank, and the number of its rows.
func (x *trainer) rows() (first, n int64) {
	first = int64(x.Rank) * soakRows / int64(x.Size)
	return first, int64(x.Rank+1)*soakRows/int64(x.Size) - first
}

// stateBytes bounds the bytes of the state of a rank, however many ranks there are.
func (x *trainer) stateBytes() int64 {
	return (soakRows*x.Columns+int64(x.Replicas)*replicaElems)*8 + 4096
}

const replicaElems = 1024

// element returns an element of the state of a step of a job: it differs from those of all others.
func element(epoch, step, i int64) int64 { return epoch<<40 | step<<20 | i&(1<<20-1) }

// fill writes the state of a step to memory, and check reads it.
func fill(b []byte, epoch, step, first int64) {
	for i := range int64(len(b) / 8) {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(element(epoch, step, first+i)))
	}
}

func check(name string, b []byte, epoch, step, first int64) error {
	for i := range int64(len(b) / 8) {
		got := int64(binary.LittleEndian.Uint64(b[8*i:]))
		if want := element(epoch, step, first+i); got != want {
			return fmt.Errorf("mixed: element %d of %s is of job %d, step %d, position %d; want job %d, step %d, position %d",
				first+i, name, got>>40, got>>20&(1<<20-1), got&(1<<20-1), epoch, step, (first+i)&(1<<20-1))
		}
	}
	return nil
}

// items describes the tensors of this rank, and returns their places in the arena from at on: its rows of the sharded one, and
// the ones that all ranks hold.
func (x *trainer) items(at int64) (items []map[string]any, places []int64) {
	first, n := x.rows()
	items = []map[string]any{{
		"name": "w", "dtype": tensor.Int64.String(), "shape": []int64{soakRows, x.Columns}, "offsets": []int64{first, 0}, "sizes": []int64{n, x.Columns}, "sharded": true,
	}}
	places = []int64{at}
	at = (at + n*x.Columns*8 + 63) / 64 * 64
	for i := range x.Replicas {
		items = append(items, map[string]any{"name": replicaName(i), "dtype": tensor.Int64.String(), "shape": []int64{replicaElems}})
		places = append(places, at+int64(i)*replicaElems*8)
	}
	return items, places
}

func replicaName(i int) string { return fmt.Sprint("replica", i) }

// save saves the state of a step. The outcomes are sent while the next orders are carried out.
func (x *trainer) save(o *order) {
	g := x.number()
	saved, copied := x.c.expect(fmt.Sprint("saved ", g)), x.c.expect(fmt.Sprint("copied ", g))
	first, n := x.rows()
	at := int64(g%2) * x.stateBytes() / 64 * 64
	mem, w := x.c.mem, at+64
	items, places := x.items(w)
	unit := []int{0}
	for i := range x.Replicas {
		unit = append(unit, i+1)
	}
	binary.LittleEndian.PutUint64(mem[at:], 0)
	fill(mem[w:w+n*x.Columns*8], x.Epoch, o.Step, first*x.Columns)
	for i, at := range places[1:] {
		fill(mem[at:at+replicaElems*8], x.Epoch, o.Step, int64(i))
	}
	binary.LittleEndian.PutUint64(mem[at:], g)
	x.c.send("save", map[string]any{
		"generation": g, "store": "memory://" + x.Run + "/" + run.FolderName(o.Step), "format": "native", "step": o.Step,
		"save_id": fmt.Sprintf("e%d-s%d-%d", x.Epoch, o.Step, o.ID), "time": time.Now().UTC().Format(time.RFC3339Nano), "writer": "soak",
		"run": map[string]any{"keep": "last 1", "loaded": o.Loaded}, "fits": true, "cache": o.ID%2 == 0,
		"items": append(items, map[string]any{"name": "epoch", "codec": "json", "data": []byte(fmt.Sprint(x.Epoch))},
			map[string]any{"name": "step", "codec": "json", "data": []byte(fmt.Sprint(o.Step))}),
	})
	x.c.send("staged", map[string]any{
		"generation": g, "units": []map[string]any{{"stamp": at, "items": unit, "at": places}}, "all": true,
	})
	go func() {
		r := <-saved
		x.print(outcome{ID: o.ID, Kind: "saved"}, r.err)
		if r.err == nil {
			x.print(outcome{ID: o.ID, Kind: "copied"}, (<-copied).err)
		}
	}()
}

// load loads the part of this rank of a checkpoint. All of it has to be of one job and one step.
func (x *trainer) load(address string, out *outcome) error {
	first, n := x.rows()
	at := 2 * x.stateBytes() / 64 * 64
	items, places := x.items(at)
	delete(items[0], "sharded") // only of a save
	for i, at := range places {
		items[i]["at"] = at
	}
	load := x.number()
	var b struct {
		Report struct {
			SaveID string `json:"save_id"`
			Step   *int64
		}
	}
	err := x.c.ask(fmt.Sprint("load ", load), "load", map[string]any{
		"load": load, "store": address, "items": append(items, map[string]any{"name": "epoch"}, map[string]any{"name": "step"}),
	}, &b)
	if err != nil {
		return err
	}
	values := x.c.values(load)
	out.SaveID = b.Report.SaveID
	if err := errors.Join(json.Unmarshal(values[len(places)], &out.Epoch), json.Unmarshal(values[len(places)+1], &out.Step)); err != nil {
		return err
	}
	if b.Report.Step == nil || *b.Report.Step != out.Step {
		return fmt.Errorf("mixed: the record of step %d has the step %v", out.Step, b.Report.Step)
	}
	err = check("w", x.c.mem[at:at+n*x.Columns*8], out.Epoch, out.Step, first*x.Columns)
	for i, at := range places[1:] {
		err = errors.Join(err, check(replicaName(i), x.c.mem[at:at+replicaElems*8], out.Epoch, out.Step, int64(i)))
	}
	return err
}

// client is a client of a saver process, as docs/saver.md describes it.
type client struct {
	conn  net.Conn
	cmd   *exec.Cmd
	arena *stage.Arena
	mem   []byte
	done  chan struct{}

	mu     sync.Mutex
	waits  map[string]chan answered           // by the kind and the number of the answer; guarded by mu
	pieces map[uint64]map[int]json.RawMessage // values of loads, by load and item; guarded by mu
	ended  error                              // guarded by mu
}

// answered is the answer to a message.
type answered struct {
	body json.RawMessage
	err  error
}

// startClient starts a saver process with an arena for three states.
func startClient(stateBytes int64, log string) (*client, error) {
	arena, err := stage.NewShared(3*stateBytes + 1<<20)
	if err != nil {
		return nil, err
	}
	mem, err := stage.MapFile(arena.File())
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer theirs.Close() // again, which does nothing
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, err
	}
	stderr, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, arena: arena, mem: mem, done: make(chan struct{}), waits: map[string]chan answered{}, pieces: map[uint64]map[int]json.RawMessage{}}
	c.cmd = exec.Command(self)
	c.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return len(v) > len(trainerVariable) && v[:len(trainerVariable)] == trainerVariable
	}), "CAIRN_SAVER=1")
	c.cmd.ExtraFiles = []*os.File{theirs, arena.File()}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.cmd.Stderr = stderr
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	theirs.Close() // so that its end is noticed
	go c.receive()
	return c, c.ask("ready", "hello", map[string]any{"version": 1}, nil)
}

// close ends the conversation, and waits until the process has ended or has served for a while.
func (c *client) close() {
	c.conn.Close()
	<-c.done
	go func() { _ = c.cmd.Wait() }() // the process may serve the run for a time
}

// expect returns the channel of an answer.
func (c *client) expect(key string) <-chan answered {
	ch := make(chan answered, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		ch <- answered{err: c.ended}
	} else {
		c.waits[key] = ch
	}
	return ch
}

// deliver delivers an answer, if somebody waits for it.
func (c *client) deliver(key string, a answered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch := c.waits[key]; ch != nil {
		delete(c.waits, key)
		ch <- a
	}
}

// ask sends a message and decodes its answer.
func (c *client) ask(key, kind string, body map[string]any, v any) error {
	ch := c.expect(key)
	c.send(kind, body)
	a := <-ch
	if a.err == nil && v != nil {
		a.err = json.Unmarshal(a.body, v)
	}
	return a.err
}

// send sends a message. If the process has ended, the answers are errors.
func (c *client) send(kind string, body map[string]any) {
	text, err := json.Marshal(map[string]any{"type": kind, "body": body})
	if err != nil {
		panic(err) // the test is wrong
	}
	_, _ = c.conn.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...))
}

// values returns the values of a load.
func (c *client) values(load uint64) map[int]json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.pieces[load]
	delete(c.pieces, load)
	return out
}

// receive handles the messages of the process until it ends.
func (c *client) receive() {
	defer close(c.done)
	err := c.handleAll(bufio.NewReader(c.conn))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = fmt.Errorf("the saver process has ended: %w", err)
	for key, ch := range c.waits {
		delete(c.waits, key)
		ch <- answered{err: c.ended}
	}
}

func (c *client) handleAll(r io.Reader) error {
	for {
		var head [4]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		text := make([]byte, binary.LittleEndian.Uint32(head[:]))
		if _, err := io.ReadFull(r, text); err != nil {
			return err
		}
		var f struct {
			Type string
			Body json.RawMessage
		}
		if err := json.Unmarshal(text, &f); err != nil {
			return err
		}
		if err := c.handle(f.Type, f.Body); err != nil {
			return err
		}
	}
}

// handle handles a message.
func (c *client) handle(kind string, body json.RawMessage) error {
	var b struct {
		Generation, Load uint64
		Item             int
		Data             []byte
		Error            *struct{ Text string }
	}
	if err := json.Unmarshal(body, &b); err != nil {
		return err
	}
	a := answered{body: body}
	if b.Error != nil {
		a.err = errors.New(b.Error.Text)
	}
	switch kind {
	case "ready", "listening", "joined":
		c.deliver(kind, a)
	case "loaded", "hosted":
		c.deliver(fmt.Sprint("load ", b.Load), a)
	case "saved", "copied":
		c.deliver(fmt.Sprint(kind, " ", b.Generation), a)
	case "piece":
		c.mu.Lock()
		if c.pieces[b.Load] == nil {
			c.pieces[b.Load] = map[int]json.RawMessage{}
		}
		c.pieces[b.Load][b.Item] = b.Data
		c.mu.Unlock()
	case "failed":
		switch {
		case b.Generation != 0:
			c.deliver(fmt.Sprint("saved ", b.Generation), a)
		case b.Load != 0:
			c.deliver(fmt.Sprint("load ", b.Load), a)
		default:
			c.deliver("listening", a)
			c.deliver("joined", a)
		}
	case "refused":
		return fmt.Errorf("refused: %w", a.err)
	case "progress", "warning", "released":
	default:
		return fmt.Errorf("an unexpected message %q: %s", kind, body)
	}
	return nil
}
