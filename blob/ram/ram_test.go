package ram

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// atRoot makes a new folder the one for runs in memory.
func atRoot(t testing.TB) Root {
	t.Helper()
	t.Setenv(Variable, filepath.Join(t.TempDir(), "memory"))
	return must.Get(Here())(t)
}

// A root that others can enter, a link and a file are refused.
func TestRootBelongsToOneUser(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes of files here")
	}
	root := string(atRoot(t))
	if got := must.Get(Here())(t); string(got) != root || must.Get(os.Stat(root))(t).Mode().Perm() != 0o700 {
		t.Errorf("Here = %s with %v; want %s with 0700", got, must.Get(os.Stat(root))(t).Mode(), root)
	}
	for name, change := range map[string]func(){
		"can be entered by other users": func() { must.Do(t, os.Chmod(root, 0o755)) },
		"is not a folder": func() {
			must.Do(t, os.Remove(root))
			must.Do(t, os.Symlink(t.TempDir(), root))
		},
	} {
		must.Do(t, os.RemoveAll(root))
		must.Do(t, os.Mkdir(root, 0o700))
		change()
		if _, err := Here(); !errors.Is(err, ErrRoot) || !strings.Contains(err.Error(), name) {
			t.Errorf("Here of a folder that %s = %v; want ErrRoot", name, err)
		}
	}
	t.Setenv(Variable, "relative")
	if _, err := Here(); !errors.Is(err, ErrRoot) {
		t.Errorf("Here of a relative path = %v; want ErrRoot", err)
	}
}

func TestSplit(t *testing.T) {
	for _, name := range []string{"TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "JOBSET_NAME", "JOBSET_UID"} {
		t.Setenv(name, "")
	}
	t.Setenv("CAIRN_RUN", "job-7")
	for address, want := range map[string][2]string{
		"memory:llama":                      {"llama", ""},
		"memory://llama":                    {"llama", ""},
		"memory:llama/step-000000010":       {"llama", "step-000000010"},
		"memory://llama/a/b/":               {"llama", "a/b"},
		"memory:":                           {"job-7", ""},
		"memory:///step-000000010":          {"job-7", "step-000000010"},
		blob.JoinAddress("memory:l", "s-1"): {"l", "s-1"},
	} {
		run, folder, err := Split(address)
		if err != nil || run != want[0] || folder != want[1] {
			t.Errorf("Split(%q) = %q, %q, %v; want %q", address, run, folder, err, want)
		}
	}
	if _, _, err := Split("s3://b/x"); !errors.Is(err, blob.ErrAddress) {
		t.Errorf("Split of another scheme = %v; want blob.ErrAddress", err)
	}
}

// The name of a run comes from the environment of the job. torchrun calls many jobs "none".
func TestDefaultRun(t *testing.T) {
	vars := []string{"CAIRN_RUN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "JOBSET_NAME", "JOBSET_UID"}
	for want, env := range map[string][]string{
		"mine":  {"mine", "elastic", "12", "set", "u"},
		"12":    {"", "none", "12", "set", "u"},
		"set-u": {"", "", "", "set", "u"},
		"":      {"", "none", "", "set", ""},
	} {
		for i, name := range vars {
			t.Setenv(name, env[i])
		}
		got, err := DefaultRun()
		if got != want || (err == nil) != (want != "") {
			t.Errorf("DefaultRun with %q = %q, %v; want %q", env, got, err, want)
		}
	}
}

func TestFolderRefusesNames(t *testing.T) {
	root := atRoot(t)
	for _, run := range []string{"", ".", "..", ".hidden", "a/b", "a\\b", "a b", "ä", strings.Repeat("x", 129), "host", "llama.members", "llama.sums"} {
		if _, err := root.Folder(run); !errors.Is(err, blob.ErrAddress) {
			t.Errorf("Folder(%q) = %v; want blob.ErrAddress", run, err)
		}
	}
}

// All processes of a host find the same id, which stays until the folder is emptied.
func TestHostID(t *testing.T) {
	root := atRoot(t)
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() { ids[i] = must.Get(root.HostID())(t) })
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("the ids are %q", ids)
		}
	}
	must.Do(t, os.Remove(filepath.Join(string(root), "host")))
	if id := must.Get(root.HostID())(t); id == ids[0] {
		t.Error("the id is the same after the folder was emptied")
	}
	must.Do(t, os.WriteFile(filepath.Join(string(root), "host"), []byte("x"), 0o600))
	if _, err := root.HostID(); !errors.Is(err, ErrRoot) {
		t.Errorf("HostID with a damaged file = %v; want ErrRoot", err)
	}
}

