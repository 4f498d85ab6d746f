package cli

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/web"
)

// plotResult is the output of 'cairn plot --json'.
type plotResult struct {
	Path     string `json:"path"`
	What     string `json:"what"`
	Name     string `json:"name,omitempty"`
	Other    string `json:"other,omitempty"`
	Output   string `json:"output"`
	NumBytes int64  `json:"bytes"`
}

// plotParams are the parameters of charts that flags set, by the flag. The value of a flag
// without a value of its own is the value of the parameter.
var plotParams = map[string]struct{ param, value string }{
	"buckets":    {"buckets", ""},
	"log2":       {"scale", "log2"},
	"log-counts": {"counts", "log"},
	"rows":       {"rows", ""},
	"cols":       {"cols", ""},
	"show":       {"show", ""},
	"select":     {"select", ""},
	"of":         {"of", ""},
	"color":      {"color", ""},
	"measure":    {"measure", ""},
	"name-a":     {"name_a", ""},
	"recipe":     {"recipe", "1"},
}

type plotFlags struct {
	siteFlags
	output string
	html   bool
}

func newPlotCmd() *cobra.Command {
	var f plotFlags
	cmd := newCommand("plot", wantArgs(2, 4), completePlot, func(cmd *cobra.Command, args []string) error {
		return f.run(cmd, args)
	})
	fl := cmd.Flags()
	fl.StringVarP(&f.output, "output", "o", "", "write this `file`, named .svg, or .html with --html; - is stdout")
	fl.BoolVar(&f.html, "html", false, "write a page with the chart, which needs no other file")
	fl.Int("buckets", 100, "histogram, overlay: the `number` of buckets")
	fl.Bool("log2", false, "histogram, history, overlay: count magnitudes by powers of two")
	fl.Bool("log-counts", false, "histogram, overlay: a logarithmic axis of counts; history: logarithmic colours")
	fl.String("rows", "", "heatmap: only these rows, as `LO:HI`")
	fl.String("cols", "", "heatmap: only these columns, as `LO:HI`")
	fl.String("show", "mean", "heatmap: this `number` of the elements of a cell: mean, min, max, or abs for the largest magnitude")
	fl.String("select", "", "changes, metrics, steps: only names that match this `pattern`")
	fl.String("of", "weights", "changes, sizes, steps: only these `names`: weights, optimizer or all; all if --select is given")
	fl.String("color", "dtype", "sizes: colour names by `what`: dtype; norm, the root mean square of the elements; or nan, the share of NaN and infinities")
	fl.String("measure", "", "steps, history: draw this `number`: l2, mean, abs_max, nan_share; history also: std, histogram")
	fl.String("name-a", "", "overlay: the `name` of the tensor in PATH, if OTHER has another one")
	f.siteFlags.add(cmd)
	completeFlag(cmd, choices("mean", "min", "max", "abs"), "show")
	completeFlag(cmd, choices("dtype", "norm", "nan"), "color")
	completeFlag(cmd, choices("l2", "mean", "abs_max", "nan_share", "std", "histogram"), "measure")
	completeFlag(cmd, choices("weights", "optimizer", "all"), "of")
	completeFlag(cmd, completeFlagNames, "select", "name-a")
	_ = cmd.MarkFlagFilename("output", "svg", "html") // fails for unknown flags only
	return baseFlag(cmd)
}

// completePlot completes a path, a chart, and the further arguments of the chart.
func completePlot(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) == 1:
		return web.Pictures(), cobra.ShellCompDirectiveNoFileComp
	case len(args) == 2 && slices.Contains(web.PictureParams(args[1]), "name"):
		return namesIn(cmd, args[0], word)
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// plotJob is one call of 'cairn plot'.
type plotJob struct {
	cmd  *cobra.Command
	o    *output
	site *web.Site
	res  plotResult
	q    url.Values
}

