package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
)

// versionInfo is the output of 'cairn version --json'.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
}

func newVersionCmd() *cobra.Command {
	return newCommand("version", wantArgs(0, 0), cobra.NoFileCompletions, runVersion)
}

func runVersion(cmd *cobra.Command, _ []string) error {
	v := readVersion()
	o := outputOf(cmd)
	return o.result(v, func() { o.printf("%s\n", v) })
}

// String returns the version on one line.
func (v versionInfo) String() string {
	text := fmt.Sprintf("cairn %s %s %s/%s", v.Version, v.Go, v.OS, v.Arch)
	if v.Revision != "" {
		text += " revision " + v.Revision
	}
	if v.Modified {
		text += ", modified"
	}
	return text
}

func readVersion() versionInfo {
	v := versionInfo{Version: cairn.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
