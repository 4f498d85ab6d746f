package conformance

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/tensor"
)

// TestRunsInS3 runs the commands for runs: with a run in S3, and with a run in a folder that
// is uploaded to S3.
func TestRunsInS3(t *testing.T) {
	t.Parallel() // it waits for much of its time
	program := buildCairn(t)
	base := fmt.Sprintf("s3://bucket/%d", folders.Add(1))
	remote, local := base+"/run", filepath.Join(t.TempDir(), "run")
	env := []string{"AWS_ENDPOINT_URL_S3=" + endpoint}
	call := func(ok bool, args []string, want ...string) {
		t.Helper()
		out, err := command(t, env, append([]string{program}, args...)...)
		if (err == nil) != ok {
			t.Errorf("cairn %s = %v, printed %q", strings.Join(args, " "), err, out)
		}
		for _, w := range want {
			absent := strings.HasPrefix(w, "!")
			if strings.Contains(strings.Join(strings.Fields(out), " "), strings.TrimPrefix(w, "!")) == absent {
				t.Errorf("cairn %s printed %q; want %q", strings.Join(args, " "), out, w)
			}
		}
	}
	state := cairn.State{"x": must.Get(tensor.New(tensor.Float32, []int64{1000}))(t)}
	for step := range int64(5) {
		s := must.Get(cairn.OpenStore(filepath.Join(local, fmt.Sprint("step-", step))))(t)
		must.Get(cairn.Save(t.Context(), s, state, &cairn.SaveOptions{Step: &step}))(t)
	}
	call(true, []string{"tag", local + "/step-1", "release", "--metric", "loss=0.5"}, "tags release", "metrics loss=0.5")
	call(true, []string{"settings", local, "--keep", "last 2", "--remote", remote, "--keep-remote", "last 3, tagged"}, remote)
	call(true, []string{"log", local}, "4 checkpoints not uploaded yet", "step-0 0")
	call(true, []string{"prune", local}, "step-1 1", "not uploaded no rule keeps it", "1 checkpoint removed")
	call(true, []string{"sync", local}, "4 checkpoints copied")
	call(true, []string{"prune", local}, "2 checkpoints removed")
	call(true, []string{"log", local}, "remote loss=0.5 release", "both - - last 2, newest last 3, newest", "!not uploaded")
	call(true, []string{"runs", base}, remote+" 4 ", "release")

	// The run in S3 by itself, with another format.
	call(true, []string{"convert", remote + "/step-4", remote + "/step-9", "--to", "dcp"})
	call(true, []string{"tag", remote + "/step-9", "dcp"}, "tags dcp")
	call(true, []string{"log", remote}, "step-9 9", "complete - dcp", "5 checkpoints, ")
	call(true, []string{"rm", remote + "/step-2"}, remote+"/step-2: removed")
	call(false, []string{"rm", remote + "/step-9"}, "newest complete checkpoint of its run")
	call(true, []string{"log", remote, "--keep", "last 1, best 1 by loss"}, "step-1 1", "best 1 by loss", "2 checkpoints, ", "would be removed", "!step-2")
	call(true, []string{"prune", remote, "--keep", "last 1, best 1 by loss", "--dry-run"}, "2 checkpoints would be removed")
	call(true, []string{"prune", remote, "--keep", "last 1, best 1 by loss"}, "2 checkpoints removed")
	call(true, []string{"log", remote}, "2 checkpoints, ", "step-1", "step-9", "!step-4")
	call(true, []string{"verify", remote + "/step-1"}, "ok")
	call(true, []string{"verify", remote + "/step-9"}, "ok")
	// The pictures of 'cairn web'.
	call(true, []string{"plot", remote, "run"}, "<svg", "step-9")
	call(true, []string{"plot", remote, "steps", "--no-cache"}, "<svg")
	call(true, []string{"plot", remote + "/step-9", "heatmap", "x"}, "<svg", "all 1,000 elements were read")
	call(true, []string{"clean", remote}, "0 files removed")
	call(false, []string{"prune", remote}, "has no policy")
	call(false, []string{"log", base + "/nothing"}, "no checkpoint here")
}

// TestVersionsInS3 publishes versions of weights to S3: they refer to each other, a follower
// reads the tensors that changed, and the commands read and keep the versions.
func TestVersionsInS3(t *testing.T) {
	t.Parallel() // it waits for much of its time
	address := fmt.Sprintf("s3://bucket/%d/weights?endpoint=%s", folders.Add(1), endpoint)
	weights := must.Get(tensor.New(tensor.BFloat16, []int64{1024, 1024}))(t)
	state, random := cairn.State{"w": weights}, rand.New(rand.NewPCG(1, 2))
	for i := range weights.Contents() {
		weights.Contents()[i] = byte(random.Uint32())
	}
	r := must.Get(cairn.NewRun(address, &cairn.RunOptions{Remember: true, Keep: must.Get(cairn.ParsePolicy("last 2"))(t)}))(t)
	f := must.Get(cairn.Follow(address, nil))(t)
	defer f.Close()
	used := must.Get(tensor.New(tensor.BFloat16, []int64{1024, 1024}))(t)
	for v := range int64(20) {
		must.Get(r.Save(t.Context(), state, &cairn.SaveOptions{Step: &v}))(t)
		report := must.Get(f.Update(t.Context(), cairn.State{"w": used}))(t)
		if report.Version != v || !bytes.Equal(used.Contents(), weights.Contents()) || len(report.Tried) > 0 {
			t.Fatalf("version %d: Update = %+v, or other bytes", v, report)
		}
		if v > 0 && report.ReadBytes > report.Bytes/10 {
			t.Errorf("version %d: %d bytes were read of %d", v, report.ReadBytes, report.Bytes)
		}
		for range 5000 {
			weights.Contents()[2*random.IntN(1<<20)] ^= 1
		}
	}
	must.Do(t, r.Close(t.Context()))
	all := must.Get(r.Checkpoints(t.Context()))(t)
	last := all[len(all)-1]
	if last.Bytes > 1<<18 || len(last.Bases) == 0 || len(all) > 8 {
		t.Errorf("%d versions stay, and the last has %d bytes and refers to %v", len(all), last.Bytes, last.Bases)
	}
	program := buildCairn(t)
	env := []string{"AWS_ENDPOINT_URL_S3=" + endpoint}
	plain, _, _ := strings.Cut(address, "?")
	for _, args := range [][]string{{"verify", plain + "/" + last.Name}, {"cp", plain + "/" + last.Name, filepath.Join(t.TempDir(), "copy")}} {
		if out, err := command(t, env, append([]string{program}, args...)...); err != nil {
			t.Errorf("cairn %v = %v, printed %q", args, err, out)
		}
	}
	if out, err := command(t, env, program, "rm", plain+"/"+last.Bases[0]); err == nil {
		t.Errorf("a base of the newest version was removed: %q", out)
	}
}
