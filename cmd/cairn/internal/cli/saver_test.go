package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/background/saver"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/view"
)

// The page of the messages lists the codes of errors about recipes.
func TestCodesOfRecipesAreListed(t *testing.T) {
	page := string(must.Get(os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "saver.md")))(t))
	for _, err := range []error{recipe.ErrUnknown, recipe.ErrSyntax, recipe.ErrVariable, recipe.ErrIncomplete, view.ErrCheck} {
		codes := group.NewRemoteError(err).Codes
		if len(codes) != 1 || !strings.Contains(page, "| `"+codes[0]+"` |") {
			t.Errorf("the codes of %q are %q; want one that docs/saver.md has", err, codes)
		}
	}
}

// closing is a checkpoint that notes whether it was closed.
type closing struct {
	storage.Checkpoint
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

func TestConfigurationsOfMessages(t *testing.T) {
	store := must.Get(file.Open(t.TempDir(), nil))(t)
	for _, config := range []any{3., []any{"x"}, true} {
		c := new(closing)
		_, err := openAs(context.Background(), store, c, &saver.Recipe{Name: "auto", Config: config})
		if !errors.Is(err, storage.ErrOptions) || !c.closed {
			t.Errorf("config %v: %v, and the checkpoint is closed: %t; want ErrOptions", config, err, c.closed)
		}
	}
}

// The result of a shipped recipe has a format if --to is missing.
func TestFormatOfRecipes(t *testing.T) {
	for _, c := range []struct {
		recipe  string
		reverse bool
		from    string
		want    string
	}{
		{"hf-to-titan/llama", false, formats.HF, formats.TorchDCP},
		{"hf-to-megatron", false, formats.HF, formats.TorchDCP},
		{"megatron-to-hf/llama", false, formats.TorchDCP, formats.HF},
		{"hf-to-titan/llama", true, formats.TorchDCP, formats.HF},
		{"megatron-to-titan/llama", false, formats.TorchDCP, formats.TorchDCP},
		{"auto", false, formats.HF, formats.TorchDCP},
		{"auto", false, formats.Native, formats.HF},
		{"mine.toml", false, formats.HF, ""},
		{"", false, formats.HF, ""},
	} {
		f := recipeFlags{Options: view.Options{Recipe: c.recipe, Reverse: c.reverse}}
		if got := f.format(c.from); got != c.want || got != "" && !slices.Contains(formats.Names(), got) {
			t.Errorf("--recipe %s, reverse %t, from %s: the format is %q; want %q", c.recipe, c.reverse, c.from, got, c.want)
		}
	}
}
