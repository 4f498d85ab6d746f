// Package ram holds runs in the memory of the hosts of a job. Each host keeps the files of its
// ranks, and copies of files of other hosts, in a folder on tmpfs. The files belong to no process:
// they stay if all processes of the job end. The address memory://RUN, or memory:RUN, names such a
// run, and memory://RUN/step-000000010 a checkpoint of it, on any host of the job.
//
//	/dev/shm/cairn-1000/          the root: of one user, mode 0700
//	    host                      the id of this host
//	    llama.members             the hosts of the run llama
//	    llama.sums                the checksums of its files on this host
//	    llama/step-000000010/…    its checkpoints, as in any run
package ram

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
)

// Variable is the environment variable with the folder for runs in memory, such as the mount of a
// volume of the medium Memory. By default it is a folder below /dev/shm.
const Variable = "CAIRN_MEMORY"

// ErrRoot reports a folder that cannot hold runs in memory.
var ErrRoot = errors.New("cannot hold runs in memory")

// Root is the folder of all runs in memory on this host.
type Root string

// Here returns the folder of all runs in memory of this user on this host, and makes it. It has to
// be a folder of this user that nobody else can enter.
func Here() (Root, error) {
	root, err := rootPath()
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(root, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("%w: %w", ErrRoot, err)
	}
	fi, err := os.Lstat(root)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrRoot, err)
	}
	if err := checkOwner(fi); err != nil {
		return "", fmt.Errorf("%w: %s %w", ErrRoot, root, err)
	}
	return Root(root), nil
}

// rootPath returns the folder, which need not exist.
func rootPath() (string, error) {
	root := os.Getenv(Variable)
	if root == "" {
		if runtime.GOOS != "linux" {
			return "", fmt.Errorf("%w: %s has no /dev/shm; set %s to a folder in memory", ErrRoot, runtime.GOOS, Variable)
		}
		root = "/dev/shm/cairn-" + strconv.Itoa(os.Getuid())
	}
	if !filepath.IsAbs(root) {
		return "", fmt.Errorf("%w: %s is %q, want an absolute path", ErrRoot, Variable, root)
	}
	return root, nil
}

// Files of the root that are no folders of runs.
const (
	hostFile    = "host"
	membersTail = ".members"
)

// runName matches the name of a run: one element of a path, and the host of a URL.
var runName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Folder returns the folder of a run on this host. It need not exist.
func (r Root) Folder(run string) (string, error) {
	if !runName.MatchString(run) {
		return "", fmt.Errorf("%w: memory://%s: the name of a run has 1 to 128 letters, digits, dots, dashes and underscores, and begins with a letter or a digit", blob.ErrAddress, run)
	}
	if run == hostFile || strings.HasSuffix(run, membersTail) || strings.HasSuffix(run, sumsTail) {
		return "", fmt.Errorf("%w: memory://%s: %q and names that end with %q or %q are names of files of cairn", blob.ErrAddress, run, hostFile, membersTail, sumsTail)
	}
	return filepath.Join(string(r), run), nil
}

// Split returns the name of the run of an address, and the path of a folder in it, which is empty
// for the run itself.
func Split(address string) (run, folder string, err error) {
	rest, ok := strings.CutPrefix(blob.LongForm(address), "memory://")
	if !ok {
		return "", "", fmt.Errorf("%w: %s: want memory://RUN", blob.ErrAddress, blob.Redact(address))
	}
	run, folder, _ = strings.Cut(strings.TrimRight(rest, "/"), "/")
	if run == "" {
		if run, err = DefaultRun(); err != nil {
			return "", "", err
		}
	}
	return run, folder, nil
}

// DefaultRun returns the name that the environment gives to the run of this job: CAIRN_RUN, or the
// id that a launcher gives to a job and keeps when it restarts the job.
func DefaultRun() (string, error) {
	if id := jobID(); id != "" {
		return id, nil
	}
	return "", fmt.Errorf("%w: memory: has no name of a run, and the environment has none: write memory:NAME, or set CAIRN_RUN to a name that no other job has, and that stays when the job is restarted", blob.ErrAddress)
}

// jobID returns the id of this job, or "".
func jobID() string {
	for _, name := range []string{"CAIRN_RUN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"} {
		// torchrun calls all jobs "none" that have no id of their own.
		if v := os.Getenv(name); v != "" && v != "none" {
			return v
		}
	}
	if set, uid := os.Getenv("JOBSET_NAME"), os.Getenv("JOBSET_UID"); set != "" && uid != "" {
		return set + "-" + uid
	}
	return ""
}

// HostID returns the id of this host: of its folder for runs in memory, and so of the bytes there.
// After a reboot, which empties the folder, it is another one.
func (r Root) HostID() (string, error) {
	path := filepath.Join(string(r), hostFile)
	for {
		data, err := os.ReadFile(path)
		if id := strings.TrimSpace(string(data)); err == nil && len(id) == 32 {
			return id, nil
		}
		if err == nil {
			return "", fmt.Errorf("%w: %s has no id of a host; remove the file", ErrRoot, path)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		id := make([]byte, 16)
		rand.Read(id)
		err = writeNew(path, []byte(hex.EncodeToString(id)+"\n"))
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
}

// writeNew writes a file that appears completely or not at all. If it exists, the error wraps
// fs.ErrExist.
func writeNew(path string, data []byte) error {
	temp, err := writeTemp(path, data)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	return os.Link(temp, path)
}

// writeTemp writes a file with another name beside path.
func writeTemp(path string, data []byte) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".cairn-tmp-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// Runs returns the names of the runs in memory on this host.
func (r Root) Runs() ([]string, error) {
	entries, err := os.ReadDir(string(r))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && runName.MatchString(e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Bytes returns the bytes of the files of a run on this host.
func (r Root) Bytes(run string) (n int64, err error) {
	folder, err := r.Folder(run)
	if err != nil {
		return 0, err
	}
	err = filepath.WalkDir(folder, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err == nil {
			n += fi.Size()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return n, err
}
