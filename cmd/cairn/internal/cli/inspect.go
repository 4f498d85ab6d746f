package cli

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// overview is the output of 'cairn inspect PATH --json'.
type overview struct {
	*inspect.Summary
	Leftovers *leftoverSummary `json:"leftovers,omitempty"`
	Tree      *inspect.Node    `json:"tree"`
}

// closeUp is the output of 'cairn inspect PATH NAME --json' for one name, and
// branch the output for everything below a name.
type closeUp struct {
	Path   string          `json:"path"`
	SaveID string          `json:"save_id"`
	Item   *inspect.Item   `json:"item"`
	Chunks []inspect.Chunk `json:"chunks"`
}

type branch struct {
	Path   string        `json:"path"`
	SaveID string        `json:"save_id"`
	Tree   *inspect.Node `json:"tree"`
}

type inspectFlags struct {
	depth    depthFlag
	files    bool
	timeline bool
	trace    string // a file
}

func newInspectCmd() *cobra.Command {
	f := inspectFlags{depth: 2}
	cmd := newCommand("inspect", wantArgs(1, 2), completeNames(1), func(cmd *cobra.Command, args []string) error {
		if f.files && len(args) == 2 {
			return usagef(cmd, "--files is about a whole checkpoint, not about one name")
		}
		if f.timeline || cmd.Flags().Changed("trace") {
			if err := f.checkTimeline(cmd, args); err != nil {
				return err
			}
			return inspectTimeline(cmd, args[0], f)
		}
		return withPart(cmd.Context(), args[0], func(c *cairn.Checkpoint, md *meta.Metadata) error {
			if len(args) == 2 {
				return inspectName(cmd, c, md, args[0], args[1], f)
			}

			s := inspect.Summarize(c, md)
			s.Path = args[0]
			if s.Step == nil {
				s.Step = inspect.StateStep(cmd.Context(), md, c.ReadBytes)
			}
			lost, err := c.MissingFiles(cmd.Context())
			if err != nil {
				return err
			}
			s.Lose(md, lost)

			v := overview{s, leftoversAt(cmd.Context(), args[0]), inspect.Tree(inspect.Items(inspect.Select(md)), "", int(f.depth))}
			if err := readObjects(cmd.Context(), c, md, treeItems(v.Tree, nil)); err != nil {
				return err
			}

			o := outputOf(cmd)
			return o.result(v, func() {
				printOverview(o, &v, f.files)
				printLeftovers(o, args[0], v.Leftovers)
			})
		})
	})

	cmd.Flags().VarP(&f.depth, "depth", "d", "show the tree of names this many levels deep, or 'all' of it")
	cmd.Flags().BoolVar(&f.files, "files", false, "show all files, however many there are")
	cmd.Flags().BoolVar(&f.timeline, "timeline", false, "show how long each rank took for each phase of the save")
	cmd.Flags().StringVar(&f.trace, "trace", "", "write the timeline to this `FILE`, as trace events for Perfetto; - is stdout")
	_ = cmd.MarkFlagFilename("trace", "json") // fails for unknown flags only
	return baseFlag(cmd)
}

// checkTimeline refuses flags and arguments that --timeline and --trace do not go with.
func (f *inspectFlags) checkTimeline(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 2:
		return usagef(cmd, "--timeline and --trace are about a whole checkpoint, not about one name")
	case f.files || cmd.Flags().Changed("depth"):
		return usagef(cmd, "--timeline and --trace show neither files nor names: leave --files and --depth out")
	case cmd.Flags().Changed("trace") && f.trace == "":
		return usagef(cmd, "--trace is empty")
	case f.trace == "-" && outputOf(cmd).json:
		return usagef(cmd, "--trace - and --json both want stdout")
	case f.trace == "-" && f.timeline:
		return usagef(cmd, "--trace - and --timeline both want stdout")
	}
	return nil
}

func inspectName(cmd *cobra.Command, c *cairn.Checkpoint, md *meta.Metadata, path, name string, f inspectFlags) error {
	o := outputOf(cmd)
	e, ok := md.Find(name)
	if !ok {
		entries, err := selectNames(path, md, []string{name})
		if err != nil {
			return err
		}
		v := branch{path, c.Info().SaveID, inspect.Tree(inspect.Items(entries), name, int(f.depth))}
		if err := readObjects(cmd.Context(), c, md, treeItems(v.Tree, nil)); err != nil {
			return err
		}
		return o.result(v, func() { printTree(o, v.Tree) })
	}
	if cmd.Flags().Changed("depth") {
		return usagef(cmd, "--depth is about a tree: there is nothing below %s", clean(name))
	}
	v := closeUp{Path: path, SaveID: c.Info().SaveID, Item: inspect.NewItem(e), Chunks: slices.Collect(inspect.Chunks(e))}
	v.Item.Tied = md.Ties()[name]
	if v.Item.Unread() {
		codec, data, err := c.ReadBytes(cmd.Context(), e)
		if err != nil {
			return err
		}
		v.Item.Decode(codec, data)
	}
	return o.result(v, func() { printCloseUp(o, &v) })
}

