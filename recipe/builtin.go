package recipe

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
)

//go:embed recipes pieces
var shipped embed.FS

// ErrUnknown reports the name of a recipe that does not exist.
var ErrUnknown = errors.New("unknown recipe")

// Shipped returns the recipes that are part of cairn, in order of their names, such as
// "megatron/dense".
var Shipped = sync.OnceValue(func() []*Recipe {
	var out []*Recipe
	err := fs.WalkDir(shipped, "recipes", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := readShipped(name)
		if err != nil {
			return err
		}
		short := strings.TrimSuffix(strings.TrimPrefix(name, "recipes/"), path.Ext(name))
		r, err := Parse(short, text)
		out = append(out, r)
		return err
	})
	if err != nil {
		panic(err) // a test parses them all
	}
	return out
})

// readShipped returns the text of a shipped recipe or piece. A line "#include PIECE OLD=NEW …"
// stands for a piece that several recipes have, with NEW instead of each OLD.
func readShipped(name string) ([]byte, error) {
	text, err := shipped.ReadFile(name)
	if err != nil {
		return nil, err
	}

	var out []byte
	for line := range bytes.Lines(text) {
		words, found := bytes.CutPrefix(line, []byte("#include "))
		if !found {
			out = append(out, line...)
			continue
		}

		fields := strings.Fields(string(words))
		piece, err := readShipped("pieces/" + fields[0] + ".toml")
		if err != nil {
			return nil, err
		}

		for _, f := range fields[1:] {
			from, to, _ := strings.Cut(f, "=")
			piece = bytes.ReplaceAll(piece, []byte(from), []byte(to))
		}

		out = append(out, piece...)
	}

	return out, nil
}

// Name is the name of a shipped recipe in one direction, FROM-to-TO/FAMILY.
type Name struct{ From, To, Family string }

// String returns FROM-to-TO/FAMILY.
func (n Name) String() string { return n.From + "-to-" + n.To + "/" + n.Family }

// Names returns the names of all shipped recipes, both directions of each.
func Names() []Name {
	var out []Name
	for _, r := range Shipped() {
		for _, family := range r.Families {
			out = append(out, Name{r.Sides[0], r.Sides[1], family}, Name{r.Sides[1], r.Sides[0], family})
		}
	}
	slices.SortFunc(out, func(a, b Name) int { return strings.Compare(a.String(), b.String()) })
	return out
}

// ParseName reads FROM-to-TO/FAMILY or FROM-to-TO.
func ParseName(text string) (Name, bool) {
	forms, family, _ := strings.Cut(text, "/")
	from, to, ok := strings.Cut(forms, "-to-")
	if !ok || !identifier.MatchString(from) || !identifier.MatchString(to) || strings.ContainsAny(family, "/.") {
		return Name{}, false
	}
	return Name{from, to, family}, true
}

// Lookup returns the shipped recipes of a name, in the order in which they are applied:
// two if there is none for the two forms, but one for each to and from "hf". The error
// wraps ErrUnknown if there are none.
func Lookup(n Name) ([]Step, error) {
	if r := find(n.From, n.To, n.Family); r != nil {
		return []Step{{r, n.From}}, nil
	}
	const common = "hf"
	a, b := find(n.From, common, n.Family), find(common, n.To, n.Family)
	if a != nil && b != nil && a != b {
		return []Step{{a, n.From}, {b, common}}, nil
	}
	return nil, Unknown(strings.TrimSuffix(n.String(), "/"))
}

// Unknown returns ErrUnknown for the name of a recipe, with the names of the shipped recipes
// that are most like it.
func Unknown(name string) error {
	var all []candidate
	for _, n := range Names() {
		all = append(all, candidate{shown: n.String(), text: n.String(), shape: n.String()})
	}
	text := name
	if ext := path.Ext(name); ext != "" { // a file
		text = strings.TrimSuffix(path.Base(name), ext)
	}
	return fmt.Errorf("%w %s; the nearest are %s; docs/recipes.md has all, and says how to write one", ErrUnknown, name, strings.Join(nearest(text, text, all), ", "))
}

// Step is a recipe and the form that it starts from.
type Step struct {
	Recipe *Recipe
	From   string
}

func find(from, to, family string) *Recipe {
	for _, r := range Shipped() {
		if slices.Contains(r.Families, family) && from != to && slices.Contains(r.Sides[:], from) && slices.Contains(r.Sides[:], to) {
			return r
		}
	}
	return nil
}

// Guess returns the form of a checkpoint of that family with these names: the side of a
// shipped recipe with rules that match the most names. Empty: no rule matches a name.
func Guess(names []string, family string) string {
	form, _ := guess(names, family)
	return form
}

// guess is Guess, and returns how many names match.
func guess(names []string, family string) (form string, most int) {
	for _, r := range Shipped() {
		if !slices.Contains(r.Families, family) {
			continue
		}
		for side, of := range r.Sides {
			if n := r.matches(side, names); n > most {
				form, most = of, n
			}
		}
	}

	return form, most
}

// Form returns the form of a checkpoint with these names: the side of the recipe with rules
// that match the most names. Empty: both sides match equally many.
func (r *Recipe) Form(names []string) string {
	a, b := r.matches(0, names), r.matches(1, names)
	switch {
	case a > b:
		return r.Sides[0]
	case b > a:
		return r.Sides[1]
	}
	return ""
}

// matches returns how many of the names the rules of a side match, apart from rules that
// drop names.
func (r *Recipe) matches(side int, names []string) int {
	known, open := map[string]bool{}, map[string]bool{} // open: with parts that only variables tell
	add := func(p *pattern) {
		if s := p.openShape(); strings.Contains(s, "*") {
			open[s] = true
		} else {
			known[s] = true
		}
	}
	for _, rule := range r.rules {
		if rule.kind == dropRule {
			continue
		}
		for _, t := range rule.sides[side] {
			for _, p := range t.names {
				add(p)
				for _, s := range r.stacks { // the name of a stacked tensor
					if q, ok := p.without(s.capture); ok && s.side == side {
						add(q)
					}
				}
			}
		}
	}

	n := 0
	for _, name := range names {
		shape := nameShape(name)
		if _, ok := known[shape]; !ok {
			known[shape] = matchesAny(open, shape)
		}
		if known[shape] {
			n++
		}
	}
	return n
}

// matchesAny reports whether a name of that shape matches one of the shapes, in which a star
// stands for any characters.
func matchesAny(open map[string]bool, shape string) bool {
	for text := range open {
		if (glob{strings.Split(text, "*")}).match(shape) {
			return true
		}
	}
	return false
}
