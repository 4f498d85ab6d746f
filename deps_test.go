package cairn_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

const module = "github.com/cairn-ckpt/cairn"

// layers has every package of the repository and the packages of the repository
// that it may import, from the bottom up: a row names only rows above it, so
// imports point one way. The root package is ".". A new package gets a row here,
// and its reason in docs/architecture.md.
var layers = []struct{ name, imports string }{
	// For tests only.
	{"internal/must", ""},
	{"internal/deep", ""},

	// Pure, or contracts: they import only each other.
	{"tensor", ""},
	{"value", "tensor"},
	{"blob", ""},
	{"internal/wire", ""},
	{"group", "internal/wire"},

	// Media, wrappers of media, and the contract as a test.
	{"blob/mem", "blob"},
	{"blob/file", "blob"},
	{"blob/fault", "blob"},
	{"blob/blobtest", "blob blob/mem"},
	{"internal/work", "blob group"},
	{"internal/crc32c", ""},
	{"blob/remote", "blob internal/crc32c internal/work"},
	{"internal/size", ""},
	{"internal/alike", ""},
	{"blob/cache", "blob blob/file internal/crc32c internal/size internal/work"},
	{"blob/hosts", "blob internal/crc32c internal/work"},
	{"blob/ram", "blob blob/file blob/hosts internal/crc32c"},
	{"blob/doctor", "blob blob/file"},
	{"internal/extent", ""},
	{"internal/segment", ""},

	// Ranks.
	{"group/grouptest", "group internal/deep"},
	{"group/inproc", "group"},
	{"group/tree", "group internal/wire"},
	{"group/tcp", "group group/tree internal/wire"},
	{"group/tcp/tcptest", "group/tcp"},
	{"platform/collective", "group internal/wire tensor"},
	{"cmd/cairn/internal/launch", ""},

	// The model of a checkpoint and the planners over it.
	{"shard", "tensor"},
	{"meta", "tensor"},
	{"plan", "internal/wire meta tensor value"},

	// Forms of the same weights.
	{"recipe/remap", "tensor"},
	{"recipe", "internal/alike meta recipe/remap tensor"},
	{"recipe/megatron", "meta recipe recipe/remap tensor"},

	// Files of others, as data.
	{"internal/safetensors", "tensor"},
	{"internal/pickle", "tensor value"},
	{"internal/torchsave", "internal/pickle tensor value"},

	// The seam to the platforms that run training code.
	{"platform", "platform/collective group plan shard tensor value"},
	{"platform/platformtest", "platform/collective group platform tensor"},

	// Formats, and the code that they share.
	{"storage", "blob internal/wire meta plan tensor"},
	{"storage/commit", "blob internal/crc32c internal/work meta plan storage tensor"},
	{"storage/reading", "blob internal/crc32c internal/work meta plan storage tensor"},
	{"storage/delta", "blob internal/crc32c internal/segment internal/wire storage"},
	{"storage/native", "blob storage/delta internal/crc32c internal/safetensors internal/wire internal/work meta plan storage storage/commit storage/reading tensor"},
	{"storage/dcpfiles", "blob internal/pickle meta plan storage storage/commit tensor value"},
	{"storage/torchfile", "blob internal/pickle internal/safetensors internal/torchsave internal/work meta plan shard storage storage/commit storage/reading tensor value"},
	{"storage/torchdcp", "blob internal/torchsave internal/work meta plan storage storage/dcpfiles storage/commit storage/reading storage/torchfile tensor value"},
	{"storage/deepspeed", "blob internal/torchsave meta storage storage/reading storage/torchfile tensor value"},
	{"storage/hf", "blob internal/safetensors internal/work meta plan storage storage/commit storage/reading tensor"},
	{"storage/slime", "blob internal/safetensors internal/work meta plan storage storage/hf storage/commit storage/reading tensor"},
	{"storage/orbax/ocdbt", "blob internal/crc32c internal/wire storage"},
	{"storage/orbax/zarr", "internal/crc32c tensor"},
	{"storage/orbax/flax", "blob"},
	{"storage/orbax", "blob internal/work meta storage storage/orbax/flax storage/orbax/ocdbt storage/orbax/zarr storage/reading tensor value"},
	{"storage/hyper", "blob internal/pickle internal/safetensors internal/torchsave internal/work meta plan shard storage storage/dcpfiles storage/commit storage/reading storage/torchfile tensor value"},
	{"storage/adapter", "blob meta plan storage tensor"},
	{"storage/formats", "blob internal/crc32c storage storage/adapter storage/deepspeed storage/delta storage/hf storage/hyper storage/native storage/orbax storage/commit storage/reading storage/slime storage/torchdcp storage/torchfile"},

	// The protocol and the front door.
	{"background/stage", "internal/extent internal/work meta plan tensor"},
	{"platform/host", "platform/collective group internal/safetensors plan platform background/stage tensor value"},
	{"protocol", "blob group internal/crc32c internal/wire internal/work meta plan storage tensor value"},
	{"transfer", "blob group internal/crc32c internal/work plan protocol storage storage/formats storage/commit"},
	{"storage/storagetest", "blob blob/fault blob/file blob/mem internal/deep internal/must meta plan protocol shard storage tensor value"},
	{"run", "blob blob/file group internal/crc32c internal/size internal/work meta storage storage/formats storage/commit transfer"},
	{"run/versions", "group plan run storage storage/formats tensor value"},
	{"background/memory", "blob blob/hosts blob/ram group internal/crc32c plan storage storage/formats storage/native tensor"},
	{"background/upload", "blob blob/file group plan storage storage/formats storage/commit transfer"},
	{"background/saver", "background/memory internal/work blob/hosts blob/ram run run/versions blob blob/file group group/tcp meta plan protocol background/stage storage storage/delta storage/formats storage/native storage/commit tensor background/upload transfer value"},
	{".", "background/memory run run/versions blob blob/ram blob/file group internal/segment internal/work meta plan protocol background/saver background/stage storage storage/delta storage/formats storage/native storage/commit tensor background/upload transfer value"},

	// Tests of the whole, and the code that they share.
	{"tests/jobtest", ". run background/saver blob blob/file group group/inproc group/tcp/tcptest internal/must shard storage tensor"},
	{"tests/background", ""},
	{"tests/deltas", ""},
	{"tests/following", ""},
	{"tests/memory", ""},
	{"tests/runs", ""},
	{"tests/saves", ""},

	// Packages above the root.
	{"inspect", "group internal/work meta plan storage tensor value"},
	{"inspect/plot", "inspect internal/size meta"},
	{"platform/autograd", "platform/collective group internal/extent platform shard tensor"},
	{"platform/nn", ". blob platform/collective group platform platform/autograd shard tensor"},
	{"web", "inspect inspect/plot meta run storage value"},
	{"storage/view", "blob inspect meta plan recipe recipe/megatron recipe/remap storage tensor value"},
	{"convert", ". blob blob/file group inspect internal/wire internal/work meta plan protocol recipe/remap shard storage storage/adapter storage/view tensor value"},
	{"cmd/cairn/internal/bench", "internal/work background/memory background/saver . blob blob/cache blob/file blob/hosts blob/ram blob/remote internal/crc32c group group/inproc run shard storage storage/native tensor"},
	{"cmd/cairn/internal/demo", ". background/memory blob blob/ram run storage storage/native blob/fault group group/inproc inspect meta plan shard tensor"},
	{"cmd/cairn/internal/cli", "background/memory background/saver . blob blob/ram blob/cache blob/doctor blob/file blob/mem convert group group/tcp inspect internal/alike internal/size internal/work cmd/cairn/internal/bench cmd/cairn/internal/demo cmd/cairn/internal/launch meta recipe recipe/megatron run storage storage/adapter storage/formats storage/hf storage/native storage/commit storage/slime storage/torchdcp storage/view tensor transfer value web"},

	// Modules of their own.
	{"blob/s3", "blob blob/cache blob/remote internal/work"},
	{"blob/azure", "blob blob/cache blob/remote internal/crc32c"},
	{"blob/gcs", "blob blob/cache blob/remote internal/crc32c internal/work"},
	{"blob/conformance", ""},
	{"group/etcd", "group group/tcp"},
	{"cmd/cairn", "blob/azure blob/gcs blob/s3 cmd/cairn/internal/cli group/etcd"},
	{"metrics", ". group/tcp protocol"},

	// Documentation that runs and tests against PyTorch. But for two programs they are
	// tests only, so no imports.
	{"examples/background", ". group/tcp background/saver shard tensor"},
	{"examples/versions", ". group/tcp background/saver shard tensor"},
	{"examples/train", ". blob platform/collective group group/tcp platform platform/autograd platform/host platform/nn background/saver shard tensor"},
	{"changelog", ""},
	{"docs", ""},
	{"docs/examples", ""},
	{"interop", ""},
	{"python", ""},
	{"tools/gotest", ""},
	{"tools/shape", ""},
	{"web/tests/make", ". blob/file group/inproc meta run shard storage storage/native tensor"},
}

