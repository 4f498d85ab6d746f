package saver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// newTrainers starts the savers of a job and lets them meet.
func newTrainers(t *testing.T, ranks int) []*trainer {
	t.Helper()
	out := make([]*trainer, ranks)
	for r := range out {
		out[r] = newTrainer(t)
		out[r].send(typeHello, helloBody{messageVersion})
		out[r].expect(typeReady)
	}
	secret := []byte("only these savers know it")
	out[0].send(typeListen, listenBody{Size: ranks, Secret: secret, Job: t.Name()})
	at := received[listeningBody](out[0], typeListening).Address
	for r, c := range out[1:] {
		c.send(typeJoin, joinBody{Rank: r + 1, Size: ranks, Address: at, Secret: secret, Job: t.Name()})
	}
	for _, c := range out {
		c.expect(typeJoined)
	}
	return out
}

// shardOf describes the part of a rank of a tensor that all ranks have a row of. The
// content is that row.
func shardOf(generation uint64, folder string, rank, ranks int) *saveBody {
	n := int64(len(content))
	b := newSave(generation, folder)
	b.Items[0] = itemBody{Name: "w", DType: "uint8", Shape: []int64{int64(ranks), n}, Sharded: true, Offsets: []int64{int64(rank), 0}, Sizes: []int64{1, n}}
	b.Items = append(b.Items, itemBody{Name: "replicated", DType: "uint8", Shape: []int64{n}})
	return b
}

// save sends a save, and its units.
func (c *trainer) save(b *saveBody, all bool) {
	c.Helper()
	c.send(typeSave, b)
	u := c.stage(b.Generation, 4096)
	u.Items, u.At = []int{0, 2}, []int64{u.At[0], u.At[0]} // they share memory
	c.send(typeStaged, stagedBody{Generation: b.Generation, Units: []unitBody{u}, All: all})
}

// outcome returns the outcome of a save, or nil if the conversation ends before. Fetches
// are answered: every item has the content.
func (c *trainer) outcome() *frame {
	for {
		f, err := readFrame(c.r)
		if err != nil {
			return nil
		}
		switch f.Type {
		case typeSaved, typeFailed:
			return f
		case typeFetch:
			b, err := decode[fetchBody](f, true)
			if err != nil {
				c.Error(err)
				return nil
			}
			copy(c.mem[b.At:b.At+b.Length], content[b.Offset:])
			m, err := appendFrame(nil, typeFetched, fetchedBody{Fetch: b.Fetch})
			if err != nil {
				c.Error(err)
				return nil
			}
			c.conn.Write(m) // the saver may have ended
		}
	}
}

// outcomes returns the outcomes of all ranks. They are read at the same time: a rank may
// wait for the answer of another one.
func outcomes(job []*trainer) []*frame {
	out := make([]*frame, len(job))
	var wg sync.WaitGroup
	for r, c := range job {
		wg.Go(func() { out[r] = c.outcome() })
	}
	wg.Wait()
	return out
}

func TestServeSaversOfSeveralRanks(t *testing.T) {
	const ranks = 3
	job := newTrainers(t, ranks)
	folder := t.TempDir()
	for g := uint64(1); g < 4; g++ {
		for r, c := range job {
			c.save(shardOf(g, folder, r, ranks), true)
		}
		for r, f := range outcomes(job) {
			if f == nil || f.Type != typeSaved {
				t.Fatalf("rank %d: %+v; want %q", r, f, typeSaved)
			}
		}
		if got := published(t, folder); got != content {
			t.Errorf("the checkpoint has %q", got)
		}
	}
	for _, c := range job {
		c.conn.Close()
	}
	for _, c := range job {
		if err := c.wait(); err != nil {
			t.Error(err)
		}
	}
}

