package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage/native"
)

// VersionsOptions configure the measurement of versions that are published and followed.
type VersionsOptions struct {
	// Dir is an existing directory on the medium to measure.
	Dir   string
	Bytes int64
	// Versions is the number of versions, with the first one, which is full. Zero: 6.
	Versions int
	// Program is the command cairn, for the saver process. Follower is the command with the
	// arguments that call FollowVersions, for the follower.
	Program, Follower []string
	Log               logFunc
}

// VersionsResult has the figures of versions after the first, as medians: a version in sixteen
// is full. A share is of the bytes of the weights.
type VersionsResult struct {
	Bytes    int64 `json:"bytes"`
	Versions int   `json:"versions"`

	WrittenShare float64 `json:"written_share"`
	ReadShare    float64 `json:"read_share"`

	Stall float64 `json:"stall_gbs"`

	// UpdateSeconds is the time from the call that publishes until the follower has applied the
	// version, FullSeconds the same for a full save and a full load.
	UpdateSeconds float64 `json:"update_seconds"`
	FullSeconds   float64 `json:"full_seconds"`
	UpdateRatio   float64 `json:"update_ratio"`
	// PublishSeconds is the part of UpdateSeconds until the version is complete.
	PublishSeconds float64 `json:"publish_seconds"`

	PauseSeconds float64 `json:"pause_seconds"`
}

// versionsWeights is the model of the measurement: bf16 weights.
func versionsWeights(bytes int64) (*rankState, error) {
	return newState(weightsOf(bytes), shard.Rows(1), 0, false)
}

// stepOne changes one element in a hundred, at random places, by the smallest step.
func stepOne(mem []byte, r *rand.Rand) {
	n := len(mem) / 2
	for range n / 100 {
		p := mem[2*r.IntN(n):]
		binary.LittleEndian.PutUint16(p, binary.LittleEndian.Uint16(p)+uint16(r.IntN(2)*2)-1)
	}
}

// inParallel calls fn with parts of mem, in one goroutine for each processor.
func inParallel(mem []byte, fn func(part []byte, r *rand.Rand)) {
	var wg sync.WaitGroup
	n := (len(mem)/runtime.GOMAXPROCS(0) + 8) &^ 7
	for part := range slices.Chunk(mem, n) {
		r := rand.New(rand.NewPCG(rand.Uint64(), 1))
		wg.Go(func() { fn(part, r) })
	}
	wg.Wait()
}

