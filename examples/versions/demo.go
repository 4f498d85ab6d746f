package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// job is a trainer or a server: processes that the demo starts, and perhaps kills and
// starts again.
type job struct {
	name  string
	ranks int
	args  []string

	turn   int // how often it was started
	cmds   []*exec.Cmd
	alive  int
	killed bool
}

// event is a message of a rank, or the end of the rank.
type event struct {
	job  *job
	turn int
	rank int
	message
	ended bool
	err   error
}

// report is a version that all ranks of a server have reported.
type report struct {
	server  string
	turn    int
	version int64
	digest  digest
	read    int64
	pause   time.Duration
	tried   int
}

// director starts the jobs, disturbs them, and notes their messages.
type director struct {
	folder   string
	versions int64
	events   chan event

	trainer, columns, rows *job

	parts   map[string][]message // messages of the ranks of a job about a version, in order
	trained map[int64]digest
	reports []report
	failed  int // updates that failed
	resumed int64
	done    map[string]bool // servers that have the last version
	went    bool            // the trainer was told to go on
}

// demo runs the whole demo.
func demo(ctx context.Context, versions int64) error {
	if versions < 8 {
		return fmt.Errorf("%d versions are too few; want 8 or more", versions)
	}

	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	folder, err := os.MkdirTemp("", "cairn-versions-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)

	d := &director{
		folder: folder, versions: versions, events: make(chan event), parts: map[string][]message{}, trained: map[int64]digest{}, done: map[string]bool{},
		trainer: &job{name: "trainer", ranks: 2, args: []string{"-role", "trainer"}},
		columns: &job{name: "server with columns", ranks: 2, args: []string{"-role", "server", "-layout", "columns"}},
		rows:    &job{name: "server with rows", ranks: 3, args: []string{"-role", "server", "-layout", "rows"}},
	}
	d.trainer.args = append(d.trainer.args, "-hold", fmt.Sprint(d.damageAt()))
	defer d.stop()

	for _, j := range []*job{d.trainer, d.columns, d.rows} {
		if err := d.start(ctx, j); err != nil {
			return err
		}
	}

	for len(d.done) < 2 || len(d.trained) < int(versions) { // the report of a server may come before the trainer's
		select {
		case e := <-d.events:
			if err := d.heard(ctx, &e); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%w: the servers are not at version %d, or of the trainer only %d versions are known: %v", context.Cause(ctx), versions, len(d.trained), d.reports)
		}
	}
	return d.compare()
}

// The versions at which the director disturbs the jobs.
func (d *director) killServerAt() int64  { return d.versions / 5 }
func (d *director) damageAt() int64      { return d.versions * 2 / 5 }
func (d *director) killTrainerAt() int64 { return d.versions * 7 / 10 }

// start starts the ranks of a job.
func (d *director) start(ctx context.Context, j *job) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}

	j.turn++
	j.cmds, j.alive, j.killed = nil, 0, false

	meet, err := os.MkdirTemp(d.folder, "meet-")
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(meet, "log"))
	if err != nil {
		return err
	}
	defer log.Close()

	for r := range j.ranks {
		cmd := exec.CommandContext(ctx, self, append([]string{"-folder", d.folder, "-versions", fmt.Sprint(d.versions)}, j.args...)...)
		cmd.Env = append(os.Environ(), "MASTER_ADDR=unix:"+filepath.Join(meet, "0.sock"), fmt.Sprint("RANK=", r), fmt.Sprint("WORLD_SIZE=", j.ranks))
		cmd.Stderr = log
		if _, err := cmd.StdinPipe(); err != nil { // see endWithDemo
			return err
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}

		if err := cmd.Start(); err != nil {
			return err
		}
		j.cmds = append(j.cmds, cmd)
		j.alive++
		turn := j.turn

		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				var m message
				if json.Unmarshal(lines.Bytes(), &m) == nil {
					d.send(ctx, event{job: j, turn: turn, rank: r, message: m})
				}
			}
			err := cmd.Wait()
			if text, _ := os.ReadFile(log.Name()); err != nil {
				err = fmt.Errorf("%s: rank %d: %w: %s", j.name, r, err, text)
			}
			d.send(ctx, event{job: j, turn: turn, rank: r, ended: true, err: err})
		}()
	}
	return nil
}

func (d *director) send(ctx context.Context, e event) {
	select {
	case d.events <- e:
	case <-ctx.Done():
	}
}

// kill kills the ranks of a job.
func (d *director) kill(j *job) {
	j.killed = true
	for _, cmd := range j.cmds {
		_ = cmd.Process.Kill() // it may have ended
	}
}

// stop kills the jobs that still run, and waits for them.
func (d *director) stop() {
	for _, j := range []*job{d.trainer, d.columns, d.rows} {
		d.kill(j)
	}
	for d.trainer.alive+d.columns.alive+d.rows.alive > 0 {
		select {
		case e := <-d.events:
			if e.ended && e.turn == e.job.turn {
				e.job.alive--
			}
		case <-time.After(time.Minute):
			return
		}
	}
}

// heard takes a message of a rank, and disturbs the jobs.
func (d *director) heard(ctx context.Context, e *event) error {
	if e.ended {
		return d.ended(ctx, e)
	}
	switch e.Event {
	case "resumed":
		d.resumed = e.Version
	case "trained":
		if all := d.together(e); all != nil {
			sum := sumOf(all)
			if was, ok := d.trained[e.Version]; ok && was != sum {
				return fmt.Errorf("the trainer has trained version %d twice, with different results", e.Version)
			}
			d.trained[e.Version] = sum
		}
	case "published":
		if e.rank == 0 {
			return d.published(ctx, e.Version)
		}
	case "failed":
		if e.rank == 0 {
			d.failed++
		}
	case "updated":
		if all := d.together(e); all != nil {
			d.updated(e, all)
		}
	}
	return nil
}