// All trainers end when they have staged: the savers complete the save.
func TestServeSaversOutliveTheirTrainers(t *testing.T) {
	const ranks = 3
	job := newTrainers(t, ranks)
	folder := t.TempDir()
	for r, c := range job {
		c.save(shardOf(1, folder, r, ranks), true)
		c.conn.Close()
	}
	for r, c := range job {
		if err := c.wait(); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if got := published(t, folder); got != content {
		t.Errorf("the checkpoint has %q", got)
	}
}

// One trainer of several breaks a rule or ends too early: no checkpoint is published,
// and the savers of the others report that the save has failed.
func TestServeOneBadTrainerOfSeveral(t *testing.T) {
	const ranks = 3
	for claim, bad := range map[string]func(c *trainer, b *saveBody){
		"garbage":                 func(c *trainer, b *saveBody) { c.save(b, false); c.write([]byte("\x07\x00\x00\x00garbage")) },
		"the end before the save": func(c *trainer, b *saveBody) { c.conn.Close() },
		"the end before all":      func(c *trainer, b *saveBody) { c.save(b, false); c.conn.Close() },
		"the end in a message":    func(c *trainer, b *saveBody) { c.save(b, false); c.write([]byte{9, 0, 0, 0, '{'}); c.conn.Close() },
		"abandon": func(c *trainer, b *saveBody) {
			c.save(b, false)
			c.send(typeAbandon, abandonBody{Generation: 1, Error: errorBody{Text: "no"}})
		},
		"a lie about offsets": func(c *trainer, b *saveBody) {
			c.send(typeSave, b)
			c.send(typeStaged, stagedBody{Generation: 1, Units: []unitBody{{Stamp: arenaSize}}})
		},
		"a store that cannot be":    func(c *trainer, b *saveBody) { b.Store = os.DevNull + "/x"; c.save(b, true) },
		"a format that is not":      func(c *trainer, b *saveBody) { b.Format = "tar"; c.save(b, true) },
		"a time that is not":        func(c *trainer, b *saveBody) { b.Time = "noon"; c.save(b, true) },
		"another format":            func(c *trainer, b *saveBody) { b.Format = formats.Hyper; c.save(b, true) },
		"a tensor of another shape": func(c *trainer, b *saveBody) { b.Items[2].Shape = []int64{1, int64(len(content))}; c.save(b, true) },
	} {
		for _, rank := range []int{0, 2} {
			t.Run(fmt.Sprint(claim, " on rank ", rank), func(t *testing.T) {
				job := newTrainers(t, ranks)
				folder := t.TempDir()
				for r, c := range job {
					if r != rank {
						c.save(shardOf(1, folder, r, ranks), true)
					}
				}
				bad(job[rank], shardOf(1, folder, rank, ranks))
				for r, f := range outcomes(job) {
					if r != rank && claim == "the end before all" {
						if b, err := decode[failedBody](f, true); err != nil || !errors.Is(b.Error.err(), group.ErrGone) || errors.Is(b.Error.err(), ErrSaver) {
							t.Errorf("rank %d: %+v, %v; want ErrGone", r, b, err)
						}
					}
					if r != rank && (f == nil || f.Type != typeFailed) || f != nil && f.Type == typeSaved {
						t.Errorf("rank %d: %+v; want %q", r, f, typeFailed)
					}
				}
				for _, c := range job {
					c.conn.Close()
				}
				for r, c := range job {
					if err := c.wait(); err != nil && (r != rank || !errors.Is(err, ErrMessage)) {
						t.Errorf("rank %d: Serve = %v", r, err)
					}
				}
				if got := published(t, folder); got != "" {
					t.Errorf("the save was published, with %q", got)
				}
				if left, _ := filepath.Glob(filepath.Join(folder, "*.safetensors")); len(left) > 0 {
					t.Errorf("%q are left", left)
				}
			})
		}
	}
}

// A save that goes to another folder of its run, and that one rank cannot make, fails with the
// error of that rank.
func TestServeMovesASaveThatOneRankCannotMake(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "run", "step-1")
	for _, last := range []string{formats.Native, "tar"} {
		job := newTrainers(t, 2)
		for r, c := range job {
			b := shardOf(1, folder, r, len(job))
			b.Step, b.Run = new(int64(1)), &InRun{}
			if r == 1 {
				b.Format = last
			}
			c.save(b, true)
		}
		for r, f := range outcomes(job) {
			if f == nil || (f.Type == typeSaved) != (last == formats.Native) {
				t.Fatalf("%s, rank %d: %+v", last, r, f)
			}
			if f.Type == typeFailed {
				if b, err := decode[failedBody](f, true); err != nil || !strings.Contains(b.Error.Text, `"tar"`) {
					t.Errorf("rank %d: %+v, %v; want an error about the format", r, b, err)
				}
			}
		}
		for _, c := range job {
			c.conn.Close()
			must.Do(t, c.wait())
		}
	}
}

