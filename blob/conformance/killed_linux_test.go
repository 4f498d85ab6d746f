package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// uploads counts, by their names below the folder x, the objects that requests have made.
type uploads struct {
	mu    sync.Mutex
	count map[string]int // guarded by mu
}

// made notes an answer of the server.
func (u *uploads) made(r *http.Request, answer *http.Response) {
	part := r.URL.Query().Has("uploadId")
	if answer.StatusCode != http.StatusOK || !(r.Method == http.MethodPut && !part || r.Method == http.MethodPost && part) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.count == nil {
		u.count = map[string]int{}
	}
	_, name, _ := strings.Cut(r.URL.Path, "/x/")
	u.count[name]++
}

// has reports whether an object was made with a path that contains part.
func (u *uploads) has(part string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for name := range u.count {
		if strings.Contains("/x/"+name, part) {
			return true
		}
	}
	return false
}

// job is a command line that several ranks run, each through a proxy of its own.
type job struct {
	ranks int
	// victim is killed, and its request refused, at its second PUT of an object with a key that
	// contains doomed, or a later one. By then an object with that part is there: without one,
	// ranks that fail for the loss of another rank would remove their files. Empty: no rank is
	// killed.
	victim int
	doomed string
	puts   atomic.Int64 // of the victim, of objects with the part
	uploads
}

// due reports whether the victim is to be killed at a request of it. It returns after an object
// with the part doomed was made, or when ctx ends.
func (j *job) due(ctx context.Context, r *http.Request) bool {
	if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, j.doomed) || j.puts.Add(1) == 1 {
		return false
	}
	for !j.has(j.doomed) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return true
}

// run runs the command line and returns the output of each rank.
func (j *job) run(t *testing.T, line ...string) ([]string, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	socket := must.Get(os.MkdirTemp("", "cairn-"))(t) // a short path
	defer os.RemoveAll(socket)
	outs, errs := make([]string, j.ranks), make([]error, j.ranks)
	var wg sync.WaitGroup
	for r := range j.ranks {
		cmd := exec.CommandContext(ctx, line[0], append(line[1:], "--job")...)
		started := make(chan struct{})
		p := startProxy(t, 0, 0, func(p *proxy) {
			p.Answer = j.made
			if r != j.victim || j.doomed == "" {
				return
			}
			p.Instead = func(r *http.Request) (int, string) {
				if !j.due(ctx, r) {
					return 0, ""
				}
				<-started
				_ = cmd.Process.Kill() // the requests of a process that has ended do not matter
				return http.StatusServiceUnavailable, "SlowDown"
			}
		})
		cmd.Env = append(os.Environ(), fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", j.ranks), "CAIRN_SECRET=of a test",
			"MASTER_ADDR=unix:"+filepath.Join(socket, "0"), "AWS_ENDPOINT_URL_S3="+p.URL())
		cmd.WaitDelay = 10 * time.Second
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		must.Do(t, cmd.Start())
		close(started)
		wg.Go(func() {
			errs[r] = cmd.Wait()
			outs[r] = out.String()
		})
	}
	wg.Wait()
	return outs, errs
}

// sixTensors saves a checkpoint of six tensors, which become six files, and returns its path.
func sixTensors(t *testing.T) string {
	t.Helper()
	src := filepath.Join(t.TempDir(), "src")
	state := cairn.State{}
	for i := range 6 {
		x := must.Get(tensor.New(tensor.Uint8, []int64{2 << 20}))(t)
		b, _ := x.Bytes()
		for k := range b {
			b[k] = byte(k*5 + i)
		}
		state[fmt.Sprint("t", i)] = x
	}
	must.Get(cairn.Save(t.Context(), must.Get(cairn.OpenStore(src))(t), state, nil))(t)
	return src
}

// Jobs that write to S3 are killed, and go on.
func TestKilledJobsInS3(t *testing.T) {
	program := buildCairn(t)
	t.Run("conversions", func(t *testing.T) { testKilledConversions(t, program) })
	t.Run("other commands", func(t *testing.T) { testCommandsAfterKill(t, program) })
	t.Run("copies", func(t *testing.T) { testKilledCopy(t, program) })
	t.Run("requests", func(t *testing.T) { testRequestsOfConversion(t, program) })
}