// libraries lists every module that we depend on, with the packages that may
// import it outside of tests. docs/dependencies.md gives the reasons.
var libraries = map[string]string{
	"golang.org/x/sync":                                    "internal/torchsave protocol storage/adapter storage/commit storage/reading storage/view convert cmd/cairn/internal/bench inspect cmd/cairn/internal/cli internal/work",
	"golang.org/x/sys":                                     "blob/file convert cmd/cairn/internal/bench cmd/cairn/internal/cli internal/crc32c background/saver background/stage tests/memory",
	"golang.org/x/term":                                    "cmd/cairn/internal/cli",
	"github.com/klauspost/compress":                        "internal/segment storage/orbax storage/orbax/ocdbt storage/slime storage/torchdcp",
	"github.com/pelletier/go-toml/v2":                      "recipe",
	"gonum.org/v1/gonum":                                   "platform/autograd examples/train",
	"go.opentelemetry.io/otel":                             "protocol",
	"go.opentelemetry.io/otel/trace":                       "protocol",
	"github.com/spf13/cobra":                               "cmd/cairn/internal/cli",
	"github.com/spf13/pflag":                               "cmd/cairn/internal/cli",
	"github.com/vbauerster/mpb/v8":                         "cmd/cairn/internal/cli",
	"github.com/zeebo/blake3":                              "convert storage/slime",
	"github.com/zeebo/xxh3":                                "storage/delta storage/slime",
	"github.com/parquet-go/parquet-go":                     "cmd/cairn/internal/cli",
	"github.com/aws/aws-sdk-go-v2":                         "blob/s3",
	"github.com/aws/aws-sdk-go-v2/config":                  "blob/s3",
	"github.com/aws/aws-sdk-go-v2/service/s3":              "blob/s3",
	"github.com/aws/smithy-go":                             "blob/s3",
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob": "blob/azure blob/conformance",
	"github.com/Azure/azure-sdk-for-go/sdk/azcore":         "blob/azure",
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity":     "blob/azure",
	"golang.org/x/crypto/x509roots/fallback":               "cmd/cairn",
	"golang.org/x/oauth2":                                  "blob/gcs",
	"github.com/versity/versitygw":                         "blob/conformance",
	"github.com/fsouza/fake-gcs-server":                    "blob/conformance",
	"go.etcd.io/etcd/client/v3":                            "group/etcd",
	"go.etcd.io/etcd/api/v3":                               "group/etcd",
	"google.golang.org/grpc":                               "group/etcd",
	"go.uber.org/zap":                                      "group/etcd",
	"github.com/prometheus/client_golang":                  "metrics",
	"github.com/google/go-cmp":                             testSupport,
	"go.uber.org/goleak":                                   testSupport,
	"pgregory.net/rapid":                                   testSupport,
	"github.com/rogpeppe/go-internal":                      testSupport,
	"go.etcd.io/etcd/server/v3":                            testSupport,
	"github.com/prometheus/client_model":                   testSupport,
}