// A file of hosts with one flipped bit, or cut off anywhere, is never taken for another list.
func TestMembersAreCompared(t *testing.T) {
	root := atRoot(t)
	m := &Members{Secret: []byte("secret"), Hosts: []Host{
		{ID: "a", Name: "n1", Domain: "rack 1", Addresses: []string{"10.0.0.1:4000"}},
		{ID: "b", Name: "n2", Left: true},
	}}
	must.Do(t, root.WriteMembers("llama", m))
	if got := must.Get(root.ReadMembers("llama"))(t); !reflect.DeepEqual(got, m) {
		t.Errorf("ReadMembers = %+v; want %+v", got, m)
	}
	if got := must.Get(root.ReadMembers("other"))(t); len(got.Hosts) != 0 {
		t.Errorf("ReadMembers of another run = %+v", got)
	}
	path := filepath.Join(string(root), "llama.members")
	if fi := must.Get(os.Stat(path))(t); runtime.GOOS != "windows" && fi.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v; want 0600", fi.Mode())
	}
	data := must.Get(os.ReadFile(path))(t)
	for i := range data {
		bad := append([]byte(nil), data...)
		bad[i] ^= 1 << (i % 8)
		for what, text := range map[string][]byte{"flipped": bad, "cut": data[:i]} {
			must.Do(t, os.WriteFile(path, text, 0o600))
			if got, err := root.ReadMembers("llama"); err == nil && !reflect.DeepEqual(got, m) || err != nil && !errors.Is(err, ErrMembers) {
				t.Fatalf("%s at %d: ReadMembers = %+v, %v; want ErrMembers", what, i, got, err)
			}
		}
	}
	for name, bad := range map[string]*Members{
		"a host comes twice": {Secret: []byte("x"), Hosts: []Host{{ID: "a"}, {ID: "a"}}},
		"a host has no id":   {Secret: []byte("x"), Hosts: []Host{{Name: "n"}}},
		"there is no secret": {Hosts: []Host{{ID: "a"}}},
	} {
		if err := root.WriteMembers("llama", bad); !errors.Is(err, ErrMembers) {
			t.Errorf("%s: WriteMembers = %v; want ErrMembers", name, err)
		}
	}
}

func TestRemove(t *testing.T) {
	root := atRoot(t)
	must.Do(t, root.WriteMembers("llama", &Members{}))
	must.Do(t, os.MkdirAll(filepath.Join(string(root), "llama", "step-1"), 0o700))
	must.Do(t, os.MkdirAll(filepath.Join(string(root), "other"), 0o700))
	if got := must.Get(root.Runs())(t); !reflect.DeepEqual(got, []string{"llama", "other"}) {
		t.Errorf("Runs = %q", got)
	}
	must.Do(t, root.Remove("llama"))
	must.Do(t, root.Remove("llama"))
	if got := must.Get(root.Runs())(t); !reflect.DeepEqual(got, []string{"other"}) {
		t.Errorf("Runs after Remove = %q", got)
	}
	if left := must.Get(os.ReadDir(string(root)))(t); len(left) != 1 {
		t.Errorf("there is more left: %v", left)
	}
}

func FuzzMembers(f *testing.F) {
	f.Add([]byte(`{"crc32c":"00000000","members":{}}`))
	f.Add([]byte(`{"crc32c":"2e0bd9a7","members":{"version":1,"secret":"eA==","hosts":[{"id":"a","name":"n","addresses":["h:1"]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeMembers(data)
		if (m == nil) == (err == nil) {
			t.Fatalf("decodeMembers = %v, %v", m, err)
		}
		if err == nil && m.check() != nil {
			t.Fatalf("decodeMembers accepts %+v", m)
		}
	})
}
