package view

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
)

// Options choose a recipe and the values of its variables.
type Options struct {
	// Recipe is the name of a shipped recipe, FROM-to-TO/FAMILY, or FROM-to-TO if the
	// configuration tells the family; "auto" if the names and the configuration tell all;
	// or the path of a file.
	Recipe string
	// Reverse applies the recipe of a file from its second form to its first.
	Reverse bool
	// Config is the path of the model's config.json, or of its folder. Empty: config.json
	// of the source, if it has one.
	Config string
	// Set are values of variables. Texts such as "32" and "true" stand for what they say.
	Set map[string]any
}

// configFile is the name of a model's configuration.
const configFile = "config.json"

const maxConfig = 16 << 20

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
	config, err := readConfig(ctx, store, o.Config)
	if err != nil {
		return nil, err
	}
	md, err := src.Metadata(ctx)
	if err != nil {
		return nil, err
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
		b, err := recipe.Bind(s.Recipe, s.From, md, recipe.Options{Config: config, Set: own})
		if err != nil {
			return nil, err
		}
		if c, err = Open(ctx, c, b); err != nil {
			return nil, err
		}
	}
	return c, nil
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
			return fmt.Errorf("%w: the recipe has no variable %s; it has %s", recipe.ErrVariable, k, strings.Join(names, ", "))
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
		return nil, err
	}
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
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
	n, shipped := recipe.ParseName(o.Recipe)
	if !shipped {
		text, err := readFile(o.Recipe, 1<<20)
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
			return nil, fmt.Errorf("%w: %s: name the family, as in %s-to-%s/llama, or give the model's config.json", recipe.ErrUnknown, o.Recipe, n.From, n.To)
		}
		n.Family = family
	}
	return recipe.Lookup(n)
}

// auto chooses a recipe by the family of the model and by the names of the source.
func auto(names []string, family string) ([]recipe.Step, error) {
	if family == "" {
		return nil, fmt.Errorf("%w: the family of the model is not known: give its config.json, or name the recipe", recipe.ErrUnknown)
	}
	from := recipe.Guess(names, family)
	if from == "" {
		return nil, fmt.Errorf("%w: no recipe for %s has the names of this checkpoint: name the recipe", recipe.ErrUnknown, family)
	}
	if from != "hf" {
		return recipe.Lookup(recipe.Name{From: from, To: "hf", Family: family})
	}
	var targets []string
	for _, n := range recipe.Names() {
		if n.From == "hf" && n.Family == family {
			targets = append(targets, n.String())
		}
	}
	if len(targets) == 1 {
		n, _ := recipe.ParseName(targets[0])
		return recipe.Lookup(n)
	}
	return nil, fmt.Errorf("%w: the checkpoint has the names of Hugging Face, and can become %s: name one of them", recipe.ErrUnknown, strings.Join(targets, " or "))
}