// testSupport are the packages that exist for tests. Every test may import them,
// and the libraries that only they may import.
const testSupport = "internal/deep blob/blobtest group/grouptest storage/storagetest tests/jobtest"

// anywhere are the libraries that weigh little; a package that imports any
// other is a leaf, which only these may import.
const (
	anywhere = "golang.org/x/sync golang.org/x/sys github.com/klauspost/compress github.com/zeebo/blake3 github.com/zeebo/xxh3 go.opentelemetry.io/otel go.opentelemetry.io/otel/trace"
	tops     = "recipe/megatron storage/view cmd/cairn/internal/cli cmd/cairn platform/nn examples/train"
)

// forbidden are names that do not describe a package.
var forbidden = []string{"util", "utils", "common", "core", "types", "pkg", "helper", "helpers", "misc"}

func TestImportsFollowTheTable(t *testing.T) {
	pkgs := must.Get(readPackages(os.DirFS(".")))(t)
	for _, v := range violations(pkgs) {
		t.Error(v)
	}
	for _, row := range layers {
		if pkgs[row.name] == nil {
			t.Errorf("the table has a row for %s, which does not exist", row.name)
		}
	}
}

// Every direct dependency has a row here and a reason in the documentation.
func TestDependenciesAreExplained(t *testing.T) {
	mod := must.Get(os.ReadFile("go.mod"))(t)
	page := must.Get(os.ReadFile("docs/dependencies.md"))(t)
	for line := range strings.Lines(string(mod)) {
		f := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(f) != 2 || !strings.HasPrefix(f[1], "v") {
			continue // an indirect one, or no requirement
		}
		if libraries[f[0]] == "" {
			t.Errorf("go.mod requires %s, which has no row in the table", f[0])
		}
	}
	for lib := range libraries {
		if !strings.Contains(string(page), "`"+lib+"`") {
			t.Errorf("docs/dependencies.md does not say why %s is there", lib)
		}
	}
}

