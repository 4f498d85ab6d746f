package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// listing is the output of 'cairn ls --json'.
type listing struct {
	Path   string          `json:"path"`
	SaveID string          `json:"save_id"`
	Items  []*inspect.Item `json:"items"`
	Totals inspect.Totals  `json:"totals"`
	// Notes describe checks that were not possible, Missing has the names that
	// cannot be read.
	Notes   []string          `json:"notes,omitempty"`
	Missing []inspect.Missing `json:"missing,omitempty"`
}

func newLsCmd() *cobra.Command {
	var f nameFlags
	var matched []string
	var long bool
	var r recipeFlags
	cmd := newCommand("ls", wantArgs(1, 2), completeNames(1), func(cmd *cobra.Command, args []string) error {
		f.selected = append(f.selected, matched...)
		return runLs(cmd, r.context(cmd), args[0], args[1:], &f, long)
	})
	f.add(cmd)
	r.add(cmd, "list")
	cmd.Flags().StringArrayVarP(&matched, "match", "m", nil, "another name of --select, with the same `pattern`")
	cmd.Flags().BoolVarP(&long, "long", "l", false, "also show elements, files and the values of objects")
	return baseFlag(cmd)
}

func runLs(cmd *cobra.Command, ctx context.Context, path string, prefix []string, f *nameFlags, long bool) error {
	filter, err := f.filter()
	if err != nil {
		return err
	}

	return withPart(ctx, path, func(c *cairn.Checkpoint, md *meta.Metadata) error {
		entries, err := keepNames(path, md, prefix, filter)
		if err != nil {
			return err
		}
		l := listing{Path: path, SaveID: c.Info().SaveID, Notes: c.Info().Notes, Items: inspect.Items(entries)}

		pick, err := pickNames(path, md, prefix)
		if err != nil {
			return err
		}
		for _, m := range inspect.MissingNames(md) {
			if pick(m.FQN) && filter.Keep(m.FQN) {
				l.Missing = append(l.Missing, m)
			}
		}

		lost, err := c.MissingFiles(cmd.Context())
		if err != nil {
			return err
		}
		l.Missing = append(l.Missing, inspect.LostNames(entries, lost)...)

		for _, it := range l.Items {
			l.Totals.Add(it)
		}
		if long {
			if err := readObjects(cmd.Context(), c, md, l.Items); err != nil {
				return err
			}
		}

		o := outputOf(cmd)
		return o.result(l, func() { printListing(o, &l, long) })
	})
}

func printListing(o *output, l *listing, long bool) {
	if len(l.Items) > 0 {
		printItems(o, l.Items, long)
		o.remark("\n")
	}
	o.remark("%s\n", formatTotals(&l.Totals))
	for _, note := range l.Notes {
		o.remark("note: %s\n", clean(note))
	}
	if len(l.Missing) > 0 {
		o.remark("\n")
		printMissing(o, l.Missing)
	}
}

func printMissing(o *output, names []inspect.Missing) {
	t := newRows("CANNOT BE READ", "FILE", "PROBLEM")
	for _, m := range names {
		t.add(clean(m.FQN), clean(m.File), clean(m.Problem))
	}
	o.table(t)
}

func formatTotals(t *inspect.Totals) string {
	return plural(t.Tensors, "tensor") + " in " + plural(t.Chunks, "chunk") + ", " + plural(t.Objects, "object") + ", " +
		formatBytes(t.NumBytes)
}

func printItems(o *output, items []*inspect.Item, long bool) {
	headings := []string{"NAME", "KIND", "DTYPE", "SHAPE", ">CHUNKS", ">SIZE"}
	if long {
		headings = append(headings, ">ELEMENTS", ">FILES", "VALUE")
	}
	t := newRows(headings...)
	for _, it := range items {
		dtype, shape := it.DType, ""
		if it.Kind == inspect.KindTensor {
			shape = formatShape(it.Shape)
		} else if dtype = it.Type; dtype == "" {
			dtype = it.Codec
		}
		cells := []string{clean(it.FQN), it.Kind, clean(dtype), shape, strconv.Itoa(it.Chunks), formatBytes(it.NumBytes)}
		if long {
			cells = append(cells, elements(it), strconv.Itoa(it.Files), shownValue(it))
		}
		t.add(cells...)
	}
	o.table(t)
}

func elements(it *inspect.Item) string {
	if it.Kind != inspect.KindTensor {
		return ""
	}
	return strconv.FormatInt(it.Elements(), 10)
}