func (f *plotFlags) run(cmd *cobra.Command, args []string) error {
	j := &plotJob{cmd: cmd, o: outputOf(cmd), res: plotResult{Path: blob.Redact(args[0]), What: args[1], Output: cmp.Or(f.output, "-")}}
	paths, err := j.parse(args)
	if err != nil {
		return err
	}
	if err := j.checkOutput(f.ending()); err != nil {
		return err
	}

	f.single = !slices.Contains([]string{"history", "metrics", "run", "steps"}, j.res.What)
	if j.site, err = f.siteFlags.open(cmd, paths); err != nil {
		return err
	}
	defer j.site.Close()

	chart, err := j.draw()
	if err != nil {
		return j.explain(err)
	}
	if f.html {
		chart = chartPage(j.res.What+" of "+j.res.Path, chart)
	}

	if j.res.Output == "-" {
		_, err := j.o.out.Write(chart)
		return err
	}

	for _, p := range paths {
		if err := notItself(p, j.res.Output); err != nil {
			return err
		}
	}

	write := func(w io.Writer) error { _, err := w.Write(chart); return err }
	if err := writeFile(cmd.Context(), j.res.Output, write); err != nil {
		return err
	}

	j.res.NumBytes = int64(len(chart))
	return j.o.result(j.res, func() { j.o.remark("%s holds the chart\n", clean(j.res.Output)) })
}

// ending is how the name of the file ends.
func (f *plotFlags) ending() string {
	if f.html {
		return ".html"
	}
	return ".svg"
}

// chartPage returns a page with a chart. Its policy forbids scripts and other files.
func chartPage(title string, svg []byte) []byte {
	const page = `<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<style>body { margin: 16px } svg { max-width: 100%%; height: auto }</style></head><body>
%s</body></html>
`
	return fmt.Appendf(nil, page, html.EscapeString(clean(title)), svg)
}

// parse sets the question from arguments and flags, and returns the paths of the site.
func (j *plotJob) parse(args []string) ([]string, error) {
	params, rest := web.PictureParams(j.res.What), args[2:]
	if !slices.Contains(web.Pictures(), j.res.What) {
		return nil, usagef(j.cmd, "there is no chart %q: known are %s", j.res.What, strings.Join(web.Pictures(), ", "))
	}

	j.q = url.Values{"what": {j.res.What}}
	take := func(what string) (string, error) {
		if len(rest) == 0 {
			return "", usagef(j.cmd, "%s needs %s: usage is 'cairn plot %s'", j.res.What, what, plotUsage(j.res.What))
		}
		first := rest[0]
		rest = rest[1:]
		return first, nil
	}

	paths := args[:1:1]
	var err error
	if slices.Contains(params, "name") {
		if j.res.Name, err = take("the name of a tensor"); err != nil {
			return nil, err
		}
		j.q.Set("name", j.res.Name)
	}

	switch {
	case slices.Contains(params, "b"):
		other, err := take("a second checkpoint")
		if err != nil {
			return nil, err
		}
		paths, j.res.Other = append(paths, other), blob.Redact(other)
		j.q.Set("a", web.Self)
		j.q.Set("b", "@1")
	case slices.Contains(params, "c"):
		j.q.Set("c", web.Self)
	}

	if len(rest) > 0 {
		return nil, usagef(j.cmd, "too many arguments: usage is 'cairn plot %s'", plotUsage(j.res.What))
	}
	return paths, j.flags(params)
}

// plotUsage returns the arguments of a chart.
func plotUsage(what string) string {
	params := web.PictureParams(what)
	out := "PATH " + what
	if slices.Contains(params, "name") {
		out += " NAME"
		if slices.Contains(params, "index") {
			out += "[INDEX]"
		}
	}
	if slices.Contains(params, "b") {
		out += " OTHER"
	}
	return out
}

// flags adds the flags to the question. A flag of another chart is an error.
func (j *plotJob) flags(params []string) error {
	var err error
	j.cmd.Flags().Visit(func(fl *pflag.Flag) {
		p, ok := plotParams[fl.Name]
		switch {
		case !ok || err != nil || fl.Value.Type() == "bool" && fl.Value.String() == "false":
		case !slices.Contains(params, p.param):
			err = usagef(j.cmd, "--%s is not for %s, but for %s", fl.Name, j.res.What, strings.Join(chartsWith(p.param), " and "))
		default:
			j.q.Set(p.param, cmp.Or(p.value, fl.Value.String()))
		}
	})
	return err
}

// chartsWith returns the charts that have a parameter.
func chartsWith(param string) []string {
	return slices.DeleteFunc(web.Pictures(), func(what string) bool { return !slices.Contains(web.PictureParams(what), param) })
}

