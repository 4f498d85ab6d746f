package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// programName returns what to type to run this program again: its name if that
// is found on the PATH, the path by which it was called, or the go command that
// has built it for one run.
func programName() string {
	exe, err := os.Executable()
	if err != nil || len(os.Args) == 0 {
		return "cairn"
	}
	return nameOf(os.Args[0], exe, exec.LookPath)
}

// ownCommand returns the command line that runs this program with arguments.
func ownCommand(args ...string) ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start another process: %w", err)
	}
	return append([]string{exe}, args...), nil
}

// inCache matches where "go run" keeps a program that it has built before.
var inCache = regexp.MustCompile(`/[0-9a-f]{2}/[0-9a-f]{64}-d/[^/]+$`)

// nameOf is programName for a program that was called arg0 and is the file exe.
func nameOf(arg0, exe string, look func(string) (string, error)) string {
	base := filepath.Base(arg0)
	if found, err := look(base); err == nil && sameFile(found, exe) {
		return base
	}
	if slash := filepath.ToSlash(exe); strings.Contains(slash, "/go-build") || inCache.MatchString(slash) {
		return "go run ./cmd/cairn"
	}
	if strings.ContainsRune(arg0, filepath.Separator) {
		return quoteArg(arg0)
	}
	return quoteArg(exe)
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