// together returns the messages of all ranks of a job about a version, once it has the last one.
func (d *director) together(e *event) []message {
	key := fmt.Sprint(e.job.name, e.turn, e.Event, e.Version, e.job.ranks)
	d.parts[key] = append(d.parts[key], e.message)
	if len(d.parts[key]) < e.job.ranks {
		return nil
	}
	all := d.parts[key]
	delete(d.parts, key)
	return all
}

func sumOf(all []message) (sum digest) {
	for _, m := range all {
		sum = sum.plus(m.Digest)
	}
	return sum
}

// published disturbs the jobs at certain versions.
func (d *director) published(ctx context.Context, version int64) error {
	switch {
	case version == d.killServerAt() && d.trainer.turn == 1:
		fmt.Printf("version %d: kills the %s\n", version, d.rows.name)
		d.kill(d.rows)
	case version == d.damageAt() && !d.went:
		fmt.Printf("version %d: damages it, and starts the %s again\n", version, d.rows.name)
		if err := d.damage(version); err != nil {
			return err
		}
		return d.start(ctx, d.rows)
	case version == d.killTrainerAt() && d.trainer.turn == 1:
		fmt.Printf("version %d: kills the trainer\n", version)
		d.kill(d.trainer)
	}
	return nil
}

// damage changes a byte in the largest file of a version.
func (d *director) damage(version int64) error {
	files, err := filepath.Glob(filepath.Join(d.folder, "weights", fmt.Sprintf("step-%09d", version), "*"))
	if err != nil {
		return err
	}
	var largest string
	var data []byte
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if len(b) > len(data) {
			largest, data = name, b
		}
	}
	if largest == "" {
		return fmt.Errorf("version %d has no files", version)
	}
	data[len(data)/2] ^= 0x20
	return os.WriteFile(largest, data, 0o666)
}

// updated notes a report of a server. When the server that was killed is back, with the
// version before the damaged one, the trainer goes on.
func (d *director) updated(e *event, all []message) {
	r := report{server: e.job.name, turn: e.turn, version: e.Version, digest: sumOf(all)}
	for _, m := range all {
		r.read += m.Read
		r.pause, r.tried = max(r.pause, m.Pause), max(r.tried, m.Tried)
	}
	d.reports = append(d.reports, r)
	if e.job == d.rows && e.turn == 2 && !d.went {
		fmt.Printf("version %d: the %s is back, after %d attempts with version %d\n", r.version, r.server, r.tried, d.damageAt())
		d.went = true
		_ = os.WriteFile(filepath.Join(d.folder, "go"), nil, 0o666) // if it fails, the demo does not end
	}
	if r.version == d.versions {
		d.done[r.server] = true
	}
}

// ended takes the end of a rank. A trainer that was killed is started again.
func (d *director) ended(ctx context.Context, e *event) error {
	if e.turn != e.job.turn {
		return nil
	}
	e.job.alive--
	if e.err != nil && !e.job.killed {
		return e.err
	}
	if e.job == d.trainer && e.job.killed && e.job.alive == 0 {
		return d.start(ctx, e.job)
	}
	return nil
}

// compare compares the reports of the servers with the trained weights, and prints a table.
func (d *director) compare() error {
	var errs []error
	for _, r := range d.reports {
		if want, ok := d.trained[r.version]; !ok || r.digest != want {
			errs = append(errs, fmt.Errorf("the %s, started %d times, reports version %d with %x; the trainer had %x", r.server, r.turn, r.version, r.digest, want))
		}
	}
	if d.resumed == 0 {
		errs = append(errs, errors.New("the trainer has not resumed"))
	}
	if !slices.ContainsFunc(d.reports, func(r report) bool { return r.tried > 0 }) {
		errs = append(errs, errors.New("no server has noticed the damaged version"))
	}
	if slices.ContainsFunc(d.reports, func(r report) bool { return r.server == d.rows.name && r.turn == 2 && r.version == d.damageAt() }) {
		errs = append(errs, errors.New("a server reports the damaged version"))
	}
	fmt.Printf("the trainer has published %d versions, and was resumed after version %d\n\n", d.versions, d.resumed)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tversions\tequal\tread first\tread later\tpause\t")
	for _, name := range []string{d.columns.name, d.rows.name} {
		d.row(w, name)
	}
	w.Flush()
	fmt.Printf("\nupdates that failed, after which a server kept its version: %d\n", d.failed)
	fmt.Println("(the server that was started again cannot read the damaged version, nor versions that refer to it,\n" +
		"until a version is written in full; the other server has the damaged version in memory, and goes on)")
	return errors.Join(errs...)
}

// row prints the row of a server: how many versions it has reported, the bytes that it has
// read for the first and, at the median, for a later one, and the longest pause.
func (d *director) row(w *tabwriter.Writer, name string) {
	var n, equal int
	var first int64
	var later []int64
	var pause time.Duration
	turn := 0
	for _, r := range d.reports {
		if r.server != name {
			continue
		}
		n++
		if r.digest == d.trained[r.version] {
			equal++
		}
		if r.turn != turn {
			turn, first = r.turn, max(first, r.read)
		} else {
			later = append(later, r.read)
		}
		pause = max(pause, r.pause)
	}
	slices.Sort(later)
	median := int64(0)
	if len(later) > 0 {
		median = later[len(later)/2]
	}
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%v\t\n", name, n, equal, first, median, pause.Round(10*time.Microsecond))
}
