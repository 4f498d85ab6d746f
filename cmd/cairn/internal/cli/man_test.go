package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// requests are the requests of the language of man that pages may use.
var requests = regexp.MustCompile(`^\.(TH|SH) ".*"$|^\.(PP|TP|RS 4|RE|nf|fi)$`)

// Each command and topic has a page with all lines of its help and all its flags, and no
// line of a text is taken for a request.
func TestManPages(t *testing.T) {
	pages := manPages(newRootCmd())
	unescape := strings.NewReplacer(`\-`, "-", `\e`, `\`, `\(dq`, `"`, `\&`, "")
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		page, ok := pages[manName(c)+".1"]
		if ok == c.Hidden {
			t.Errorf("%s is hidden: %v, and has a page: %v", c.CommandPath(), c.Hidden, ok)
		}
		if c.Hidden {
			return
		}
		plain := unescape.Replace(page)
		for line := range strings.Lines(c.Long + "\n" + c.Example) {
			if !strings.Contains(plain, strings.TrimSpace(line)) {
				t.Errorf("the page of %s lacks the line %q", c.CommandPath(), line)
			}
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(plain, "--"+f.Name) {
				t.Errorf("the page of %s lacks --%s", c.CommandPath(), f.Name)
			}
		})
		for line := range strings.Lines(page) {
			line = strings.TrimSuffix(line, "\n")
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !requests.MatchString(line) {
				t.Errorf("the page of %s has the request %q", c.CommandPath(), line)
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCmd())
}

func TestManWritesPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man", "man1")
	code, stdout, stderr := execute(t, "man", dir)
	page, err := os.ReadFile(filepath.Join(dir, "cairn-bench-io.1"))
	if code != 0 || err != nil || !strings.HasPrefix(string(page), `.TH "CAIRN\-BENCH\-IO" "1"`) {
		t.Fatalf("cairn man = %d, %q, %q; the page is %.100q, %v", code, stdout, stderr, page, err)
	}
	// A formatter, if there is one, prints no warnings, and does not fill tables.
	if _, err := exec.LookPath("groff"); err == nil {
		out, err := exec.Command("groff", "-man", "-Tascii", "-ww", "-z", filepath.Join(dir, "cairn-clean.1")).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("groff: %v: %s", err, out)
		}
	}
}
