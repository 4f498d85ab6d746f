package recipe

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// page returns the page that describes the language.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "recipes.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section is a part of a page, with its blocks of TOML.
type section struct {
	heading string
	text    string
	blocks  []string
}

// sections divides a page at its headings.
func sections(page string) []section {
	var out []section
	fence, block := "", ""
	for line := range strings.Lines(page) {
		switch {
		case fence == "" && strings.HasPrefix(line, "#"):
			out = append(out, section{heading: strings.Trim(line, "# \n")})
			continue
		case fence == "" && strings.HasPrefix(line, "```"):
			fence, block = strings.TrimSpace(line), ""
			continue
		case fence != "" && strings.TrimSpace(line) == "```":
			if s := &out[len(out)-1]; fence == "```toml" {
				s.blocks = append(s.blocks, block)
			}
			fence = ""
			continue
		case fence != "":
			block += line
			continue
		}
		out[len(out)-1].text += line
	}
	return out
}

// sectionOf returns the section with a heading.
func sectionOf(t *testing.T, heading string) section {
	t.Helper()
	for _, s := range sections(page(t)) {
		if s.heading == heading {
			return s
		}
	}
	t.Fatalf("the page has no section %s", heading)
	return section{}
}

const newModel = "A recipe for a new model in ten minutes"

// TestDocs parses every recipe of the page. A fragment is completed by the definitions that
// it refers to.
func TestDocs(t *testing.T) {
	const (
		sides = "sides = [\"hf\", \"mine\"]\n"
		rule  = "\n[[rule]]\nhf = \"w\"\nmine = \"w\"\n"
	)
	around := map[string][2]string{ // by the heading of the section
		"The language":      {},
		"Header":            {"", rule},
		"Variables":         {sides, rule},
		"Names":             {sides + "[variables]\nlayers = 2\n", "\n[[rule]]\nhf = \"l.{i}.{e}.{p}\"\nmine = \"m.{i}.{e}.{p}\"\n"},
		"Layouts":           {"sides = [\"hf\", \"mine\"]\n", ""},
		"Quantised weights": {},
		"Products":          {},
		"Keys of rules":     {sides + "[variables]\nlayers = 2\n", "\n[[rule]]\nhf = \"model.layers.{layers + j}.w\"\nmine = \"mtp.{j}.w\"\n"},
	}
	stack := [2]string{"sides = [\"hf\", \"megatron\"]\n[variables]\nstacked = true\n", "\n[[rule]]\nhf = \"l.{i}.w\"\nmegatron = \"m.{i}.w\"\n"}
	seen := map[string]bool{}
	for _, s := range sections(page(t)) {
		if s.heading == newModel {
			continue // see TestDocsNewModel
		}
		for i, block := range s.blocks {
			a, ok := around[s.heading]
			if !ok {
				t.Errorf("section %s has a recipe that this test does not know", s.heading)
				continue
			}
			seen[s.heading] = true
			if strings.Contains(block, "[stack]") {
				a = stack
			}
			if _, err := Parse(fmt.Sprintf("%s %d", s.heading, i), []byte(a[0]+block+a[1])); err != nil {
				t.Errorf("%v:\n%s", err, block)
			}
		}
	}
	for heading := range around {
		if !seen[heading] {
			t.Errorf("section %s has no recipe", heading)
		}
	}
}