// testKilledConversions kills a rank of a conversion. No checkpoint is there then. The same
// job by another number of ranks goes on: files that were finished are not uploaded again, and
// the journal is gone. 'cairn clean' removes the leftovers of a job in which rank 0 ended by
// itself.
func testKilledConversions(t *testing.T, program string) {
	src := sixTensors(t)
	want := must.Get(command(t, nil, program, "digest", src))(t)
	for _, c := range []struct {
		to      string
		victim  int
		cleaned bool
	}{{"native", 1, false}, {"hf", 0, false}, {"torchdcp", 2, true}} {
		t.Run(fmt.Sprintf("%s, rank %d", c.to, c.victim), func(t *testing.T) {
			address := fmt.Sprintf("s3://bucket/%d/x", folders.Add(1))
			direct := []string{"AWS_ENDPOINT_URL_S3=" + endpoint}
			store := must.Get(cairn.OpenStore(address + "?endpoint=" + endpoint))(t)
			line := []string{program, "convert", src, address, "--to", c.to, "--max-shard-size", "2MB"}
			first := &job{ranks: 3, victim: c.victim, doomed: "/" + convert.JournalFolder + "/finished/"}
			outs, errs := first.run(t, line...)
			for r, err := range errs {
				if err == nil || r != c.victim && !strings.Contains(strings.Join(outs, ""), fmt.Sprintf("rank %d", c.victim)) {
					t.Fatalf("rank %d: %v; want an error about rank %d:\n%s", r, err, c.victim, strings.Join(outs, "\n"))
				}
			}
			var finished []string
			for name := range strings.FieldsSeq(names(t, store)) {
				if file, ok := strings.CutPrefix(name, convert.JournalFolder+"/finished/"); ok {
					finished = append(finished, file)
				}
			}
			if n := len(finished); n == 0 || n == 6 {
				t.Fatalf("%d of 6 files are finished", n)
			}
			out, err := command(t, direct, program, "verify", address)
			if err == nil {
				t.Errorf("there is a checkpoint:\n%s", out)
			}
			if !c.cleaned {
				second := &job{ranks: 2}
				outs, errs := second.run(t, line...)
				if errs[0] != nil || errs[1] != nil || !strings.Contains(outs[0], "finished by an earlier run") {
					t.Fatalf("the second job: %v:\n%s", errs, strings.Join(outs, "\n"))
				}
				for _, name := range finished {
					if second.count[name] > 0 {
						t.Errorf("%s was finished, and uploaded again", name)
					}
				}
				for name, n := range second.count {
					if n > 1 && !strings.HasPrefix(name, convert.JournalFolder) {
						t.Errorf("%s was uploaded %d times", name, n)
					}
				}
				if got := must.Get(command(t, direct, program, "digest", address))(t); got != want {
					t.Errorf("the result has other digests:\n%s\nwant\n%s", got, want)
				}
				if left := names(t, store); strings.Contains(left, convert.JournalFolder) {
					t.Errorf("the journal stays: %s", left)
				}
				return
			}
			if out, err := command(t, direct, program, "clean", address); err != nil || !strings.Contains(out, "removed, an unfinished conversion") {
				t.Errorf("clean = %v:\n%s", err, out)
			}
			if left := names(t, store); left != "" {
				t.Errorf("%s is left", left)
			}
		})
	}
}

