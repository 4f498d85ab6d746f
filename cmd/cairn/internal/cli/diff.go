package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/view"
)

// difference is the output of 'cairn diff --json'.
type difference struct {
	PathA string `json:"path_a"`
	PathB string `json:"path_b"`
	*inspect.Comparison
	// DroppedA and DroppedB are the names that were not compared because the recipe drops
	// them.
	DroppedA []recipe.Dropped `json:"dropped_a,omitempty"`
	DroppedB []recipe.Dropped `json:"dropped_b,omitempty"`
}

type diffFlags struct {
	inspect.CompareOptions
	nameFlags
	rename []string
	recipe recipeFlags

	patterns *inspect.Filter
	rules    convert.Rename
	b        storage.Checkpoint // B, while it is open
}

// errTrouble reports a failed comparison. For other errors, the exit code of
// 'cairn diff' means that there are differences.
var errTrouble = errors.New("cannot compare")

func newDiffCmd() *cobra.Command {
	var f diffFlags
	cmd := newCommand("diff", wantArgs(2, 2), completePaths(2), func(cmd *cobra.Command, args []string) error {
		return trouble(runDiff(cmd, args, &f))
	})
	f.add(cmd)
	flags := cmd.Flags()
	flags.Float64Var(&f.Rtol, "rtol", 0, "tolerate a difference of this `fraction` of B")
	flags.Float64Var(&f.Atol, "atol", 0, "tolerate a difference of this `size`")
	flags.BoolVar(&f.Exact, "exact", false, "compare bits rather than numbers")
	flags.BoolVar(&f.NaNDiffers, "nan-differs", false, "count NaNs as different from each other")
	flags.BoolVar(&f.IgnoreDType, "ignore-dtype", false, "compare tensors of different dtypes as numbers")
	flags.BoolVar(&f.DescriptionsOnly, "names-only", false, "compare names, kinds, dtypes and shapes, and read no values")
	flags.BoolVar(&f.Change, "change", false, "also compare tensors as vectors: relative change and cosine")
	flags.StringArrayVar(&f.rename, "rename", nil, "rename names of A by this `rule`; may be repeated")
	f.recipe.add(cmd, "compare A")
	flags.BoolVar(&f.All, "all", false, "also list equal tensors and objects")
	flags.IntVar(&f.Limit, "limit", 0, "list at most this `number` of names (default all)")
	flags.BoolVar(&f.First, "first", false, "stop at the first name that differs")
	return baseFlag(cmd)
}

// differ returns the error for checkpoints that are not equal.
func differ(format string, args ...any) error {
	return &endError{fmt.Errorf(format, args...), exits[len(exits)-1].name, exitError}
}

// trouble reserves the exit code of differences for differences.
func trouble(err error) error {
	if _, differ := errors.AsType[*endError](err); err == nil || differ || exitOf(err).code != exitError {
		return err
	}
	return fmt.Errorf("%w: %w", errTrouble, err)
}

func (f *diffFlags) options(cmd *cobra.Command) (*inspect.CompareOptions, error) {
	o := f.CompareOptions
	switch {
	case !(o.Rtol >= 0 && o.Atol >= 0):
		return nil, usagef(cmd, "--rtol %v and --atol %v: a tolerance cannot be negative", o.Rtol, o.Atol)
	case o.Exact && (o.Rtol > 0 || o.Atol > 0 || o.NaNDiffers):
		return nil, usagef(cmd, "--exact compares bits: it does not go with --rtol, --atol and --nan-differs")
	case o.DescriptionsOnly && (o.Exact || o.Rtol > 0 || o.Atol > 0 || o.NaNDiffers || o.Change):
		return nil, usagef(cmd, "--names-only reads no values: it does not go with --rtol, --atol, --exact, --nan-differs and --change")
	case o.Limit < 0:
		return nil, usagef(cmd, "--limit %d: want zero or more", o.Limit)
	}
	var err error
	if f.patterns, err = f.filter(); err != nil {
		return nil, err
	}
	o.Keep = f.patterns.Keep
	if len(f.rename) == 0 {
		return &o, nil
	}
	if f.rules, err = convert.ParseRename(f.rename); err != nil {
		return nil, usagef(cmd, "%v", err)
	}
	extra, err := inspect.NewFilter(nil, f.excluded)
	if err != nil {
		return nil, err
	}
	o.Rename, o.KeepExtra = f.rules.Apply, extra.Keep
	return &o, nil
}