// TestDocsNewModel binds the recipe that the page makes in several steps to the model of the
// page, in both directions.
func TestDocsNewModel(t *testing.T) {
	s := sectionOf(t, newModel)
	r, err := Parse("phi3.toml", []byte(strings.Join(s.blocks, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	shapes := map[string][]int64{}
	listed := regexp.MustCompile(`(?m)^(\S+) +tensor +float32 +\[([0-9, ]+)\]`)
	for _, m := range listed.FindAllStringSubmatch(page(t), -1) {
		var shape []int64
		for n := range strings.SplitSeq(m[2], ", ") {
			size, err := strconv.ParseInt(n, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			shape = append(shape, size)
		}
		shapes[m[1]] = shape
		shapes[strings.Replace(m[1], ".0.", ".1.", 1)] = shape
	}
	shapes["model.norm.weight"] = []int64{32} // behind the dots of the list
	o := Options{Config: map[string]any{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "vocab_size": 100}}
	there, err := Bind(r, "hf", describe(shapes), o)
	if err != nil {
		t.Fatal(err)
	}
	other := map[string][]int64{"optimizer.state.exp_avg": {1}, "iteration": {1}}
	for _, x := range there.Tensors {
		other[x.Name] = x.Shape
	}
	if got := other["decoder.layers.self_attention.linear_qkv.weight"]; !slices.Equal(got, []int64{2, 64, 32}) {
		t.Errorf("linear_qkv is %v", got)
	}
	back, err := Bind(r, "megatron", describe(other), o)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]int64{}
	for _, x := range back.Tensors {
		got[x.Name] = x.Shape
	}
	if !maps.EqualFunc(got, shapes, slices.Equal) || len(back.Dropped) != 2 {
		t.Errorf("back: %v, dropped %v", got, back.Dropped)
	}
}

// describe returns the metadata of a checkpoint of float32.
func describe(shapes map[string][]int64) *meta.Metadata {
	md := &meta.Metadata{}
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		md.Entries = append(md.Entries, meta.Entry{FQN: name, Tensor: &meta.Tensor{Properties: meta.Properties{DType: tensor.Float32}, Shape: shapes[name]}})
	}
	return md
}

// TestDocsOperations parses the rules in the table of operations.
func TestDocsOperations(t *testing.T) {
	s := sectionOf(t, "Operations")
	pair := regexp.MustCompile("(?m)^\\| ([^|]+) \\| `([^`]+)` and `([^`]+)`(.*)\\|$")
	tensors := func(code string) string {
		switch {
		case strings.HasPrefix(code, `["`), strings.HasPrefix(code, `"`):
			return code
		case strings.HasPrefix(code, "["):
			return strconv.Quote("w " + code)
		}
		return strconv.Quote(code)
	}
	n := 0
	for _, m := range pair.FindAllStringSubmatch(s.text, -1) {
		n++
		text := fmt.Sprintf("sides = [\"hf\", \"mine\"]\n[variables]\nlayers = 2\nper = 2\n[[rule]]\nhf = %s\nmine = %s\n", tensors(m[2]), tensors(m[3]))
		if strings.Contains(m[4], "`reason`") {
			text += "reason = \"r\"\n"
		}
		if _, err := Parse(m[1], []byte(text)); err != nil {
			t.Errorf("%v:\n%s", err, text)
		}
	}
	if n < 12 {
		t.Errorf("%d rules", n)
	}
}

// TestDocsLimits checks the numbers in the table of limits.
func TestDocsLimits(t *testing.T) {
	s := sectionOf(t, "Limits")
	digits := func(n int) string {
		text := strconv.Itoa(n)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	}
	for _, want := range []string{
		fmt.Sprintf("| text | %d MiB |", maxText>>20),
		fmt.Sprintf("| rules; variables | %s; %s |", digits(maxRules), digits(maxVariables)),
		fmt.Sprintf("| names in all rules; names that they stand for | %s; %s |", digits(maxPatterns), digits(maxNames)),
		fmt.Sprintf("| a name | %s characters, %d holes |", digits(maxPattern), maxHoles),
		fmt.Sprintf("| the texts of a capture | %s characters |", digits(maxList)),
		fmt.Sprintf("| a block of quantised weights | %s elements |", digits(maxBlock)),
		fmt.Sprintf("| a layout | %d words, %d dimensions |", maxLayoutWords, tensor.MaxDims),
		fmt.Sprintf("| a formula | %s characters, %d levels of parentheses; %s bytes or elements in its value |", digits(maxExpression), maxDepth, digits(maxValue)),
		fmt.Sprintf("| comparisons of keys, of names and of parts, each | %s steps", digits(maxSteps)),
		fmt.Sprintf("| together %d GiB, or %d times the bytes of the source", addedBytes>>30, addedTimes),
	} {
		if !strings.Contains(s.text, want) {
			t.Errorf("the table has no %q", want)
		}
	}
}
