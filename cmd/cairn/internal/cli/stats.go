package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/meta"
)

// statistics is the output of 'cairn stats --json'.
type statistics struct {
	Path   string `json:"path"`
	SaveID string `json:"save_id"`
	*inspect.StatsReport
}

type statsFlags struct {
	nameFlags
	buckets   int
	log2      bool
	sort      string
	failOnNaN bool
}

// statsOrders are the sort orders of 'cairn stats'. Names are ascending, numbers
// descending.
var statsOrders = map[string]func(a, b *inspect.TensorStats) int{
	"name":  func(a, b *inspect.TensorStats) int { return strings.Compare(a.FQN, b.FQN) },
	"size":  func(a, b *inspect.TensorStats) int { return cmp.Compare(b.NumBytes, a.NumBytes) },
	"min":   func(a, b *inspect.TensorStats) int { return cmp.Compare(b.Min, a.Min) },
	"max":   func(a, b *inspect.TensorStats) int { return cmp.Compare(b.Max, a.Max) },
	"mean":  func(a, b *inspect.TensorStats) int { return cmp.Compare(b.Mean, a.Mean) },
	"std":   func(a, b *inspect.TensorStats) int { return cmp.Compare(b.Std, a.Std) },
	"l2":    func(a, b *inspect.TensorStats) int { return cmp.Compare(b.L2, a.L2) },
	"zeros": func(a, b *inspect.TensorStats) int { return cmp.Compare(share(b), share(a)) },
	"nan":   func(a, b *inspect.TensorStats) int { return cmp.Compare(b.NonFinite(), a.NonFinite()) },
}

// share returns the fraction of a tensor's elements that are zero.
func share(t *inspect.TensorStats) float64 { return float64(t.Zeros) / float64(max(1, t.Elements)) }

func newStatsCmd() *cobra.Command {
	var f statsFlags
	orders := slices.Sorted(maps.Keys(statsOrders))
	cmd := newCommand("stats", wantArgs(1, -1), completeNames(-1), func(cmd *cobra.Command, args []string) error {
		return runStats(cmd, args, &f)
	})
	f.add(cmd)
	cmd.Flags().IntVar(&f.buckets, "histogram", 0, "also print a histogram of this many `buckets`")
	cmd.Flags().BoolVar(&f.log2, "log2", false, "make histograms of magnitudes by powers of two")
	cmd.Flags().StringVar(&f.sort, "sort", "name", "sort by this `column`, the largest number first: "+strings.Join(orders, ", "))
	cmd.Flags().BoolVar(&f.failOnNaN, "fail-on-nan", false, "end with exit code 1 if an element is NaN or infinite")
	completeFlag(cmd, choices(orders...), "sort")
	return baseFlag(cmd)
}

const maxBuckets = 1 << 16

func (f *statsFlags) check(cmd *cobra.Command) error {
	switch {
	case f.buckets < 0 || f.buckets > maxBuckets || f.buckets == 0 && cmd.Flags().Changed("histogram"):
		return usagef(cmd, "--histogram %d: want between 1 and %d buckets", f.buckets, maxBuckets)
	case f.log2 && f.buckets == 0:
		return usagef(cmd, "--log2 is about histograms: give --histogram too")
	case statsOrders[f.sort] == nil:
		return usagef(cmd, "--sort %q: want one of %s", f.sort, strings.Join(slices.Sorted(maps.Keys(statsOrders)), ", "))
	}
	return nil
}

func runStats(cmd *cobra.Command, args []string, f *statsFlags) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	return f.withEntries(cmd.Context(), args, func(c *cairn.Checkpoint, md *meta.Metadata, entries []*meta.Entry) error {
		o := outputOf(cmd)
		var bar *progress
		r, err := inspect.Stats(cmd.Context(), c, entries, &inspect.StatsOptions{
			Buckets: f.buckets, Log2: f.log2,
			Known: func(fqn string) bool {
				e, ok := md.Find(fqn)
				return ok && e.Tensor != nil
			},
			Total:    func(n int64) { bar = o.progress("stats", n) },
			Progress: func(n int64) { bar.add(n) },
		})
		bar.done()
		if err != nil {
			return err
		}
		order := statsOrders[f.sort]
		slices.SortStableFunc(r.Tensors, func(a, b inspect.TensorStats) int { return order(&a, &b) })
		v := statistics{args[0], c.Info().SaveID, r}
		if err := o.result(v, func() { printStatistics(o, r) }); err != nil {
			return err
		}
		return reportNonFinite(o, r, f.failOnNaN)
	})
}

