package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/recipe/megatron"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/view"
)

// recipeFlags are the flags of commands that show a checkpoint in another form.
type recipeFlags struct {
	view.Options
	set []string
	// opened is the form that open has returned last. Nil: there is no recipe.
	opened *view.Checkpoint
}

func (f *recipeFlags) add(cmd *cobra.Command, what string) {
	fl := cmd.Flags()
	fl.StringVar(&f.Recipe, "recipe", "", what+" through this `recipe`: FROM-to-TO/FAMILY, to-TO/FAMILY, auto, or a file")
	fl.BoolVar(&f.Reverse, "reverse", false, "use the recipe backwards")
	fl.StringVar(&f.Config, "config", "", "`path` of the model's config.json (default: in the checkpoint's folder)")
	fl.StringArrayVar(&f.set, "set", nil, "`NAME=VALUE` of a variable of the recipe (repeatable)")
	completeFlag(cmd, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		out := []string{"auto"}
		out = append(out, megatron.Name)
		for _, n := range recipe.Names() {
			out = append(out, n.String())
		}
		return out, cobra.ShellCompDirectiveDefault
	}, "recipe")
}

// check returns an error if the flags are wrong, whatever the checkpoint.
func (f *recipeFlags) check(cmd *cobra.Command) error {
	if f.Recipe == "" {
		if f.Reverse || f.Config != "" || len(f.set) > 0 {
			return usagef(cmd, "--reverse, --config and --set need --recipe")
		}
		return nil
	}
	f.Set = map[string]any{}
	for _, text := range f.set {
		name, value, ok := strings.Cut(text, "=")
		if _, twice := f.Set[name]; !ok || name == "" || twice {
			return usagef(cmd, "--set %q: want NAME=VALUE, each name once", text)
		}
		f.Set[name] = value
	}
	return f.explain(cmd, f.Check())
}

// open returns the form of c, which is at the root of at, that the flags ask for, or c if
// there is no recipe. Its address was store: at itself, or the folder of a run. It closes c if
// it returns an error.
func (f *recipeFlags) open(cmd *cobra.Command, store, at blob.Store, c storage.Checkpoint) (storage.Checkpoint, error) {
	if err := f.check(cmd); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if f.Recipe == "" {
		return c, nil
	}
	o := f.Options
	o.Beside = append([]blob.Store{store}, o.Beside...)
	v, err := view.OpenAs(cmd.Context(), at, c, o)
	f.opened, _ = v.(*view.Checkpoint)
	return v, f.explain(cmd, err)
}

// format returns the format that the result of a shipped recipe usually has, if the source
// has the format from. Empty: there is no recipe, or it is a file.
func (f *recipeFlags) format(from string) string {
	n, shipped := recipe.ParseName(f.Recipe)
	if to, ok := recipe.ParseToward(f.Recipe); ok {
		n, shipped = to, true
	}
	toHF := n.To == "hf"
	if f.Reverse {
		toHF = n.From == "hf"
	}
	switch {
	case f.Recipe == megatron.Name:
		return formats.TorchDCP
	case f.Recipe == "auto":
		toHF = from != formats.HF
	case !shipped:
		return ""
	}
	if toHF {
		return formats.HF
	}
	return formats.TorchDCP
}

// explain adds a hint to an error about a recipe.
func (f *recipeFlags) explain(cmd *cobra.Command, err error) error {
	n, shipped := recipe.ParseName(f.Recipe)
	if n.Family == "" {
		shipped = false // the configuration tells the name
	}
	show := "'cairn recipes show " + f.Recipe + "'"
	switch {
	case errors.Is(err, recipe.ErrUnknown):
		return withHint(err, "'cairn recipes' lists the recipes that ship")
	case errors.Is(err, recipe.ErrSyntax):
		return withHint(err, "docs/recipes.md describes the language")
	case errors.Is(err, recipe.ErrVariable) && shipped:
		return withHint(err, show+" shows the variables of the recipe")
	case errors.Is(err, recipe.ErrIncomplete):
		hint := "'cairn ls' lists the names and shapes"
		if shipped {
			hint += ", " + show + " the rules; --recipe FILE takes a changed copy"
		}
		if name := cmd.Name(); name == "convert" || name == "merge" {
			hint = "nothing was written; " + hint
		}
		return withHint(err, hint)
	}
	return err
}

// listHint says how to list the names that the other flags are about.
func (f *recipeFlags) listHint(path string) string {
	if f.Recipe == "" {
		return listHint(path)
	}
	reverse := ""
	if f.Reverse {
		reverse = " --reverse"
	}
	return fmt.Sprintf("'cairn ls %s --recipe %s%s' lists the names of the result", quoteArg(path), quoteArg(f.Recipe), reverse)
}