// check refuses patterns and rules that match no name, because names that were not
// compared would look equal.
func (f *diffFlags) check(pathA string, a, b *meta.Metadata) error {
	kept := 0
	for _, n := range a.Names() {
		if f.patterns.Keep(n) {
			kept++
			f.rules.Apply(n)
		}
	}
	for _, n := range b.Names() {
		if f.patterns.Keep(n) {
			kept++
		}
	}
	err := cmp.Or(f.patterns.Check(), f.rules.Check())
	if err == nil && kept == 0 && len(f.selected)+len(f.excluded) > 0 {
		err = convert.ErrEmpty
	}
	return withHint(err, f.recipe.listHint(pathA))
}

func runDiff(cmd *cobra.Command, args []string, f *diffFlags) error {
	opts, err := f.options(cmd)
	if err != nil {
		return err
	}

	ctx := cmd.Context()
	if f.recipe.Recipe != "" { // the configuration may be on either side
		if store, err := openStore(ctx, checkpointAddress(ctx, args[1])); err == nil { // otherwise, the error comes below
			f.recipe.Beside = []blob.Store{store}
		}
	}

	return withMetadata(f.recipe.context(cmd), args[0], func(a *cairn.Checkpoint, mdA *meta.Metadata) error {
		return withMetadata(f.second(ctx), args[1], func(b *cairn.Checkpoint, mdB *meta.Metadata) error {
			v := difference{PathA: args[0], PathB: args[1]}
			if err := f.dropped(cmd, &v, opts, mdB); err != nil {
				return err
			}
			if err := f.check(args[0], mdA, mdB); err != nil {
				return err
			}

			o := outputOf(cmd)
			var bar *progress
			opts.Total = func(n int64) { bar = o.progress("diff", n) }
			opts.Progress = func(n int64) { bar.add(n) }

			c, err := inspect.Compare(ctx, inspect.Side{Content: a, Metadata: mdA}, inspect.Side{Content: b, Metadata: mdB}, opts)
			bar.done()
			if err != nil {
				return err
			}
			v.Comparison = c

			if err := o.result(v, func() { printDifference(o, &v, f.Change) }); err != nil || c.Differences() == 0 && len(c.Unread) == 0 {
				return err
			}
			if c.Differences() == 0 {
				return withHint(differ("not all of it could be compared: %s", formatUnread(c.Unread)), "--select leaves names out")
			}

			err = differ("%s and %s differ in %s", args[0], args[1], plural(c.Differences(), "name"))
			if common := c.Names - c.Missing - c.Extra; common < c.Missing/8 && common < c.Extra/8 && f.recipe.Recipe == "" && len(f.rename) == 0 {
				hint := "they have few names in common: --recipe compares the forms of different frameworks, --rename changes names of A"
				if ways := c.PrefixChanges(); len(ways) > 0 {
					p := ways[0]
					hint = fmt.Sprintf("--rename %s finds %s", quoteArg(p.From+"*="+p.To+"*"), plural(int64(p.Names), "name"))
				}
				err = withHint(err, hint)
			}
			return err
		})
	})
}

// second returns a context with which openCheckpoint opens B as it is, and keeps it in f.
func (f *diffFlags) second(ctx context.Context) context.Context {
	return context.WithValue(ctx, recipeKey{}, func(_, _ blob.Store, c storage.Checkpoint) (storage.Checkpoint, error) {
		f.b = c
		return c, nil
	})
}