// reportNonFinite warns of elements that are not finite, and returns an error if
// fail is set.
func reportNonFinite(o *output, r *inspect.StatsReport, fail bool) error {
	var problems []string
	if r.Totals.NonFinite > 0 {
		var names []string
		for i := range r.Tensors {
			if t := &r.Tensors[i]; t.NonFinite() > 0 {
				names = append(names, clean(t.FQN))
			}
		}
		problems = append(problems, fmt.Sprintf("%s in %s: %s", formatNonFinite(&r.Totals.Numbers), plural(r.Totals.NonFinite, "tensor"), firstNames(names)))
	}
	hint := "'cairn stats --sort nan' lists those tensors first"
	if len(r.Unread) > 0 {
		problems = append(problems, "not looked at: "+formatUnread(r.Unread))
		hint = "--select and --exclude choose what is looked at; 'cairn stats --json' lists the rest as unread"
	}
	for _, p := range problems {
		if !fail && !o.json && !o.quiet {
			fmt.Fprintf(o.err, "warning: %s\n", o.bad(p))
		}
	}
	if !fail || len(problems) == 0 {
		return nil
	}
	return withHint(errors.New(strings.Join(problems, "; ")), hint)
}

func firstNames(names []string) string {
	text := strings.Join(names[:min(len(names), 3)], ", ")
	if len(names) > 3 {
		text += ", …"
	}
	return text
}

func formatUnread(unread []inspect.Unread) string {
	var parts []string
	for _, u := range unread {
		parts = append(parts, clean(u.FQN)+" ("+clean(u.Why)+")")
	}
	return firstNames(parts)
}

// formatNonFinite prints the number of NaN and infinite elements: "3 NaN and 1
// infinite elements".
func formatNonFinite(n *inspect.Numbers) string {
	var parts []string
	if n.NaN > 0 {
		parts = append(parts, strconv.FormatInt(n.NaN, 10)+" NaN")
	}
	if inf := n.PosInf + n.NegInf; inf > 0 {
		parts = append(parts, strconv.FormatInt(inf, 10)+" infinite")
	}
	if n.NonFinite() == 1 {
		return parts[0] + " element"
	}
	return strings.Join(parts, " and ") + " elements"
}

func printStatistics(o *output, r *inspect.StatsReport) {
	if len(r.Tensors) > 0 {
		printStatsTable(o, r.Tensors)
	}
	for i := range r.Tensors {
		if t := &r.Tensors[i]; t.Histogram != nil {
			o.printf("\n%s  %s %s\n", o.bold(clean(t.FQN)), t.DType, formatShape(t.Shape))
			printHistogram(o, t.Histogram)
		}
	}
	if len(r.Tensors) > 0 {
		o.remark("\n")
	}
	t := &r.Totals
	o.remark("%s, %s elements, %s", plural(t.Tensors, "tensor"), formatCount(t.Elements), formatBytes(t.NumBytes))
	if n := int64(len(r.Unread)); n > 0 {
		o.remark(", %s not looked at", plural(n, "object"))
	}
	if t.Finite() > 0 {
		o.remark("; min %s, max %s, mean %s, std %s, L2 %s", formatNumber(t.Min), formatNumber(t.Max), formatNumber(t.Mean),
			formatNumber(t.Std), formatNumber(t.L2))
	}
	o.remark("\n")
}

func printStatsTable(o *output, tensors []inspect.TensorStats) {
	t := newRows("NAME", "DTYPE", "SHAPE", ">MIN", ">MAX", ">MEAN", ">STD", ">L2", ">ZEROS", ">NAN", ">INF")
	for i := range tensors {
		s := &tensors[i]
		t.add(clean(s.FQN), s.DType, formatShape(s.Shape), formatNumber(s.Min), formatNumber(s.Max), formatNumber(s.Mean),
			formatNumber(s.Std), formatNumber(s.L2), formatShare(s.Zeros, s.Elements), formatFew(s.NaN), formatFew(s.PosInf+s.NegInf))
	}
	o.table(t)
}

// formatNumber prints a number with five digits, or "" if it is undefined.
func formatNumber(n inspect.Number) string {
	if n.None() {
		return ""
	}
	f := float64(n)
	if f-f != 0 {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return strconv.FormatFloat(f, 'g', 5, 64)
}

// formatShare prints a fraction as a percentage, or "" if it is zero.
func formatShare(n, of int64) string {
	switch {
	case n == 0:
		return ""
	case n == of:
		return "100%"
	}
	return strconv.FormatFloat(100*float64(n)/float64(of), 'g', 3, 64) + "%"
}

// formatFew prints a count, or "" if it is zero.
func formatFew(n int64) string {
	if n == 0 {
		return ""
	}
	return formatCount(n)
}

// barWidth is the length of the longest bar of a histogram.
const barWidth = 40

func printHistogram(o *output, h *inspect.Histogram) {
	most := slices.Max(h.Counts)
	r := &rows{right: []bool{true, false, true, false, true}}
	for i, n := range h.Counts {
		r.cells = append(r.cells, []string{formatEdge(h.Edges[i]), "…", formatEdge(h.Edges[i+1]), bar(n, most), formatCount(n)})
	}
	r.print(o.out, "  ", 0)
}

func formatEdge(n inspect.Number) string { return strconv.FormatFloat(float64(n), 'g', 4, 64) }

// bar draws a bar in eighths of a character. A value above zero is always
// visible.
func bar(n, most int64) string {
	eighths := int(float64(n) / float64(max(1, most)) * barWidth * 8)
	if n > 0 {
		eighths = max(1, eighths)
	}
	out := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		out += string([]rune(" ▏▎▍▌▋▊▉")[rest])
	}
	return out
}