// A saver that does not meet the others sends an error, and ends with its trainer.
func TestServeSaversThatDoNotMeet(t *testing.T) {
	listener, other := newTrainer(t), newTrainer(t)
	for _, c := range []*trainer{listener, other} {
		c.send(typeHello, helloBody{messageVersion})
		c.expect(typeReady)
	}
	listener.send(typeListen, listenBody{Size: 2, Secret: []byte("right"), Job: "a"})
	at := received[listeningBody](listener, typeListening).Address
	other.send(typeJoin, joinBody{Rank: 1, Size: 2, Address: at, Secret: []byte("wrong"), Job: "a"})
	b := received[failedBody](other, typeFailed)
	if b.subject != (subject{}) || len(b.Error.Codes) == 0 {
		t.Errorf("failed %+v; want the answer to join, with a code", b)
	}
	other.send(typeSave, newSave(1, t.TempDir()))
	if err := other.refused(); !errors.Is(err, ErrMessage) {
		t.Errorf("a save without a group: %v; want ErrMessage", err)
	}
	if err := other.wait(); !errors.Is(err, ErrMessage) {
		t.Errorf("Serve = %v; want ErrMessage", err)
	}
	listener.conn.Close() // while it waits for the other
	if err := listener.wait(); err != nil {
		t.Errorf("Serve = %v", err)
	}
}

// A rank that the group of savers loses is a saver for the trainer, and a trainer that has
// ended is a rank.
func TestErrorsTellSaversFromTrainers(t *testing.T) {
	for claim, c := range map[string]struct {
		err         error
		saver, gone bool
	}{
		"a lost saver":              {&group.Error{Op: group.OpBarrier, Ranks: []int{1}, Err: group.ErrGone}, true, false},
		"a saver that has left":     {group.NewRemoteError(fmt.Errorf("begin: %w", group.ErrLeft)), true, false},
		"a lost trainer":            {fmt.Errorf("write: %w", errTrainerGone), false, true},
		"a lost trainer, elsewhere": {&group.RemoteError{Text: "x", Codes: []string{codeTrainer}}, false, true},
		"both":                      {errors.Join(group.ErrGone, errTrainerGone), true, true},
		"something else":            {storage.ErrExists, false, false},
	} {
		v := saverError(c.err)
		got := v.err()
		if errors.Is(got, ErrSaver) != c.saver || errors.Is(got, group.ErrGone) != c.gone || !strings.Contains(v.Text, c.err.Error()) {
			t.Errorf("%s: %v, with the codes %q", claim, got, v.Codes)
		}
		if errors.Is(c.err, storage.ErrExists) && !errors.Is(got, storage.ErrExists) {
			t.Errorf("%s: the codes are %q", claim, v.Codes)
		}
	}
}

// saveUnequal is save. The replicated tensor is not the content, but as long as it.
func (c *trainer) saveUnequal(b *saveBody, replicated string) {
	c.Helper()
	c.send(typeSave, b)
	u := c.stage(b.Generation, 4096)
	copy(c.mem[u.At[0]+256:], replicated)
	u.Items, u.At = []int{0, 2}, []int64{u.At[0], u.At[0] + 256}
	c.send(typeStaged, stagedBody{Generation: b.Generation, Units: []unitBody{u}, All: true})
}

