package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob/all"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// apart refuses a DST that is SRC, or lies within it or around it: the one would
// be replaced, or grow, while the other is read.
func apart(src, dst string) error {
	a, err := resolved(src)
	if err != nil {
		return err
	}
	b, err := resolved(dst)
	if err != nil {
		return fmt.Errorf("%s: %s", dst, reason(err)) // it is not about a checkpoint
	}
	switch {
	case a == b:
		err = fmt.Errorf("%s and %s are the same", src, dst)
	case within(a, b):
		err = fmt.Errorf("%s lies within %s", src, dst)
	case within(b, a):
		err = fmt.Errorf("%s lies within %s", dst, src)
	}
	return withHint(err, "a checkpoint is not converted in its own place: give DST another path")
}

// outside refuses an output file that would replace a file of the checkpoint c at
// the address src.
func outside(c *cairn.Checkpoint, src, out string) error {
	fi, err := os.Stat(out)
	path, local, pathErr := localPath(checkpointAddress(src))
	if err != nil || !local || pathErr != nil {
		return nil // nothing to replace, or not there
	}
	names := []string{""} // it may be a file itself
	if base := filepath.Base(behindLink(out)); describes(base) {
		names = append(names, base)
	}
	for _, f := range c.Files() {
		names = append(names, filepath.FromSlash(f.Name))
	}
	for _, n := range names {
		if own, err := os.Stat(filepath.Join(path, n)); err == nil && !own.IsDir() && os.SameFile(fi, own) {
			return withHint(fmt.Errorf("%s is part of the checkpoint %s", out, src), "write to another file")
		}
	}
	return nil
}

// within reports whether path lies below dir.
func within(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
}

// resolved returns an address in a form by which equal places are equal. What is
// not there yet is taken as it would be.
func resolved(address string) (string, error) {
	path, local, err := localPath(address)
	if err != nil || !local {
		return strings.TrimSuffix(address, "/"), err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	rest := ""
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !os.IsNotExist(err) || path == filepath.Dir(path) {
			return "", err
		}
		path, rest = filepath.Dir(path), filepath.Join(filepath.Base(path), rest)
	}
}

// checkpointFiles returns the files of the checkpoint at a path, as convert.Place
// wants them.
func checkpointFiles(path string) ([]string, error) {
	ctx := context.Background()
	store, err := all.Open(path)
	if err != nil {
		return nil, err
	}
	c, err := formats.Open(ctx, store, nil)
	if e, ok := errors.AsType[*formats.UnsupportedError](err); ok { // a checkpoint all the same
		return nil, fmt.Errorf("it is one of %s, by its file %s", e.Format, e.File)
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	out := []string{recordName, piecesRecord} // which formats do not count
	for _, f := range c.Files() {
		out = append(out, f.Name)
	}
	return out, nil
}

// accept refuses a folder in which files that stay would be taken for the
// checkpoint.
func (d *destination) accept(dir string) error {
	store, err := all.Open(dir)
	if err != nil {
		return err
	}
	found, err := formats.Detect(context.Background(), store)
	if err != nil {
		return err
	}
	if found != d.format {
		return fmt.Errorf("%s also holds files of the format %s, which would be taken for the new checkpoint", d.address, found)
	}
	return nil
}
