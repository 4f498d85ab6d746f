package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// LogError says why LogDir cannot be used. It wraps [fs.ErrExist] where logs of an
// earlier job are there.
type LogError struct {
	Dir string
	Err error
}

func (e *LogError) Error() string { return fmt.Sprintf("logs in %s: %v", e.Dir, e.Err) }

func (e *LogError) Unwrap() error { return e.Err }

// makeLogs makes the folder of the logs ready: no log is there afterwards that
// could be taken for one of this job.
func (j *job) makeLogs() error {
	if j.LogDir == "" {
		return nil
	}
	err := os.MkdirAll(j.LogDir, 0o777)
	if err == nil {
		err = j.clearLogs()
	}
	if err != nil {
		return &LogError{j.LogDir, bare(err)}
	}
	return nil
}

func (j *job) clearLogs() error {
	there, err := os.ReadDir(j.LogDir)
	if err != nil {
		return err
	}
	for _, e := range there {
		if !j.isLog(e.Name()) {
			continue
		}
		if !j.Overwrite {
			return fmt.Errorf("%s of an earlier job is there: %w", e.Name(), fs.ErrExist)
		}
		if err := os.Remove(filepath.Join(j.LogDir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// isLog reports whether a file has the name of a log that this job makes, or that
// could be taken for one. The launchers of other hosts may share the folder.
func (j *job) isLog(name string) bool {
	number, isOut := strings.CutSuffix(name, ".out")
	number, isErr := strings.CutSuffix(number, ".err")
	rank, err := strconv.Atoi(number)
	if isOut == isErr || err != nil || strconv.Itoa(rank) != number || rank < 0 {
		return false
	}
	return j.Nodes == 1 || rank/j.N == j.Node
}

// newLog makes the log of one stream of a rank.
func (j *job) newLog(rank int, kind string) (*os.File, error) {
	name := filepath.Join(j.LogDir, fmt.Sprintf("%d.%s", rank, kind))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, &LogError{j.LogDir, bare(err)}
	}
	j.logs = append(j.logs, f)
	return f, nil
}

// dropLogs removes the logs of a job that never began.
func (j *job) dropLogs() {
	for _, f := range j.logs {
		_ = os.Remove(f.Name()) // the next one says if it is in the way
	}
}

// bare takes the path off an error that is about it.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", filepath.Base(e.Path), e.Err)
	}
	return err
}
