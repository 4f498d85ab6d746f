package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// childJob is what a process that a benchmark starts is to do: one of these.
type childJob struct {
	Crowd *crowdJob `json:"crowd,omitempty"`
	Rank  *rankJob  `json:"rank,omitempty"`
	Tiny  *tinyJob  `json:"tiny,omitempty"`
}

// Child does what the benchmark wants that started this process. Options.Self
// says how such processes are started; job is the argument they were given.
func Child(ctx context.Context, job string, out io.Writer) error {
	var j childJob
	if err := json.Unmarshal([]byte(job), &j); err != nil {
		return fmt.Errorf("job of a process of a benchmark: %w", err)
	}
	switch {
	case j.Crowd != nil:
		return j.Crowd.run(ctx, out)
	case j.Rank != nil:
		return j.Rank.run(ctx, out)
	case j.Tiny != nil:
		return j.Tiny.run(ctx, out)
	}
	return errors.New("job of a process of a benchmark: it is empty")
}

// argument returns the job as [Child] takes it.
func (j childJob) argument() (string, error) {
	b, err := json.Marshal(j)
	return string(b), err
}

// errNoSelf reports options without Self.
var errNoSelf = errors.New("how to start another process is not known")

// child is a process that does a job.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	out io.Reader
}

// start starts a process that does the job. It ends with ctx.
func (j childJob) start(ctx context.Context, self []string) (*child, error) {
	if len(self) == 0 {
		return nil, errNoSelf
	}
	arg, err := j.argument()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self[0], append(self[1:len(self):len(self)], arg)...)}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if c.out, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return c, c.cmd.Start()
}

// answer decodes what the process has to say into v, and calls then before the
// process may go on to end.
func (c *child) answer(v any, then func()) error {
	err := json.NewDecoder(c.out).Decode(v)
	then()
	c.in.Close()
	if exit := c.cmd.Wait(); exit != nil {
		return exit
	}
	return err
}

// tell hands v to the process that started this one, and waits until that has
// taken note.
func tell(out io.Writer, v any) error {
	if err := json.NewEncoder(out).Encode(v); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}
