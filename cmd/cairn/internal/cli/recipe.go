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
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/view"
)

// recipeFlags are the flags of commands that show a checkpoint in another form.
type recipeFlags struct {
	view.Options
	set []string
}

func (f *recipeFlags) add(cmd *cobra.Command, what string) {
	fl := cmd.Flags()
	fl.StringVar(&f.Recipe, "recipe", "", what+" through this `recipe`: FROM-to-TO/FAMILY, auto, or a file")
	fl.BoolVar(&f.Reverse, "reverse", false, "use the recipe backwards")
	fl.StringVar(&f.Config, "config", "", "`path` of the model's config.json (default: in the checkpoint's folder)")
	fl.StringArrayVar(&f.set, "set", nil, "`NAME=VALUE` of a variable of the recipe (repeatable)")
	completeFlag(cmd, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		out := []string{"auto"}
		for _, n := range recipe.Names() {
			out = append(out, n.String())
		}
		return out, cobra.ShellCompDirectiveDefault
	}, "recipe")
}

// open returns the form of c that the flags ask for, or c if there is no recipe. It closes
// c if it returns an error.
func (f *recipeFlags) open(cmd *cobra.Command, store blob.Store, c storage.Checkpoint) (storage.Checkpoint, error) {
	if f.Recipe == "" {
		if f.Reverse || f.Config != "" || len(f.set) > 0 {
			return nil, errors.Join(usagef(cmd, "--reverse, --config and --set need --recipe"), c.Close())
		}
		return c, nil
	}
	o := f.Options
	o.Set = map[string]any{}
	for _, text := range f.set {
		name, value, ok := strings.Cut(text, "=")
		if _, twice := o.Set[name]; !ok || name == "" || twice {
			return nil, errors.Join(usagef(cmd, "--set %q: want NAME=VALUE, each name once", text), c.Close())
		}
		o.Set[name] = value
	}
	v, err := view.OpenAs(cmd.Context(), store, c, o)
	return v, explainRecipe(err)
}

// explainRecipe adds a hint to an error about a recipe.
func explainRecipe(err error) error {
	switch {
	case errors.Is(err, recipe.ErrUnknown):
		return withHint(err, "'cairn recipes' lists the recipes that ship")
	case errors.Is(err, recipe.ErrSyntax):
		return withHint(err, "docs/recipes.md describes the language")
	case errors.Is(err, recipe.ErrVariable):
		return withHint(err, "'cairn recipes show NAME' shows the variables of a recipe")
	case errors.Is(err, recipe.ErrIncomplete):
		return withHint(err, "nothing was written; 'cairn ls' lists the names and shapes, 'cairn recipes show NAME' the rules")
	}
	return err
}

type recipeKey struct{}

// context returns a context with which openCheckpoint uses the recipe.
func (f *recipeFlags) context(cmd *cobra.Command) context.Context {
	return context.WithValue(cmd.Context(), recipeKey{}, func(store blob.Store, c storage.Checkpoint) (storage.Checkpoint, error) {
		return f.open(cmd, store, c)
	})
}

// throughRecipe returns the form of a checkpoint that the flags of the command ask for.
func throughRecipe(ctx context.Context, store blob.Store, c storage.Checkpoint) (*cairn.Checkpoint, error) {
	if open, ok := ctx.Value(recipeKey{}).(func(blob.Store, storage.Checkpoint) (storage.Checkpoint, error)); ok {
		var err error
		if c, err = open(store, c); err != nil {
			return nil, err
		}
		if v, ok := c.(*view.Checkpoint); ok {
			if err := v.Check(ctx); err != nil {
				return nil, errors.Join(err, c.Close())
			}
		}
	}
	return cairn.NewCheckpoint(store, c), nil
}

// listedRecipe is what 'cairn recipes --json' prints for each recipe.
type listedRecipe struct {
	Name      string   `json:"name"`
	About     string   `json:"about"`
	Variables []string `json:"variables"`
	SHA256    string   `json:"sha256"`
}

func newRecipesCmd() *cobra.Command {
	cmd := newCommand("recipes", wantArgs(0, 0), nil, func(cmd *cobra.Command, _ []string) error {
		var list []listedRecipe
		for _, n := range recipe.Names() {
			steps, err := recipe.Lookup(n)
			if err != nil {
				return err
			}
			r := steps[0].Recipe
			list = append(list, listedRecipe{n.String(), r.About, r.Variables(), r.SHA256})
		}
		o := outputOf(cmd)
		return o.result(list, func() {
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
		for _, n := range recipe.Names() {
			out = append(out, n.String())
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	return newCommand("recipes-show", wantArgs(1, 1), complete, func(cmd *cobra.Command, args []string) error {
		n, ok := recipe.ParseName(args[0])
		if !ok {
			return explainRecipe(fmt.Errorf("%w %q", recipe.ErrUnknown, args[0]))
		}
		steps, err := recipe.Lookup(n)
		if err != nil {
			return explainRecipe(err)
		}
		o := outputOf(cmd)
		for _, s := range steps {
			o.printf("%s", s.Recipe.Text)
		}
		return nil
	})
}
