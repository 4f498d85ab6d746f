package view

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/megatron"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/value"
)

// Options choose a recipe and the values of its variables.
type Options struct {
	// Recipe is the name of a shipped recipe, FROM-to-TO/FAMILY, or FROM-to-TO if the
	// configuration tells the family; to-TO/FAMILY or to-TO if the names tell the form that it
	// starts from; "auto" if the names and the configuration tell all; or the path of a file.
	Recipe string
	// Reverse applies the recipe of a file from its second form to its first.
	Reverse bool
	// Config is the path of the model's config.json, or of its folder. Empty: config.json
	// of the source, if it has one.
	Config string
	// Beside are other folders that may have config.json, if the source has none. The first
	// one counts.
	Beside []blob.Store
	// ConfigValues are the contents of config.json, in place of a file.
	ConfigValues map[string]any
	// Set are values of variables. Texts such as "32" and "true" stand for the number or bool.
	Set map[string]any
}

// configFile is the name of a model's configuration.
const configFile = "config.json"

const maxConfig = 16 << 20

// Check returns an error if the recipe does not exist or is not valid. OpenAs checks the
// rest, for which it needs a checkpoint.
func (o Options) Check() error {
	n, shipped := recipe.ParseName(o.Recipe)
	to, toward := recipe.ParseToward(o.Recipe)
	switch {
	case o.Recipe == "auto":
		return nil
	case o.Recipe == megatron.Name && o.Reverse:
		return fmt.Errorf("%w: %s has one direction: Megatron reads its result", recipe.ErrUnknown, megatron.Name)
	case o.Recipe == megatron.Name:
		return nil
	case toward:
		if o.Reverse || !slices.ContainsFunc(recipe.Names(), func(m recipe.Name) bool { return m.To == to.To }) {
			return recipe.Unknown(o.Recipe)
		}
		return nil
	case !shipped || n.Family != "":
		_, err := choose(o, nil, nil)
		return err
	}

	for _, other := range recipe.Names() {
		n.Family = other.Family
		if _, err := recipe.Lookup(n); err == nil {
			return nil
		}
	}

	n.Family = ""
	_, err := recipe.Lookup(n)
	return err
}

// OpenAs opens the form of src, at the root of store, that the options ask for. It closes
// src if it returns an error.
func OpenAs(ctx context.Context, store blob.Store, src storage.Checkpoint, o Options) (storage.Checkpoint, error) {
	c, err := openAs(ctx, store, src, o)
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return c, nil
}

func openAs(ctx context.Context, store blob.Store, src storage.Checkpoint, o Options) (storage.Checkpoint, error) {
	if o.Recipe == megatron.Name {
		if err := o.Check(); err != nil {
			return nil, err
		}
	}

	config := o.ConfigValues
	if config == nil {
		var err error
		for _, s := range append([]blob.Store{store}, o.Beside...) {
			if config, err = readConfig(ctx, s, o.Config); err != nil {
				return nil, err
			}
			if config != nil {
				break
			}
		}
	}

	md, err := src.Metadata(ctx)
	if err != nil {
		return nil, err
	}

	if o.Recipe == megatron.Name {
		set := map[string]any{}
		for k, v := range o.Set {
			set[k] = valueOf(v)
		}
		return openMegatron(ctx, src, md, set)
	}

	steps, err := choose(o, md.Names(), config)
	if err != nil {
		return nil, err
	}

	set := map[string]any{}
	for k, v := range o.Set {
		set[k] = valueOf(v)
	}

	if err := checkSet(steps, set); err != nil {
		return nil, err
	}

	args, err := argsOf(ctx, src, md)
	if err != nil {
		return nil, err
	}

	c := src
	for _, s := range steps {
		if md, err = c.Metadata(ctx); err != nil {
			return nil, err
		}

		own := map[string]any{}
		for _, name := range s.Recipe.Variables() {
			if v, ok := set[name]; ok {
				own[name] = v
			}
		}

		b, err := recipe.Bind(s.Recipe, s.From, md, recipe.Options{Config: config, Args: args, Set: own})
		if err != nil {
			if c == src {
				err = o.advise(steps[0], md.Names(), config, err)
			}
			return nil, err
		}

		if c, err = Open(ctx, c, b); err != nil {
			return nil, err
		}
	}

	return c, nil
}

