package launch

import (
	"fmt"
	"io"
	"os"
	"strconv"
)

// writers returns where the output of a rank goes.
func (j *job) writers(rank int) (stdout, stderr io.Writer, err error) {
	stdout, stderr = j.Stdout, j.Stderr
	if j.Streams != nil {
		stdout, stderr = j.Streams(rank)
	}
	prefix := j.Prefix && j.Streams == nil
	if stdout, err = j.writer(stdout, rank, "out", prefix, j.Color); err != nil {
		return nil, nil, err
	}
	stderr, err = j.writer(stderr, rank, "err", prefix, j.ErrColor)
	return stdout, stderr, err
}

// writer puts before w what is to be done with a stream of output.
func (j *job) writer(w io.Writer, rank int, kind string, prefix, color bool) (io.Writer, error) {
	_, file := w.(*os.File)
	if file && !prefix && j.LogDir == "" {
		return w, nil
	}
	if w != nil {
		w = &printed{j.printer, w}
		if prefix {
			w = &lines{to: w, prefix: prefixOf(rank, j.Nodes*j.N, color)}
		}
	}
	if j.LogDir == "" {
		return w, nil
	}
	f, err := j.newLog(rank, kind)
	if err != nil {
		return nil, err
	}
	if w == nil {
		return f, nil
	}
	return &tee{f, w}, nil
}

// colors are told apart on light and dark terminals.
var colors = []string{"36", "33", "35", "32", "34", "31"}

// prefixOf returns what stands before the lines of a rank.
func prefixOf(rank, size int, color bool) string {
	width := len(strconv.Itoa(size - 1))
	text := fmt.Sprintf("[%*d]", width, rank)
	if color {
		text = "\x1b[" + colors[rank%len(colors)] + "m" + text + "\x1b[0m"
	}
	return text + " "
}
