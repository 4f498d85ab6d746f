package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
)

// folder has the checks for folders of a file system.
var folder = []check{
	{"file system", "Test saves of several hosts before you rely on it.", fileSystem},
	{"free space", "Saves fail when the disk is full. Nothing that is complete gets lost.", freeSpace},
	{"fsync", "A checkpoint that a save has reported as complete may be lost or damaged if the power fails.", fsync},
	{"rename", "Objects do not appear in one step, so a load may see a part of a checkpoint.", rename},
	{"locks", "Processes cannot see whether a save is under way: 'cairn clean' keeps leftovers unless --older-than gives an age, and 'cairn latest --wait' does not wait.", locks},
	{"direct I/O", "Saves and loads go through the page cache, which is slower and pushes out other data.", direct},
}

// shared are file systems of several hosts, with advice for each.
var shared = map[string]string{
	"nfs":    "NFS: attributes are cached for some seconds, so another host may see a checkpoint late; locks work across hosts only with NFSv4, or with lockd; do not mount it with nolock or async",
	"lustre": "Lustre: mount it with flock, not localflock, so that locks work across hosts; stripe the folders of large checkpoints (lfs setstripe)",
	"smb":    "SMB: locks and renames depend on the server",
	"fuse":   "FUSE: what it keeps depends on the program behind it; object storage is faster through its own address, such as s3://",
	"tmpfs":  "tmpfs: checkpoints are lost when the machine restarts",
}

func fileSystem(_ context.Context, e *exam) (string, error) {
	kind, _, err := statFolder(e.opts.Folder)
	if errors.Is(err, errors.ErrUnsupported) {
		return "", skip("this system does not say what it is")
	}
	if err != nil {
		return "", err
	}

	if hint := shared[kind]; hint != "" {
		return "", warn("%s", hint)
	}
	return "it is " + kind, nil
}

// leastFree is a free space below which a warning is due.
const leastFree = 1 << 30

func freeSpace(_ context.Context, e *exam) (string, error) {
	_, free, err := statFolder(e.opts.Folder)
	if errors.Is(err, errors.ErrUnsupported) {
		return "", skip("this system does not say how much there is")
	}
	if err != nil {
		return "", err
	}
	if free < leastFree {
		return "", warn("%.1f GB are free", float64(free)/1e9)
	}
	return fmt.Sprintf("%.1f GB are free", float64(free)/1e9), nil
}

func fsync(_ context.Context, e *exam) (string, error) {
	return e.dir(func(dir string) (string, error) {
		f, err := os.Create(filepath.Join(dir, "synced"))
		if err != nil {
			return "", err
		}
		defer f.Close()

		if _, err := f.Write(pattern(1 << 20)); err != nil {
			return "", err
		}
		if err := f.Sync(); err != nil {
			return "", fmt.Errorf("a file cannot be synced: %w", err)
		}
		if err := file.SyncDir(dir); err != nil {
			return "", fmt.Errorf("a folder cannot be synced: %w", err)
		}
		return "files and folders can be synced", nil
	})
}

func rename(_ context.Context, e *exam) (string, error) {
	return e.dir(func(dir string) (string, error) {
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		for i, name := range []string{b, a} {
			if err := os.WriteFile(name, []byte{byte('0' + i)}, 0o666); err != nil {
				return "", err
			}
		}

		old, err := os.Open(b)
		if err != nil {
			return "", err
		}
		defer old.Close()

		if err := os.Rename(a, b); err != nil {
			return "", fmt.Errorf("a file cannot replace another one: %w", err)
		}

		got, err := os.ReadFile(b)
		if err != nil || string(got) != "1" {
			return "", otherwise(err, fmt.Sprintf("after a file has replaced another one, its name leads to %q", got))
		}

		p := make([]byte, 1)
		if n, _ := old.Read(p); n == 1 && p[0] != '0' {
			return "", errors.New("a reader of the old file sees the new one")
		}

		names, err := os.ReadDir(dir)
		if err != nil || slices.ContainsFunc(names, func(d os.DirEntry) bool { return d.Name() == "a" }) {
			return "", otherwise(err, "a file is still there under its old name")
		}
		return "a file replaces another one in one step", nil
	})
}

func locks(_ context.Context, e *exam) (string, error) {
	return e.dir(func(dir string) (string, error) {
		path := filepath.Join(dir, "lock")
		l, err := file.LockPath(path)
		if errors.Is(err, errors.ErrUnsupported) {
			return "", warn("the file system has no locks")
		}
		if err != nil {
			return "", err
		}

		defer l.Release()

		if other, err := file.LockPath(path); !errors.Is(err, blob.ErrLocked) {
			if err == nil {
				other.Release()
			}
			return "", warn("%v", otherwise(err, "a lock that is held was given to a second holder"))
		}
		return "locks exclude each other", nil
	})
}