// Ranks hold different contents of one tensor: the save fails on all of them, unless the
// message allows it. Then the copy of rank 0 is saved.
func TestServeTensorsThatDiffer(t *testing.T) {
	const ranks = 3
	differs := strings.Repeat("x", len(content))
	for claim, c := range map[string]struct {
		change func(b *saveBody)
		saved  bool
	}{
		"refused":            {func(*saveBody) {}, false},
		"refused, staged":    {func(b *saveBody) { b.Fits = true }, false},
		"the item may":       {func(b *saveBody) { b.Items[2].MayDiffer = true }, true},
		"all tensors may":    {func(b *saveBody) { b.TensorsMayDiffer = true }, true},
		"another item may":   {func(b *saveBody) { b.Items[0].MayDiffer = true }, false},
		"on the lowest rank": {func(b *saveBody) { b.Owner, b.Items[2].MayDiffer = plan.LowestRank, true }, true},
	} {
		t.Run(claim, func(t *testing.T) {
			job := newTrainers(t, ranks)
			folder := t.TempDir()
			for r, trainer := range job {
				b := shardOf(1, folder, r, ranks)
				c.change(b)
				if r == 2 {
					trainer.saveUnequal(b, differs)
				} else {
					trainer.saveUnequal(b, content)
				}
			}
			for r, f := range outcomes(job) {
				switch {
				case f == nil || c.saved != (f.Type == typeSaved):
					t.Errorf("rank %d: %+v; want a checkpoint: %v", r, f, c.saved)
				case !c.saved:
					b := must.Get(decode[failedBody](f, true))(t)
					if text := b.Error.Text; !slices.Contains(b.Error.Codes, "plan.state") || !strings.Contains(text, `"replicated"`) ||
						!strings.Contains(text, "rank 0 and rank 2 hold different contents") {
						t.Errorf("rank %d: %+v; want the tensor and the ranks", r, b.Error)
					}
				}
			}
			if got := published(t, folder) != ""; got != c.saved {
				t.Errorf("there is a checkpoint: %v; want %v", got, c.saved)
			}
			if c.saved {
				if got, _ := tensorIn(t, folder, "replicated"); got != content {
					t.Errorf("replicated = %q; want the tensor of rank 0, %q", got, content)
				}
			}
		})
	}
}

// A sharded tensor has two names on all ranks: it is stored once.
func TestServeTiedShards(t *testing.T) {
	const ranks = 3
	job := newTrainers(t, ranks)
	folder := t.TempDir()
	for r, c := range job {
		b := shardOf(1, folder, r, ranks)
		b.Items[0].Alias = 1
		b.Items[2] = b.Items[0]
		b.Items[2].Name = "head"
		c.save(b, true)
	}
	for r, f := range outcomes(job) {
		if f == nil || f.Type != typeSaved {
			t.Fatalf("rank %d: %+v; want %q", r, f, typeSaved)
		}
	}
	w, ties := tensorIn(t, folder, "w")
	if head, _ := tensorIn(t, folder, "head"); w != strings.Repeat(content, ranks) || head != w {
		t.Errorf("w = %q, head = %q", w, head)
	}
	if len(ties) != 1 || ties["w"] != "head" {
		t.Errorf("ties = %v; want w and head", ties)
	}
}

// tensorIn returns the chunks of a tensor, and the ties of the checkpoint.
func tensorIn(t *testing.T, folder, name string) (out string, ties map[string]string) {
	t.Helper()
	store := must.Get(file.Open(folder, nil))(t)
	c := must.Get(formats.Open(t.Context(), store, nil))(t)
	defer c.Close()
	md := must.Get(c.Metadata(t.Context()))(t)
	e, ok := md.Find(name)
	if !ok {
		t.Fatalf("the checkpoint has no tensor %s", name)
	}
	for i := range e.Tensor.Locs {
		out += chunkOf(t, folder, &e.Tensor.Locs[i])
	}
	return out, md.Ties()
}