// violations returns all that is wrong with the packages, in their order.
func violations(pkgs map[string]*sources) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(pkgs)) {
		s := pkgs[name]
		out = append(out, badNames(name, s.files)...)
		row := slices.IndexFunc(layers, func(r struct{ name, imports string }) bool { return r.name == name })
		if row < 0 {
			out = append(out, fmt.Sprintf("package %s has no row in the table of deps_test.go", name))
			continue
		}
		for _, p := range slices.Sorted(maps.Keys(s.code)) {
			if why := refuse(row, p); why != "" {
				out = append(out, fmt.Sprintf("%s imports %s: %s", name, p, why))
			}
		}
		for _, p := range slices.Sorted(maps.Keys(s.tests)) {
			if why := refuseTest(row, p); why != "" {
				out = append(out, fmt.Sprintf("a test of %s imports %s: %s", name, p, why))
			}
		}
	}
	return out
}

// refuse returns why the code of a row's package must not import p, or "".
func refuse(row int, p string) string {
	name := layers[row].name
	o, ok := own(p)
	switch {
	case !ok:
		return refuseLibrary(p, name)
	case !listed(layers[row].imports, o):
		return "the table does not allow it"
	case !below(o, row):
		return "imports point downwards only"
	case heavy(o) && !listed(tops, name):
		return "it imports a library that is to stay in a leaf"
	}
	return ""
}

// refuseTest returns why a test must not import p, or "". A test may use its own
// package, those below that, its package's own subpackages, and the packages
// and libraries that exist for tests.
func refuseTest(row int, p string) string {
	name := layers[row].name
	o, ok := own(p)
	if !ok {
		if lib, _ := library(p); libraries[lib] == testSupport {
			return ""
		}
		return refuseLibrary(p, name)
	}
	if o == name || below(o, row) || strings.HasPrefix(o, name+"/") || listed(testSupport, o) {
		return ""
	}
	return "a test looks at its own package and downwards"
}

func refuseLibrary(p, name string) string {
	lib, known := library(p)
	switch {
	case lib == "" || listed(libraries[lib], name):
		return ""
	case !known:
		return "the library has no row in the table of deps_test.go"
	}
	return "the library does not belong there"
}

// own returns the name of a package of this module.
func own(p string) (string, bool) {
	if p == module {
		return ".", true
	}
	return strings.CutPrefix(p, module+"/")
}

// library returns the module of the library that p belongs to: empty for the
// standard library, p itself if the module is not in the table.
func library(p string) (lib string, known bool) {
	if first, _, _ := strings.Cut(p, "/"); !strings.Contains(first, ".") {
		return "", false
	}
	for l := range libraries {
		if p == l || strings.HasPrefix(p, l+"/") {
			return l, true
		}
	}
	return p, false
}

func listed(list, name string) bool { return slices.Contains(strings.Fields(list), name) }

// below reports whether the package of that name stands below a row.
func below(name string, row int) bool {
	for _, r := range layers[:row] {
		if r.name == name {
			return true
		}
	}
	return false
}

// heavy reports whether the package may import a library of weight.
func heavy(name string) bool {
	for lib, users := range libraries {
		if users != testSupport && !listed(anywhere, lib) && listed(users, name) {
			return true
		}
	}
	return false
}

// badNames returns the folders and files with a forbidden name.
func badNames(name string, files []string) []string {
	var out []string
	for _, e := range strings.Split(name, "/") {
		if slices.Contains(forbidden, e) {
			out = append(out, fmt.Sprintf("package %s: %q says nothing", name, e))
		}
	}
	for _, f := range files {
		stem, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(f), ".go"), "_")
		if slices.Contains(forbidden, stem) {
			out = append(out, fmt.Sprintf("%s: %q says nothing", f, stem))
		}
	}
	return out
}

// sources are the files and imports of one folder.
type sources struct {
	files       []string
	code, tests map[string]bool
}

// readPackages reads the imports of every Go file of the module, for whatever
// system it is.
func readPackages(root fs.FS) (map[string]*sources, error) {
	out := map[string]*sources{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipFolder(root, name)
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		s := out[path.Dir(name)]
		if s == nil {
			s = &sources{code: map[string]bool{}, tests: map[string]bool{}}
			out[path.Dir(name)] = s
		}
		return s.add(name, b)
	})
	return out, err
}

// skipFolder keeps the walk out of folders that are no packages of the module.
func skipFolder(root fs.FS, name string) error {
	base := path.Base(name)
	if name == "." {
		return nil
	}
	if base == "testdata" || base == "node_modules" || base[0] == '.' || base[0] == '_' {
		return fs.SkipDir
	}
	if _, err := fs.Stat(root, path.Join(name, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func (s *sources) add(name string, src []byte) error {
	f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		return err
	}
	s.files = append(s.files, name)
	into := s.code
	if strings.HasSuffix(name, "_test.go") {
		into = s.tests
	}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		into[p] = true
	}
	return nil
}
