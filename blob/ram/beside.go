package ram

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

// odd matches what the name of a run cannot have.
var odd = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// Beside returns the name of the run in memory that this job has beside a durable run, by the path or the
// URL of that one. Other jobs and other runs have other names. A job that is started again with the same
// id has the same name.
func Beside(address string) (string, error) {
	tail, err := tailOf(address)
	if err != nil {
		return "", err
	}
	job := jobID()
	if job == "" {
		return "", fmt.Errorf("%w: memory needs an id of the job that no other job has, and that stays when the job is started again: set CAIRN_RUN, or use torchrun with --rdzv-id", blob.ErrAddress)
	}
	name := odd.ReplaceAllString("run-"+job, "-")
	return name[:min(len(name), 100)] + tail, nil
}

// tailOf returns the end of the names of all runs in memory beside a durable run.
func tailOf(address string) (string, error) {
	path, local, err := file.LocalPath(address)
	if err != nil {
		return "", err
	}
	if local {
		if path, err = filepath.Abs(path); err != nil {
			return "", fmt.Errorf("%w: %s: %w", blob.ErrAddress, address, err)
		}
	}
	sum := sha256.Sum256([]byte(path))
	return "-" + hex.EncodeToString(sum[:4]), nil
}

// RunsBeside returns the names of the runs in memory on this host that jobs have beside a durable run.
func RunsBeside(address string) ([]string, error) {
	tail, err := tailOf(address)
	if err != nil {
		return nil, err
	}
	path, err := rootPath()
	if err != nil {
		return nil, nil // there is no such folder on this system
	}
	all, err := Root(path).Runs()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, name := range all {
		if strings.HasSuffix(name, tail) {
			out = append(out, name)
		}
	}
	return out, err
}