func printOverview(o *output, v *overview, allFiles bool) {
	t := newPlainRows(2)
	t.add("path", clean(v.Path))
	t.add("format", clean(v.Format))
	t.add("save", clean(v.SaveID))

	when, world := "", ""
	if !v.Time.IsZero() {
		when = v.Time.Format(time.RFC3339)
	}
	t.add("step", formatStep(v.Step))
	if v.WorldSize > 0 {
		world = strconv.Itoa(v.WorldSize)
	}
	t.add("time", when)
	t.add("world size", world)
	t.add("writer", clean(v.Writer))

	if len(v.Bases) > 0 {
		only := ""
		if v.StoredBytes > 0 {
			only = "; only cairn opens it"
		}
		t.add("refers to", clean(strings.Join(v.Bases, ", "))+only)
	}
	for _, k := range slices.Sorted(maps.Keys(v.Tags)) {
		t.add("tag "+clean(k), clean(v.Tags[k]))
	}
	for _, note := range v.Notes {
		t.add("note", clean(note))
	}

	t.add("contents", formatTotals(&v.Totals))
	t.add("elements", formatCount(v.Totals.Elements))
	t.add("on disk", onDisk(v.Summary))
	o.table(t)

	if len(v.DTypes) > 0 {
		o.printf("\n")
		printDTypes(o, v.DTypes)
	}
	if len(v.Tree.Children) > 0 {
		o.printf("\n")
		printTree(o, v.Tree)
	}
	if len(v.Missing) > 0 {
		o.printf("\n")
		printMissing(o, v.Missing)
	}

	o.printf("\n")
	printFiles(o, v.Files, allFiles)
}

func onDisk(s *inspect.Summary) string {
	missing := 0
	for _, f := range s.Files {
		if f.Missing {
			missing++
		}
	}
	text := formatBytes(s.FileBytes) + " in " + plural(len(s.Files)-missing, "file")
	if s.StoredBytes > 0 {
		text = formatBytes(s.StoredBytes) + "; " + text + " if it stood alone"
	}
	if missing > 0 {
		text += "; " + plural(missing, "more file") + " missing"
	}
	return text
}

// formatStep prints a step, or "" if it is unknown.
func formatStep(step *int64) string {
	if step == nil {
		return ""
	}
	return strconv.FormatInt(*step, 10)
}

func printDTypes(o *output, list []inspect.DTypeTotals) {
	t := newRows("DTYPE", ">TENSORS", ">ELEMENTS", ">SIZE")
	for _, d := range list {
		t.add(d.DType, strconv.FormatInt(d.Tensors, 10), formatCount(d.Elements), formatBytes(d.NumBytes))
	}
	o.table(t)
}

func printTree(o *output, n *inspect.Node) {
	t := newRows("TREE", ">TENSORS", ">OBJECTS", ">ELEMENTS", ">SIZE", "WHAT")
	if n.FQN != "" {
		addNode(t, n, n.FQN, 0)
		addNodes(t, n.Children, 1)
	} else {
		addNodes(t, n.Children, 0)
	}
	o.table(t)
}

func addNodes(t *rows, nodes []*inspect.Node, level int) {
	for _, n := range nodes {
		addNode(t, n, n.Name, level)
		addNodes(t, n.Children, level+1)
	}
}

func addNode(t *rows, n *inspect.Node, name string, level int) {
	what := ""
	if it := n.Item; it != nil && it.Kind == inspect.KindTensor {
		what = it.DType + " " + formatShape(it.Shape)
	} else if it != nil {
		what = strings.TrimSpace(it.Type + " " + shownValue(it))
	}
	t.add(strings.Repeat("  ", level)+clean(name), strconv.FormatInt(n.Totals.Tensors, 10), strconv.FormatInt(n.Totals.Objects, 10),
		formatCount(n.Totals.Elements), formatBytes(n.Totals.NumBytes), what)
}

func treeItems(n *inspect.Node, list []*inspect.Item) []*inspect.Item {
	if n.Item != nil {
		list = append(list, n.Item)
	}
	for _, c := range n.Children {
		list = treeItems(c, list)
	}
	return list
}

// fewFiles is the number of files that are shown by default.
const fewFiles = 16

func printFiles(o *output, files []inspect.File, showAll bool) {
	shown := files
	if !showAll && len(files) > fewFiles {
		shown = files[:fewFiles]
	}
	t := newRows("FILE", ">SIZE", ">CHUNKS", "CRC-32C")
	for _, f := range shown {
		size := formatBytes(f.Size)
		if f.Missing {
			size = "missing"
		}
		t.add(clean(f.Name), size, strconv.FormatInt(f.Chunks, 10), f.CRC32C)
	}
	o.table(t)
	if n := len(files) - len(shown); n > 0 {
		o.remark("… and %s; --files shows all\n", plural(n, "more file"))
	}
}

func printCloseUp(o *output, v *closeUp) {
	printItems(o, []*inspect.Item{v.Item}, false)
	if v.Item.Repr != "" {
		o.printf("\n%s\n", v.Item.Repr)
	}
	o.printf("\n")
	t := newRows(">CHUNK", "OFFSETS", "SIZES", "FILE", ">AT", ">LENGTH", ">CHECKSUMS")
	for _, c := range v.Chunks {
		offsets, sizes, file := "", "", clean(c.File)
		if v.Item.Kind == inspect.KindTensor {
			offsets, sizes = formatShape(c.Offsets), formatShape(c.Sizes)
		}
		if c.Inline {
			file = "(in the index)"
		}
		t.add(strconv.Itoa(c.Chunk), offsets, sizes, file, strconv.FormatInt(c.Offset, 10), strconv.FormatInt(c.Length, 10),
			strconv.Itoa(c.Checksums))
	}
	o.table(t)
}

// depthFlag is a number of levels, or -1 for all.
type depthFlag int

func (d *depthFlag) Type() string { return "levels" }

func (d *depthFlag) String() string {
	if *d < 0 {
		return "all"
	}
	return strconv.Itoa(int(*d))
}

func (d *depthFlag) Set(s string) error {
	if s == "all" {
		*d = -1
		return nil
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return errors.New("want a number of levels, or all")
	}
	*d = depthFlag(n)
	return nil
}
