package recipe

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// modelKey is the key of a training state below which its model usually is.
const modelKey = "model"

// ParseToward reads to-TO/FAMILY and to-TO. The Name has no From: see Toward.
func ParseToward(text string) (Name, bool) {
	rest, ok := strings.CutPrefix(text, "to-")
	n, valid := ParseName("any-to-" + rest)
	n.From = ""
	return n, ok && valid
}

// Toward returns the steps from a checkpoint with these names to a form of its family, such as "hf". The names
// tell the form that it starts from, also if the model lies below the key "model" of a training state: then the
// first step takes it out. If no recipe knows the family, names of Hugging Face are taken as they are. The
// error wraps ErrUnknown if the names tell no form.
func Toward(names []string, to, family string) ([]Step, error) {
	inner := below(names, modelKey)
	from, n := guess(names, family)
	within, m := guess(inner, family)
	nested := m > n
	if nested {
		from = within
	}
	if from == "" && to == "hf" && !slices.ContainsFunc(Names(), func(n Name) bool { return n.Family == family }) {
		nested = slices.ContainsFunc(inner, isOfTransformers)
		if nested || slices.ContainsFunc(names, isOfTransformers) {
			from = to
		}
	}
	if from == "" {
		return nil, fmt.Errorf("%w to-%s: no recipe for %q has the names of this checkpoint: name the recipe", ErrUnknown, to, family)
	}

	first, err := takeOut(names, nested, from)
	if err != nil || from == to {
		return []Step{first}, err
	}
	steps, err := Lookup(Name{From: from, To: to, Family: family})
	if nested {
		steps = append([]Step{first}, steps...)
	}
	return steps, err
}

// isOfTransformers reports whether a name looks like one of a model of transformers with a head.
func isOfTransformers(name string) bool {
	return strings.HasPrefix(name, "model.") || strings.HasPrefix(name, "transformer.") || strings.HasPrefix(name, "lm_head.")
}

// below returns the names below a key, without it.
func below(names []string, key string) []string {
	var out []string
	for _, name := range names {
		if rest, ok := strings.CutPrefix(name, key+"."); ok {
			out = append(out, rest)
		}
	}
	return out
}

// besideModel are the keys of a training state that are not its model.
var besideModel = []string{"optimizer", "optim", "lr_scheduler", "scheduler", "dataloader", "train_state", "step", "epoch", "rng"}

// takeOut returns the step that takes the model out of a training state: the names below the key
// "model" or, if it is not nested, all names but those of other training state. The model has the names of a form.
func takeOut(names []string, nested bool, form string) (Step, error) {
	keys := map[string]bool{}
	for _, name := range names {
		key, _, _ := strings.Cut(name, ".")
		beside := nested && (key != modelKey || name == modelKey) || !nested && slices.Contains(besideModel, key)
		if beside && !strings.ContainsFunc(key, isSpecial) { // Bind reports the others: nothing uses them
			keys[key] = true
		}
	}

	var b strings.Builder
	fmt.Fprintf(&b, "about = \"The model of a training state\"\nsides = [\"state\", %q]\n", form)
	var drop []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		drop = append(drop, strconv.Quote(key))
		if key != modelKey {
			drop = append(drop, strconv.Quote(key+".*"))
		}
	}
	if len(drop) > 0 {
		fmt.Fprintf(&b, "\n[[drop]]\nstate = [%s]\nreason = \"training state, not a weight\"\n", strings.Join(drop, ", "))
	}
	prefix := ""
	if nested {
		prefix = modelKey + "."
	}
	fmt.Fprintf(&b, "\n[[rule]]\nstate = \"%s{rest*}\"\n%s = \"{rest*}\"\n", prefix, form)

	r, err := Parse("state-to-"+form, []byte(b.String()))
	return Step{Recipe: r, From: "state"}, err
}

// isSpecial reports whether a character cannot be written into a pattern, or has a meaning there.
func isSpecial(r rune) bool { return strings.ContainsRune("*{}\uFFFD", r) || !strconv.IsPrint(r) }