type recipeKey struct{}

// context returns a context with which openCheckpoint uses the recipe.
func (f *recipeFlags) context(cmd *cobra.Command) context.Context {
	return context.WithValue(cmd.Context(), recipeKey{}, func(store, at blob.Store, c storage.Checkpoint) (storage.Checkpoint, error) {
		return f.open(cmd, store, at, c)
	})
}

// throughRecipe returns the form of a checkpoint, at the root of at, that the flags of the
// command ask for. Its address was store.
func throughRecipe(ctx context.Context, store, at blob.Store, c storage.Checkpoint) (*cairn.Checkpoint, error) {
	if open, ok := ctx.Value(recipeKey{}).(func(store, at blob.Store, c storage.Checkpoint) (storage.Checkpoint, error)); ok {
		var err error
		if c, err = open(store, at, c); err != nil {
			return nil, err
		}
		if v, ok := c.(*view.Checkpoint); ok {
			if err := v.Check(ctx); err != nil {
				return nil, errors.Join(err, c.Close())
			}
		}
	}
	return cairn.NewCheckpoint(at, c), nil
}

// recipesResult is the output of 'cairn recipes --json'.
type recipesResult struct {
	Recipes []listedRecipe `json:"recipes"`
}

// recipeText is the output of 'cairn recipes show --json'.
type recipeText struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// listedRecipe describes a recipe.
type listedRecipe struct {
	Name      string   `json:"name"`
	About     string   `json:"about"`
	Variables []string `json:"variables"`
	SHA256    string   `json:"sha256"`
}

func newRecipesCmd() *cobra.Command {
	cmd := newCommand("recipes", wantArgs(0, 0), nil, func(cmd *cobra.Command, _ []string) error {
		var list []listedRecipe
		own := megatron.Recipe()
		list = append(list, listedRecipe{own.Name, own.About, megatron.Variables, own.SHA256})
		for _, n := range recipe.Names() {
			steps, err := recipe.Lookup(n)
			if err != nil {
				return err
			}
			r := steps[0].Recipe
			list = append(list, listedRecipe{n.String(), r.About, r.Variables(), r.SHA256})
		}
		o := outputOf(cmd)
		return o.result(recipesResult{list}, func() {
			t := newRows("NAME", "ABOUT")
			for _, r := range list {
				t.add(r.Name, r.About)
			}
			o.table(t)
		})
	})
	cmd.AddCommand(newRecipesShowCmd())
	return cmd
}

func newRecipesShowCmd() *cobra.Command {
	complete := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var out []string
		out = append(out, megatron.Name)
		for _, n := range recipe.Names() {
			out = append(out, n.String())
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}

	return newCommand("recipes-show", wantArgs(1, 1), complete, func(cmd *cobra.Command, args []string) error {
		o := outputOf(cmd)
		show := func(text string) error {
			return o.result(recipeText{args[0], text}, func() { o.printf("%s", text) })
		}

		if args[0] == megatron.Name {
			return show("# " + megatron.Recipe().About + "\n# It is code, not rules: docs/recipes.md describes it.\n")
		}
		for _, r := range recipe.Shipped() { // by the name that messages have
			if r.Name == args[0] {
				return show(r.Text)
			}
		}

		n, ok := recipe.ParseName(args[0])
		if !ok {
			return new(recipeFlags).explain(cmd, recipe.Unknown(args[0]))
		}
		steps, err := recipe.Lookup(n)
		if err != nil {
			return new(recipeFlags).explain(cmd, err)
		}

		text := ""
		for i, s := range steps {
			if len(steps) > 1 {
				text += stepComment(n, i, steps)
			}
			text += s.Recipe.Text
		}
		return show(text)
	})
}

// stepComment returns the lines before the text of step i of a recipe that consists of
// several.
func stepComment(n recipe.Name, i int, steps []recipe.Step) string {
	s := steps[i]
	to, how := s.Recipe.Sides[1], "as it is"
	if to == s.From {
		to, how = s.Recipe.Sides[0], "backwards (--reverse)"
	}
	text := ""
	if i == 0 {
		text = fmt.Sprintf("# %s is %d recipes, applied one after the other. To change them, save each as a\n# file of its own, and convert in %d steps.\n#\n", n, len(steps), len(steps))
	} else {
		text = "\n"
	}
	return text + fmt.Sprintf("# Step %d of %d, from %s to %s: the recipe %s, %s.\n\n", i+1, len(steps), s.From, to, s.Recipe.Name, how)
}