// dropped leaves out the names of B that the recipe would drop, such as the state of an
// optimizer: A, seen through the recipe, cannot have them. Names that are dropped as copies
// have to be copies.
func (f *diffFlags) dropped(cmd *cobra.Command, v *difference, opts *inspect.CompareOptions, mdB *meta.Metadata) error {
	through := f.recipe.opened
	if through == nil {
		return nil
	}
	dropped, copies, err := through.Binding().Drops(mdB)
	if err != nil {
		return f.recipe.explain(cmd, err)
	}
	if !opts.DescriptionsOnly {
		if err := view.CheckContents(cmd.Context(), f.b, through.Binding().Recipe, copies); err != nil {
			return fmt.Errorf("%s: %w", v.PathB, err)
		}
	}
	v.DroppedB = dropped
	v.DroppedA = droppedBy(through)
	without := map[string]bool{}
	for _, d := range v.DroppedB {
		without[d.Name] = true
	}
	keep := opts.KeepExtra
	if keep == nil {
		keep = opts.Keep
	}
	opts.KeepExtra = func(fqn string) bool { return !without[fqn] && keep(fqn) }
	return nil
}

func printDifference(o *output, v *difference, change bool) {
	c := v.Comparison
	if len(c.Items) > 0 {
		printCompared(o, c.Items, change)
		o.remark("\n")
	}
	if c.Omitted > 0 {
		o.remark("%s not listed\n", plural(c.Omitted, "more name"))
	}
	o.remark("%s\n", formatComparison(c))
	printDropped(o, "A", v.DroppedA)
	printDropped(o, "B", v.DroppedB)
}

// printDropped prints how many names of a side were not compared, for each reason.
func printDropped(o *output, side string, dropped []recipe.Dropped) {
	counts := map[string]int{}
	var reasons []string
	for _, d := range dropped {
		if counts[d.Reason]++; counts[d.Reason] == 1 {
			reasons = append(reasons, d.Reason)
		}
	}
	for _, r := range reasons {
		o.remark("not compared, because the recipe drops them: %s of %s (%s)\n", plural(counts[r], "name"), side, clean(r))
	}
}

func formatComparison(c *inspect.Comparison) string {
	var parts []string
	for _, p := range []struct {
		n    int64
		what string
	}{
		{c.Identical, "identical"}, {c.Close, "close"}, {c.Matching, "matching"}, {c.Different, "different"}, {c.Missing, "missing in B"}, {c.Extra, "extra in B"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	text := plural(c.Names, "name")
	if c.Compared < c.Names {
		text = fmt.Sprintf("%d of %s compared", c.Compared, text)
	}
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	if c.Matching > 0 {
		text += "; values were not compared"
	}
	if !c.MaxAbs.None() {
		text += fmt.Sprintf("; largest difference %s, relative %s", formatNumber(c.MaxAbs), formatNumber(c.MaxRel))
	}
	return text
}

// printCompared prints a table of names. For tensors with different elements, A
// and B are the first ones that differ. change adds the columns of tensors as vectors.
func printCompared(o *output, items []inspect.Compared, change bool) {
	heads := []string{"NAME", "STATUS", "DIFFERS", "A", "B", "AT", ">DIFFERING", ">MAX ABS", ">MAX REL"}
	if change {
		heads = append(heads, ">REL L2", ">COSINE")
	}
	t := newRows(heads...)
	for i := range items {
		c := &items[i]
		a, b := formatSide(c.A), formatSide(c.B)
		at, differing, maxAbs, maxRel := c.Where, "", "", ""
		if v := c.Values; v != nil {
			if v.First != nil {
				at = strings.ReplaceAll(formatShape(v.First.Index), " ", "")
			}
			if v.First != nil && len(c.Differs) == 1 {
				a, b = v.First.A, v.First.B
			}
			differing = fmt.Sprintf("%s of %s", formatCount(v.Differing), formatCount(v.Elements))
			maxAbs, maxRel = formatNumber(v.MaxAbs), formatNumber(v.MaxRel)
		}
		row := []string{clean(c.FQN), c.Status, strings.Join(c.Differs, ", "), a, b, clean(at), differing, maxAbs, maxRel}
		switch {
		case change && c.Values != nil && c.Values.Change != nil:
			row = append(row, formatNumber(c.Values.RelL2), formatNumber(c.Values.Cosine))
		case change:
			row = append(row, "", "")
		}
		t.add(row...)
	}
	o.table(t)
}

func formatSide(it *inspect.Item) string {
	switch {
	case it == nil:
		return ""
	case it.Kind == inspect.KindTensor:
		return it.DType + " " + formatShape(it.Shape)
	}
	return clean(shorten(cmp.Or(it.Repr, it.Type, it.Codec), 40))
}
