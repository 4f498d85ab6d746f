package docs

import (
	"go/token"
	"regexp"
	"strings"
	"testing"
)

var (
	wordRow = regexp.MustCompile(`(?m)^\| (.+) \| (.+) \|$`)
	code    = regexp.MustCompile("`([^`]+)`")
	goName  = regexp.MustCompile(`^([a-z]+)\.([A-Z]\w*(?:\.[A-Z]\w*)?)`)
	asked   = regexp.MustCompile("`(?:\\w+\\.)?(\\w+)`")
	// glossary are words of cairn's own that pages use and a reader may not know.
	glossary = strings.Fields("arena box chunk generation item leftover record run saver stall tier tile trainer unit window")
	// required are words that readers looked for and did not find.
	required = strings.Fields("LoadItemType TensorWriteData BytesIOWriteData tensor_storage_size storage_data size_in_bytes usable is_coordinator get_platform PlatformType")
)

// The words of PyTorch and hyper_parallel have a name here, with its package, and
// everything that is named is there.
func TestWordsNameWhatIsThere(t *testing.T) {
	_, words, _ := strings.Cut(prose(t, "architecture.md"), "\n## Words\n")
	words, after, ok := strings.Cut(words, "\nIn a row with a semicolon")
	if !ok || after == "" {
		t.Fatal("architecture.md has no such section")
	}
	known, rows, of := knownNames(t), 0, map[string]bool{}
	for _, m := range wordRow.FindAllStringSubmatch(words, -1) {
		rows++
		for _, word := range asked.FindAllStringSubmatch(m[1], -1) {
			of[word[1]] = true
		}
		for _, span := range code.FindAllStringSubmatch(m[2], -1) {
			name := goName.FindStringSubmatch(span[1])
			switch {
			case name != nil && !known[name[1]][name[2]]:
				t.Errorf("%s: there is no %s.%s", m[1], name[1], name[2])
			case name == nil && token.IsExported(span[1]) && !strings.ContainsAny(span[1], "_ "):
				t.Errorf("%s: %s has no package", m[1], span[1])
			}
		}
	}
	for _, word := range required {
		if !of[word] {
			t.Errorf("the table has no row for %s", word)
		}
	}
	if rows < 80 {
		t.Errorf("the table has %d rows; the test saw too little", rows)
	}
}

func TestGlossaryHasTheWords(t *testing.T) {
	_, table, _ := strings.Cut(prose(t, "architecture.md"), "cairn also uses these words:\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, word := range glossary {
		if !strings.Contains(table, "\n| "+word+" | ") {
			t.Errorf("the glossary of architecture.md has no %s", word)
		}
	}
}