// argsName is the value in which Megatron keeps the arguments of the job.
const argsName = "args"

// argsOf returns the arguments of the job that wrote src, as far as recipes can use them:
// texts, numbers, true and false, and lists of them. Nil: src has no such arguments.
func argsOf(ctx context.Context, src storage.Checkpoint, md *meta.Metadata) (map[string]any, error) {
	e, ok := md.Find(argsName)
	if !ok || e.Bytes == nil || e.Bytes.Size > maxConfig {
		return nil, nil
	}

	codec, data, err := storage.ReadValue(ctx, src, e)
	if err != nil {
		return nil, plan.Named(argsName, err)
	}

	v, err := value.Decode(codec, data)
	o, ok := v.(*value.Object)
	if err != nil || !ok {
		return nil, nil // another kind of value, which this reader need not understand
	}

	args := o.Attributes()
	maps.DeleteFunc(args, func(_ string, v any) bool {
		list, ok := v.([]any)
		return !(ok && !slices.ContainsFunc(list, func(v any) bool { return !isScalar(v) }) || isScalar(v))
	})
	return args, nil
}

// isScalar reports whether recipes have values like v.
func isScalar(v any) bool {
	switch v.(type) {
	case bool, int64, float64, string:
		return true
	}
	return false
}

// checkSet returns an error if a value is set that no recipe has a variable for.
func checkSet(steps []recipe.Step, set map[string]any) error {
	known := map[string]bool{}
	var names []string
	for _, s := range steps {
		for _, v := range s.Recipe.Variables() {
			if !known[v] {
				names = append(names, v)
			}
			known[v] = true
		}
	}

	for k := range set {
		if !known[k] {
			return fmt.Errorf("the recipe has no %w %s; it has %s", recipe.ErrVariable, k, strings.Join(names, ", "))
		}
	}

	return nil
}

// valueOf returns the value that a text of the command line stands for.
func valueOf(v any) any {
	text, ok := v.(string)
	if !ok {
		return v
	}
	var out any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return text
	}
	return out
}

// readConfig reads the configuration of a model. Nil: there is none.
func readConfig(ctx context.Context, store blob.Store, path string) (map[string]any, error) {
	var text []byte
	var err error
	if path == "" {
		if text, err = blob.ReadAll(ctx, store, configFile, maxConfig); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		path = configFile
	} else {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path = filepath.Join(path, configFile)
		}
		text, err = readFile(path, maxConfig)
	}
	if err != nil {
		return nil, fmt.Errorf("the model's configuration: %w", err)
	}

	var config map[string]any
	err = json.Unmarshal(text, &config)
	if _, other := errors.AsType[*json.UnmarshalTypeError](err); other || err == nil && config == nil {
		err = errors.New("want an object of JSON")
	}
	if err != nil {
		return nil, fmt.Errorf("the model's configuration: %s: %w", path, err)
	}
	return config, nil
}

// readFile reads a file of at most that many bytes.
func readFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", path, most)
	}
	return os.ReadFile(path)
}