// Versions measures weights of which 1 % of the elements change from version to version. A
// saver process publishes them, and a follower in another process applies each.
func Versions(ctx context.Context, o VersionsOptions) (*VersionsResult, error) {
	o.Versions = positive(o.Versions, 6)
	if o.Bytes < 1<<20 || o.Versions < 2 {
		return nil, fmt.Errorf("%d bytes, %d versions: want at least 1 MiB and two versions", o.Bytes, o.Versions)
	}
	dir, err := os.MkdirTemp(o.Dir, "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	o.Log.printf("making weights of %d bytes", o.Bytes)
	b := &versionsBench{o: o, dir: dir}
	if b.state, err = versionsWeights(o.Bytes); err != nil {
		return nil, err
	}
	for _, mem := range b.state.memory {
		inParallel(mem, fillWeights)
	}
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	defer b.close()
	for v := range o.Versions {
		if err := b.round(ctx, v); err != nil {
			return nil, err
		}
	}
	return b.result(), nil
}

// versionsBench is the side that publishes.
type versionsBench struct {
	o      VersionsOptions
	dir    string
	state  *rankState
	stager *cairn.Stager
	runs   map[bool]*cairn.Run // by whether checkpoints are full
	child  *exec.Cmd
	in     io.WriteCloser
	out    *json.Decoder

	updates, publishes, fulls, stalls, pauses, written, read []float64
}

// start starts the saver process and the follower.
func (b *versionsBench) start(ctx context.Context) (err error) {
	// Staging memory for one state. The saver process remembers another one.
	b.stager, err = cairn.NewStager(&cairn.StagerOptions{
		Ceiling: b.state.bytes + b.state.bytes/4 + 64<<20, Process: &saver.Options{Command: slices.Concat(b.o.Program, []string{"saver"})},
	})
	if err != nil {
		return err
	}

	b.runs = map[bool]*cairn.Run{}
	for _, full := range []bool{false, true} {
		keep, err := cairn.ParsePolicy("last 2")
		if err != nil {
			return err
		}
		b.runs[full], err = cairn.NewRun(b.runDir(full), &cairn.RunOptions{Keep: keep, Alone: full, Remember: !full, Stager: b.stager})
		if err != nil {
			return err
		}
	}

	args := slices.Concat(b.o.Follower, []string{"--size", strconv.FormatInt(b.o.Bytes, 10)})
	b.child = exec.CommandContext(ctx, args[0], args[1:]...)
	b.child.Stderr = os.Stderr
	if b.in, err = b.child.StdinPipe(); err != nil {
		return err
	}
	out, err := b.child.StdoutPipe()
	if err != nil {
		return err
	}

	b.out = json.NewDecoder(out)
	if err := b.child.Start(); err != nil {
		return err
	}

	var ready applied
	return b.out.Decode(&ready)
}

func (b *versionsBench) runDir(full bool) string {
	if full {
		return filepath.Join(b.dir, "full")
	}
	return filepath.Join(b.dir, "weights")
}

func (b *versionsBench) close() {
	_ = b.child.Process.Kill() // after an error it may wait for a version
	_ = b.child.Wait()
	for _, r := range b.runs {
		r.Close(context.Background())
	}
	b.stager.Close(context.Background())
}

// round publishes a version and waits until it is applied, and then does the same in full.
func (b *versionsBench) round(ctx context.Context, v int) error {
	if v > 0 {
		for _, mem := range b.state.memory {
			inParallel(mem, stepOne)
		}
	}

	seconds, done, err := b.transfer(ctx, v, false)
	if err != nil {
		return err
	}
	written, err := folderBytes(filepath.Join(b.runDir(false), run.FolderName(int64(v))))
	if err != nil {
		return err
	}

	size := float64(b.state.bytes)
	b.o.Log.printf("version %d: %.2f %% of the bytes written, %.2f %% read, %.3f s until complete, %.3f s until applied, pause %.3f s",
		v, 100*float64(written)/size, 100*float64(done.Read)/size, done.publish, seconds, done.Pause)
	if v > 0 {
		b.written, b.read = append(b.written, float64(written)/size), append(b.read, float64(done.Read)/size)
		b.updates, b.publishes = append(b.updates, seconds), append(b.publishes, done.publish)
		b.stalls, b.pauses = append(b.stalls, done.stall), append(b.pauses, done.Pause)
	}

	seconds, done, err = b.transfer(ctx, v, true)
	if err != nil {
		return err
	}

	b.o.Log.printf("full: %.3f s until complete, %.3f s until applied", done.publish, seconds)
	if v > 0 {
		b.fulls = append(b.fulls, seconds)
	}
	return os.RemoveAll(filepath.Join(b.runDir(true), run.FolderName(int64(v))))
}

// transferred has the durations of one transfer, in seconds.
type transferred struct {
	applied
	stall, publish float64
}

// transfer publishes the state and waits until the follower has applied it.
func (b *versionsBench) transfer(ctx context.Context, v int, full bool) (seconds float64, done *transferred, err error) {
	step := int64(v)
	order := follow{Path: filepath.Join(b.runDir(full), run.FolderName(step)), Full: full}
	if err := json.NewEncoder(b.in).Encode(&order); err != nil {
		return 0, nil, err
	}
	start := time.Now()
	pending, err := b.runs[full].SaveAsync(ctx, b.state.State, &cairn.AsyncOptions{SaveOptions: cairn.SaveOptions{Step: &step}})
	if err != nil {
		return 0, nil, err
	}
	done = &transferred{stall: time.Since(start).Seconds()}
	if _, err := pending.Wait(ctx); err != nil {
		return 0, nil, err
	}
	done.publish = time.Since(start).Seconds()
	if err := b.out.Decode(&done.applied); err != nil {
		return 0, nil, fmt.Errorf("the follower: %w", err)
	}
	if done.Error != "" {
		return 0, nil, fmt.Errorf("the follower: %s", done.Error)
	}
	if sum := sumOf(b.state); sum != done.Sum {
		return 0, nil, fmt.Errorf("version %d: the follower has other bytes", v)
	}
	return done.At.Sub(start).Seconds(), done, nil
}

func (b *versionsBench) result() *VersionsResult {
	median := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
	r := &VersionsResult{
		Bytes: b.state.bytes, Versions: b.o.Versions, WrittenShare: median(b.written), ReadShare: median(b.read),
		Stall:         float64(b.state.bytes) / 1e9 / median(b.stalls),
		UpdateSeconds: median(b.updates), FullSeconds: median(b.fulls), PublishSeconds: median(b.publishes), PauseSeconds: median(b.pauses),
	}
	r.UpdateRatio = r.UpdateSeconds / r.FullSeconds
	return r
}

// follow tells the follower which checkpoint comes next.
type follow struct {
	Path string `json:"path"`
	Full bool   `json:"full"`
}

// applied is the answer of the follower.
type applied struct {
	At    time.Time `json:"at"`    // when the weights had all bytes of the version
	Pause float64   `json:"pause"` // seconds from the first changed byte to the last
	Read  int64     `json:"read"`
	Sum   uint64    `json:"sum"` // sumOf
	Error string    `json:"error,omitempty"`
}

// FollowVersions is the follower: it reads from in which version comes next, waits for it,
// applies it, and answers on out.
func FollowVersions(ctx context.Context, size int64, in io.Reader, out io.Writer) error {
	weights, err := versionsWeights(size)
	if err != nil {
		return err
	}
	f := &versionsFollower{weights: weights, cacheBytes: size + size/4}
	defer f.close()
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	if err := answers.Encode(&applied{}); err != nil {
		return err
	}
	for {
		var order follow
		if err := orders.Decode(&order); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		done, err := f.apply(ctx, &order)
		if err != nil {
			done = &applied{Error: err.Error()}
		}
		if err := answers.Encode(done); err != nil {
			return err
		}
	}
}

// versionsFollower has weights in use.
type versionsFollower struct {
	weights    *rankState
	cacheBytes int64
	follower   *cairn.Follower // nil: not made yet
}

func (f *versionsFollower) close() {
	if f.follower != nil {
		f.follower.Close()
	}
}

// pollTime is how often the follower looks for the next version.
const pollTime = 5 * time.Millisecond

// apply waits for a version and brings the weights to it.
func (f *versionsFollower) apply(ctx context.Context, order *follow) (*applied, error) {
	done, err := &applied{}, error(nil)
	if order.Full {
		err = f.load(ctx, order.Path)
	} else {
		done.Read, done.Pause, err = f.update(ctx, order.Path)
	}
	done.At = time.Now()
	done.Sum = sumOf(f.weights)
	return done, err
}

// update follows the run of a version.
func (f *versionsFollower) update(ctx context.Context, path string) (read int64, pause float64, err error) {
	if f.follower == nil {
		o := &cairn.FollowOptions{CacheBytes: f.cacheBytes, Interval: pollTime}
		if f.follower, err = cairn.Follow(filepath.Dir(path), o); err != nil {
			return 0, 0, err
		}
	}
	if _, err := f.follower.Wait(ctx); err != nil {
		return 0, 0, err
	}
	r, err := f.follower.Update(ctx, f.weights.State)
	if err != nil {
		return 0, 0, err
	}
	return r.ReadBytes, r.Pause.Seconds(), nil
}

// load waits for a checkpoint and loads all of it.
func (f *versionsFollower) load(ctx context.Context, path string) error {
	for record := filepath.Join(path, native.Files().Records[0]); ; time.Sleep(pollTime) {
		if _, err := os.Stat(record); err == nil {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	store, err := file.Open(path, nil)
	if err != nil {
		return err
	}
	_, err = cairn.Load(ctx, store, f.weights.State, nil)
	return err
}

// eachProcessor runs functions in one goroutine for each processor.
func eachProcessor(work []func()) {
	next := make(chan func())
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for fn := range next {
				fn()
			}
		})
	}
	for _, fn := range work {
		next <- fn
	}
	close(next)
	wg.Wait()
}

// sumOf returns a checksum of weights.
func sumOf(s *rankState) uint64 {
	sums := make([]uint64, len(s.memory))
	work := make([]func(), len(s.memory))
	for i, mem := range s.memory {
		work[i] = func() {
			for at := 0; at+8 <= len(mem); at += 8 {
				sums[i] = sums[i]*0x9e3779b97f4a7c15 + binary.LittleEndian.Uint64(mem[at:])
			}
		}
	}
	eachProcessor(work)
	var out uint64
	for _, v := range sums {
		out = out*31 + v
	}
	return out
}