func (j *plotJob) checkOutput(ending string) error {
	name := j.res.Output
	switch {
	case name == "-" && j.o.json:
		return usagef(j.cmd, "--json and the chart both want stdout: give -o FILE")
	case name == "-" && isTerminal(j.o.out):
		return usagef(j.cmd, "the chart would go to stdout, which is a terminal: give -o FILE")
	case name == "-" || strings.EqualFold(filepath.Ext(name), ending) || isDevice(name):
	case ending == ".html":
		return usagef(j.cmd, "-o %s: --html writes a page, so the name must end with .html", name)
	case strings.EqualFold(filepath.Ext(name), ".html"):
		return usagef(j.cmd, "-o %s: charts are SVG: add --html for a page with the chart", name)
	default:
		return withHint(usagef(j.cmd, "-o %s: charts are SVG, so the name must end with .svg", name), "the page of 'cairn web' saves charts as PNG too")
	}
	return nil
}

// isDevice reports whether a file is neither a regular file nor a folder, such as a FIFO.
func isDevice(name string) bool {
	fi, err := os.Stat(name)
	return err == nil && !fi.Mode().IsRegular() && !fi.IsDir()
}

// notItself returns an error if out is the checkpoint at an address, or leads by a link to one
// of its files.
func notItself(address, out string) error {
	path, local, err := file.LocalPath(address)
	if err != nil || !local {
		return nil // the site has opened it
	}
	a, err := os.Stat(path)
	b, outErr := os.Stat(out)
	if err == nil && outErr == nil && os.SameFile(a, b) {
		return withHint(fmt.Errorf("%s is the checkpoint %s", out, address), "write to another file")
	}
	if dir, err := filepath.EvalSymlinks(path); err == nil && outErr == nil && b.Mode().IsRegular() {
		target, err := filepath.EvalSymlinks(out)
		if err == nil && filepath.Dir(target) == dir && !strings.EqualFold(filepath.Ext(target), filepath.Ext(out)) {
			return withHint(fmt.Errorf("%s leads to %s, a file of the checkpoint %s", out, target, address), "write to another file")
		}
	}
	return nil
}

// draw draws the chart, with a progress bar.
func (j *plotJob) draw() ([]byte, error) {
	svg, err := j.plot()
	name, index := j.res.Name, ""
	if at := strings.LastIndexByte(name, '['); at > 0 && strings.HasSuffix(name, "]") {
		name, index = name[:at], name[at+1:len(name)-1]
	}
	// A name that contains brackets itself takes precedence, as in 'cairn cat'.
	e, ok := errors.AsType[*web.Error](err)
	if !ok || e.Kind != web.KindNotFound || index == "" || !slices.Contains(web.PictureParams(j.res.What), "index") {
		return svg, err
	}
	j.q.Set("name", name)
	j.q.Set("index", index)
	return j.plot()
}

func (j *plotJob) plot() ([]byte, error) {
	var bar *progress
	defer func() { bar.done() }()
	var before int64
	return j.site.Plot(j.cmd.Context(), j.q, func(done, total int64, _ string) {
		if bar == nil && total > 0 {
			bar = j.o.progress("plot", total)
		}
		bar.add(max(0, done-before))
		before = max(before, done)
	})
}

// explain returns an error of a site for the command line.
func (j *plotJob) explain(err error) error {
	e, ok := errors.AsType[*web.Error](err)
	switch {
	case errors.Is(err, inspect.ErrIndex):
		return usagef(j.cmd, "%v", err)
	case !ok:
		return err
	case e.Kind == web.KindBadRequest && e.Err != nil:
		return withHint(e.Err, e.Hint)
	case e.Kind == web.KindBadRequest:
		return usagef(j.cmd, "%s", flagMessage(e.Message))
	case e.Kind == web.KindNotFound && j.res.Name != "":
		return withHint(fmt.Errorf("%s: %w", strconv.Quote(j.q.Get("name")), cairn.ErrMissing), "'cairn ls "+quoteArg(j.res.Path)+"' lists the names")
	case e.Kind == web.KindNoRun:
		return usagef(j.cmd, "%s is a checkpoint: %s needs the folder of a run, in which the checkpoints are", j.res.Path, j.res.What)
	}
	return err
}

// flagMessage names the flag in a message about a parameter: "rows=..." is "--rows ...".
func flagMessage(text string) string {
	for name, p := range plotParams {
		if rest, ok := strings.CutPrefix(text, p.param+"="); ok {
			return "--" + name + " " + rest
		}
	}
	return text
}