// choose returns the recipes that the options ask for.
func choose(o Options, names []string, config map[string]any) ([]recipe.Step, error) {
	family, _ := config["model_type"].(string)
	if o.Recipe == "auto" {
		return auto(names, family)
	}

	if n, ok := recipe.ParseToward(o.Recipe); ok {
		if n.Family = cmp.Or(n.Family, family); n.Family == "" {
			return nil, fmt.Errorf("%w %s without a family: add it, as in %s/llama, or give the model's config.json (--config)", recipe.ErrUnknown, o.Recipe, o.Recipe)
		}
		return recipe.Toward(names, n.To, n.Family)
	}

	n, shipped := recipe.ParseName(o.Recipe)
	if !shipped {
		text, err := readFile(o.Recipe, 1<<20)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("there is no such file: %w", recipe.Unknown(o.Recipe))
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", recipe.ErrUnknown, err)
		}

		r, err := recipe.Parse(o.Recipe, text)
		if err != nil {
			return nil, err
		}

		from := r.Sides[0]
		if o.Reverse {
			from = r.Sides[1]
		}
		return []recipe.Step{{Recipe: r, From: from}}, nil
	}

	if o.Reverse {
		n.From, n.To = n.To, n.From
	}

	if n.Family == "" {
		if family == "" {
			return nil, fmt.Errorf("%w %s without a family: add it, as in %s-to-%s/llama, or give the model's config.json (--config)", recipe.ErrUnknown, o.Recipe, n.From, n.To)
		}
		n.Family = family
	}
	return recipe.Lookup(n)
}

// advise replaces the error of a recipe that does not fit, if the names are not the names of
// the form that it starts from, or the configuration is of another family: it says which
// recipe to use.
func (o Options) advise(s recipe.Step, names []string, config map[string]any, err error) error {
	n, shipped := recipe.ParseName(o.Recipe)
	_, toward := recipe.ParseToward(o.Recipe)
	switch form := s.Recipe.Form(names); {
	case o.Recipe == "auto", toward, !shipped && (form == "" || form == s.From):
		return err
	case !shipped && o.Reverse:
		return wrongForm(form, o.Recipe+", backwards,", s.From, "leave out --reverse")
	case !shipped:
		return wrongForm(form, o.Recipe, s.From, "add --reverse")
	}

	without := ""
	if o.Reverse {
		n.From, n.To, without = n.To, n.From, ", without --reverse"
	}

	family, _ := config["model_type"].(string)
	n.Family = cmp.Or(n.Family, family)
	use := n
	form := cmp.Or(recipe.Guess(names, n.Family), n.From)
	if use.From = form; form == n.To {
		use.To = n.From
	}
	if family != "" {
		use.Family = family
	}

	switch steps, unknown := recipe.Lookup(use); {
	case unknown != nil || steps[0] == s:
		return err
	case form != n.From:
		return wrongForm(form, n.String(), n.From, "use "+use.String()+without)
	}

	return fmt.Errorf("config.json is of the family %s, not %s: use %s%s: %w", family, n.Family, use, without, err)
}

func wrongForm(form, name, from, advice string) error {
	return fmt.Errorf("%w: the checkpoint has the names of %s, but %s starts from %s: %s", recipe.ErrIncomplete, form, name, from, advice)
}

// choiceError reports names or a configuration that do not tell the recipe. It wraps
// recipe.ErrUnknown.
type choiceError string

func (e choiceError) Error() string { return "--recipe auto: " + string(e) }
func (e choiceError) Unwrap() error { return recipe.ErrUnknown }

// auto chooses a recipe by the family of the model and by the names of the source.
func auto(names []string, family string) ([]recipe.Step, error) {
	if family == "" {
		return nil, choiceError("the family of the model is not known: give its config.json (--config), or name the recipe")
	}

	from := recipe.Guess(names, family)
	if from == "" {
		return nil, choiceError(fmt.Sprintf("no recipe for %s has the names of this checkpoint: name the recipe", family))
	}
	if from != "hf" {
		return recipe.Lookup(recipe.Name{From: from, To: "hf", Family: family})
	}

	var targets []string
	for _, n := range recipe.Names() {
		if n.From == "hf" && n.Family == family && n.To != "maxtext" { // the format of MaxText is only read
			targets = append(targets, n.String())
		}
	}

	if len(targets) == 1 {
		n, _ := recipe.ParseName(targets[0])
		return recipe.Lookup(n)
	}
	return nil, choiceError("the checkpoint has the names of Hugging Face: use " + strings.Join(targets, " or "))
}
