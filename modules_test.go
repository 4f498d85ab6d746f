package cairn_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn"
)

const modulePath = "github.com/cairn-ckpt/cairn"

// The modules of this repository require each other in the version of this library, so that
// go get works as soon as the modules of a release have their tags: a program that gets one
// of them does not see its replace directives.
func TestModulesRequireThisVersion(t *testing.T) {
	files := goMods(t)
	if len(files) < 6 {
		t.Fatalf("found only %q", files)
	}
	required := regexp.MustCompile(`(?m)^\s*(?:require )?(` + regexp.QuoteMeta(modulePath) + `\S*) (v\S+)`)
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all := required.FindAllStringSubmatch(string(b), -1)
		if len(all) == 0 && name != "go.mod" {
			t.Errorf("%s requires no module of this repository", name)
		}
		for _, m := range all {
			if m[2] != "v"+cairn.Version {
				t.Errorf("%s requires %s %s; want v%s", name, m[1], m[2], cairn.Version)
			}
		}
	}
}

// goMods returns the go.mod files of the modules in go.work.
func goMods(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("go.work")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\.\S*)$`).FindAllStringSubmatch(string(b), -1) {
		out = append(out, filepath.Join(filepath.FromSlash(m[1]), "go.mod"))
	}
	return out
}

// A program outside of this repository gets the module for etcd as docs/etcd.md says, with a
// clone beside it.
func TestModuleOfEtcdFromOutside(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "etcd.md"))
	if err != nil {
		t.Fatal(err)
	}
	get := "go get " + modulePath + "/group/etcd@v" + cairn.Version
	if !strings.Contains(string(page), get+"\n") {
		t.Errorf("docs/etcd.md does not have the line %q", get)
	}
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(line ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
		cmd.Dir = dir
		// All modules that it needs are in the cache, because this repository needs them too.
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOPROXY=off", "GONOSUMDB=*")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(line, " "), err, out)
		}
	}
	run("go", "mod", "init", "outside")
	run("go", "mod", "edit", "-replace", modulePath+"="+root, "-replace", modulePath+"/group/etcd="+filepath.Join(root, "group", "etcd"))
	run(strings.Fields(get)...)
	run("go", "list", "-deps", modulePath+"/group/etcd")
}
