package cairn_test

import (
	"archive/zip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// People install a release with the go command: the program, and each package that the
// documentation names. The proxy has the files of the working tree as the release. Most of
// the other modules are in the module cache; the go command asks the usual proxy for the rest.
func TestInstall(t *testing.T) {
	t.Parallel()
	version := "v" + cairn.Version
	proxy := proxyOf(t, version)
	dir := t.TempDir()
	cache := strings.TrimSpace(goTool(t, ".", nil, "env", "GOMODCACHE"))
	usual := strings.TrimSpace(goTool(t, ".", nil, "env", "GOPROXY"))
	env := []string{
		"GOWORK=off", "GOSUMDB=off", "GOFLAGS=-modcacherw",
		"GOMODCACHE=" + filepath.Join(dir, "cache"), // an unreleased version must not stay in the real one
		"GOPROXY=file://" + proxy + ",file://" + filepath.Join(cache, "cache", "download") + "," + usual,
	}
	// -n does all but compile: that would take a minute, and "make build" does it.
	program := module + "/cmd/cairn"
	if out := goTool(t, dir, env, "install", "-n", program+"@"+version); !strings.Contains(out, "cmd/cairn") {
		t.Errorf("go install -n prints no command that builds the program:\n%s", out)
	}
	goTool(t, dir, env, "mod", "init", "example.com/user")
	get, list := []string{"get"}, []string{"list", "-deps"}
	for _, pkg := range []string{"", "/blob/s3", "/blob/gcs", "/blob/azure", "/group/etcd", "/metrics", "/platform/nn", "/convert"} {
		get, list = append(get, module+pkg+"@"+version), append(list, module+pkg)
	}
	goTool(t, dir, env, get...)
	goTool(t, dir, env, list...)
}

// proxyOf makes a module proxy with the files of the working tree as the only version of
// this module, and returns its folder.
func proxyOf(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, filepath.FromSlash(module), "@v")
	must.Do(t, os.MkdirAll(at, 0o777))
	mod := must.Get(os.ReadFile("go.mod"))(t)
	for name, content := range map[string]string{
		"list": version + "\n", version + ".info": fmt.Sprintf(`{"Version":%q}`, version), version + ".mod": string(mod),
	} {
		must.Do(t, os.WriteFile(filepath.Join(at, name), []byte(content), 0o666))
	}
	f, err := os.Create(filepath.Join(at, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := zip.NewWriter(f)
	root := os.DirFS(".")
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			b, err := fs.ReadFile(root, name)
			if err != nil {
				return err
			}
			to, err := w.CreateHeader(&zip.FileHeader{Name: module + "@" + version + "/" + name, Method: zip.Store})
			if err != nil {
				return err
			}
			_, err = to.Write(b)
			return err
		case name == ".":
			return nil
		case d.Name()[0] == '.' || name == "bin" || d.Name() == "__pycache__" || d.Name() == "node_modules": // not part of a release
			return fs.SkipDir
		}
		if _, err := fs.Stat(root, name+"/go.mod"); err == nil { // another module
			return fs.SkipDir
		}
		return nil
	})
	must.Do(t, errors.Join(err, w.Close()))
	return dir
}

// goTool runs the go command in dir, with variables added to the environment, and returns
// its output.
func goTool(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