// testCommandsAfterKill kills rank 0 of a conversion. 'cairn clean' keeps its files, because
// the process may be suspended, unless they are old enough. A dry run of the conversion tells
// that it would go on, and so does verify. Another conversion keeps the files, too.
func testCommandsAfterKill(t *testing.T, program string) {
	src := sixTensors(t)
	address := fmt.Sprintf("s3://bucket/%d/x", folders.Add(1))
	store := must.Get(cairn.OpenStore(address + "?endpoint=" + endpoint))(t)
	line := []string{program, "convert", src, address, "--to", "native", "--max-shard-size", "2MB"}
	killed := &job{ranks: 2, victim: 0, doomed: "/" + convert.JournalFolder + "/finished/"}
	if _, errs := killed.run(t, line...); errs[0] == nil {
		t.Fatal("rank 0 was not killed")
	}
	before := names(t, store)
	for range 20 { // the server may still complete requests of ranks that have ended
		time.Sleep(100 * time.Millisecond)
		now := names(t, store)
		if now == before {
			break
		}
		before = now
	}
	for _, step := range []struct {
		want string
		args []string
	}{
		{"kept, an unfinished conversion", []string{"clean", address}},
		{"kept, an unfinished conversion", []string{"clean", address, "--older-than", "24h"}},
		{"kept, an unfinished conversion", []string{"clean", strings.TrimSuffix(address, "/x"), "--older-than", "0s", "--force"}}, // it is younger than a minute
		{"; an interrupted run would be continued, with", append(line[1:], "--dry-run")},
		{"the same 'cairn convert' continues it", []string{"verify", address}},
		{"did not finish", []string{"latest", strings.TrimSuffix(address, "/x")}},
	} {
		out, _ := command(t, []string{"AWS_ENDPOINT_URL_S3=" + endpoint}, append([]string{program}, step.args...)...) // some have exit codes of their own
		if !strings.Contains(out, step.want) {
			t.Errorf("cairn %s printed %q; want %q", strings.Join(step.args, " "), out, step.want)
		}
		if now := names(t, store); now != before {
			t.Fatalf("after cairn %s there is %s; want %s", strings.Join(step.args, " "), now, before)
		}
	}
	out, err := command(t, []string{"AWS_ENDPOINT_URL_S3=" + endpoint}, program, "convert", src, address, "--to", "native", "--shards", "2")
	if err != nil || !strings.Contains(out, "starting from the beginning") || !strings.Contains(out, "files of the other conversion stay") {
		t.Errorf("another conversion = %v:\n%s", err, out)
	}
	now := names(t, store)
	if strings.Contains(now, convert.JournalFolder) || !strings.Contains(now, "cairn.json") {
		t.Errorf("after another conversion there is %s; want a checkpoint, and no journal", now)
	}
	for name := range strings.FieldsSeq(before) {
		if !strings.HasPrefix(name, convert.JournalFolder) && !strings.Contains(now, name) {
			t.Errorf("%s is gone, which a suspended process may need", name)
		}
	}
}

// testKilledCopy kills a rank of a copy. The same job by another number of ranks goes on, and
// uploads no file again that was complete.
func testKilledCopy(t *testing.T, program string) {
	src := filepath.Join(t.TempDir(), "six")
	must.Get(command(t, nil, program, "convert", sixTensors(t), src, "--to", "hf", "--max-shard-size", "2MB"))(t)
	address := fmt.Sprintf("s3://bucket/%d/x", folders.Add(1))
	store := must.Get(cairn.OpenStore(address + "?endpoint=" + endpoint))(t)
	line := []string{program, "cp", src, address, "--parallel", "1"}
	killed := &job{ranks: 3, victim: 1, doomed: "/x/model-"}
	outs, errs := killed.run(t, line...)
	if errs[0] == nil || errs[1] == nil || !strings.Contains(outs[0], "rank 1") {
		t.Fatalf("the first copy: %v:\n%s", errs, strings.Join(outs, "\n"))
	}
	finished := strings.Fields(names(t, store))
	if len(finished) == 0 || strings.Contains(names(t, store), "index.json") {
		t.Fatalf("there is %q; want some of the data files", finished)
	}
	second := &job{ranks: 2}
	if outs, errs := second.run(t, line...); errs[0] != nil || errs[1] != nil || !strings.Contains(outs[0], "were there already") {
		t.Fatalf("the second copy: %v:\n%s", errs, strings.Join(outs, "\n"))
	}
	for _, name := range finished {
		if second.count[name] > 0 {
			t.Errorf("%s was complete, and uploaded again", name)
		}
	}
	direct := []string{"AWS_ENDPOINT_URL_S3=" + endpoint}
	if got, want := must.Get(command(t, direct, program, "digest", address))(t), must.Get(command(t, nil, program, "digest", src))(t); got != want {
		t.Errorf("the copy has other digests:\n%s\nwant\n%s", got, want)
	}
}

// testRequestsOfConversion compares the requests of a conversion with the number that
// docs/object-storage.md promises.
func testRequestsOfConversion(t *testing.T, program string) {
	out := must.Get(command(t, nil, program, "convert", sixTensors(t), place(), "--to", "native", "--max-shard-size", "2MB", "--json"))(t)
	var r struct {
		Files   int           `json:"files"`
		Written *blob.Traffic `json:"target_traffic"`
	}
	must.Do(t, json.Unmarshal([]byte(out), &r))
	if r.Written == nil || r.Files != 6 || r.Written.Requests-r.Written.Retries > 2*6+10+1 { // one tries out conditions
		t.Errorf("the conversion has made %+v for %d files; want at most 23 requests", r.Written, r.Files)
	}
}
