package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/cairn-ckpt/cairn/internal/size"
)

// output prints the results and remarks of a command.
type output struct {
	out, err io.Writer
	json     bool
	quiet    bool
	verbose  bool
	// color is set if stdout shows colours, errColor if stderr does.
	color, errColor bool
	// bars is set if progress bars may be drawn on stderr.
	bars bool
	// width is the width of the terminal. Zero: stdout is not a terminal, its
	// width is unknown, or lines may have any length.
	width int
	// wide is set if lines may have any length.
	wide bool
}

func addOutputFlags(f *pflag.FlagSet) {
	f.Bool("json", false, "print the result as JSON")
	f.BoolP("quiet", "q", false, "print results only: no progress, no remarks (see 'cairn help output')")
	f.BoolP("verbose", "v", false, "log the phases of saves, loads and conversions, and requests that are repeated, to stderr")
	f.Bool("wide", false, "print each row of a table on one line, whatever the width of the terminal")
	f.Bool("no-color", false, "print without colours (so does a NO_COLOR in the environment)")
}

// outputOf returns the output of a command according to its flags.
func outputOf(cmd *cobra.Command) *output {
	flag := func(name string) bool {
		v, err := cmd.Flags().GetBool(name)
		return err == nil && v
	}
	o := &output{out: cmd.OutOrStdout(), err: cmd.ErrOrStderr(), json: flag("json"), quiet: flag("quiet"), verbose: flag("verbose"), wide: flag("wide")}
	plain := flag("no-color") || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb"
	o.color, o.errColor = !plain && isTerminal(o.out), !plain && isTerminal(o.err)
	o.bars = !o.json && !o.quiet && !o.verbose && isTerminal(o.err) && os.Getenv("TERM") != "dumb"
	if !o.wide {
		o.width = terminalWidth(o.out)
	}
	return o
}

// logger returns a logger to stderr if --verbose is set, and otherwise nil.
func (o *output) logger() *slog.Logger {
	if !o.verbose {
		return nil
	}
	return slog.New(slog.NewTextHandler(o.err, nil))
}

// storeLogger returns the logger of stores. Without --verbose it shows only long waits, and
// not even these with --quiet or --json.
func (o *output) storeLogger() *slog.Logger {
	if o.verbose || o.quiet || o.json {
		return o.logger()
	}
	return slog.New(&waits{say: o.warn})
}

func (o *output) encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// result prints v as JSON if that is wanted, and calls human otherwise. It
// returns the error of stdout.
func (o *output) result(v any, human func()) error {
	if o.json {
		return o.encode(o.out, v)
	}
	human()
	if s, ok := o.out.(*sink); ok {
		return s.err
	}
	return nil
}

// printf prints to stdout, which keeps the first error.
func (o *output) printf(format string, args ...any) { fmt.Fprintf(o.out, format, args...) }

// remark prints to stdout unless --quiet is set.
func (o *output) remark(format string, args ...any) {
	if !o.quiet {
		o.printf(format, args...)
	}
}

// warn prints a line to stderr unless --quiet is set.
func (o *output) warn(format string, args ...any) {
	if !o.quiet {
		fmt.Fprintf(o.err, format+"\n", args...)
	}
}

func (o *output) good(s string) string { return paint(o.color, "32", s) }
func (o *output) bold(s string) string { return paint(o.color, "1", s) }

// bad is for stderr.
func (o *output) bad(s string) string { return paint(o.errColor, "31", s) }

func paint(on bool, code, s string) string {
	if !on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// clean quotes text from a checkpoint if it could disturb a terminal or a table.
func clean(s string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if !strings.ContainsFunc(s, odd) {
		return s
	}
	return strconv.Quote(s)
}

// oneLine joins the lines of a message.
func oneLine(s string) string {
	var parts []string
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			parts = append(parts, strings.ReplaceAll(line, "\t", "  "))
		}
	}
	return strings.Join(parts, "; ")
}

// rows is a table. Columns with a heading that begins with ">" are aligned to the
// right. Every cell is printed in full: a table that is too wide for the terminal
// takes more lines.
type rows struct {
	right []bool
	cells [][]string
	plain bool // without headings
}

func newRows(headings ...string) *rows {
	r := &rows{right: make([]bool, len(headings))}
	for i, h := range headings {
		headings[i], r.right[i] = strings.CutPrefix(h, ">")
	}
	r.cells = append(r.cells, headings)
	return r
}

// newPlainRows returns a table without headings, which is printed the same at any
// width.
func newPlainRows(columns int) *rows { return &rows{right: make([]bool, columns), plain: true} }

// add adds a row with a cell for each heading. An empty cell is shown as a dash.
func (r *rows) add(cells ...string) {
	for i, c := range cells {
		if c == "" {
			cells[i] = "-"
		}
	}
	r.cells = append(r.cells, cells)
}

func (o *output) table(r *rows) { r.print(o.out, "", o.width) }

// leastFirst is the smallest width of the first column on a line with other
// columns.
const leastFirst = 12

// print writes the table, with indent before every line. If width is zero, there
// is no limit. If the table is wider than width, long cells of the first column
// get a line of their own. If the other columns are still too wide, each row
// becomes a record.
func (r *rows) print(w io.Writer, indent string, width int) {
	width -= utf8.RuneCountInString(indent)
	over := r.excess(width)
	switch first := r.column(0) - over; {
	case r.plain || width <= 0 || over <= 0:
		r.lines(w, indent, r.column(0))
	case first >= leastFirst && !r.right[0]:
		r.lines(w, indent, first)
	default:
		r.records(w, indent, width)
	}
}

// lines writes a line for each row. A cell of the first column that is wider than
// first is on a line of its own above it.
func (r *rows) lines(w io.Writer, indent string, first int) {
	widths := make([]int, len(r.right))
	for col := range widths {
		widths[col] = r.column(col)
	}
	widths[0] = first
	var line []byte
	for _, row := range r.cells {
		if utf8.RuneCountInString(row[0]) > first {
			fmt.Fprintf(w, "%s%s\n", indent, row[0])
			row = append([]string{""}, row[1:]...)
		}
		line = append(line[:0], indent...)
		for col, cell := range row {
			pad := strings.Repeat(" ", widths[col]-utf8.RuneCountInString(cell)+gap)
			if r.right[col] {
				line = append(append(append(line, pad[gap:]...), cell...), pad[:gap]...)
			} else {
				line = append(append(line, cell...), pad...)
			}
		}
		w.Write(append(bytes.TrimRight(line, " "), '\n'))
	}
}

// records writes each row as its first cell and, indented below it, the other
// cells with their headings, as many on a line as fit. It leaves dashes out.
func (r *rows) records(w io.Writer, indent string, width int) {
	headings := r.cells[0]
	for _, row := range r.cells[1:] {
		first := row[0]
		if r.right[0] {
			first = headings[0] + " " + first
		}
		fmt.Fprintf(w, "%s%s\n", indent, first)
		inner := indent + strings.Repeat(" ", len(first)-len(strings.TrimLeft(first, " "))+4)
		line := ""
		for col, cell := range row[1:] {
			if cell == "-" {
				continue
			}
			field := headings[col+1] + " " + cell
			if line != "" && utf8.RuneCountInString(inner+line+field)+gap > width {
				fmt.Fprintf(w, "%s%s\n", inner, line)
				line = ""
			}
			if line != "" {
				line += strings.Repeat(" ", gap)
			}
			line += field
		}
		if line != "" {
			fmt.Fprintf(w, "%s%s\n", inner, line)
		}
	}
}

// gap is the distance between two columns.
const gap = 2

func (r *rows) column(col int) int {
	width := 0
	for _, row := range r.cells {
		width = max(width, utf8.RuneCountInString(row[col]))
	}
	return width
}

// excess returns by how much the table is wider than width.
func (r *rows) excess(width int) int {
	total := gap * (len(r.right) - 1)
	for col := range r.right {
		total += r.column(col)
	}
	return total - width
}

// shorten cuts a value that is longer than n characters. Names are never cut.
func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return strings.TrimRight(string(r[:n-1]), " ") + "…"
	}
	return s
}

// formatBytes prints a number of bytes, such as "1.5 GiB".
func formatBytes(n int64) string { return size.Format(float64(n)) }

func formatRate(perSecond float64) string { return size.Format(perSecond) + "/s" }

// formatSeconds prints a duration with about three digits.
func formatSeconds(s float64) string {
	switch {
	case s < 0.0009995:
		return fmt.Sprintf("%.0f µs", s*1e6)
	case s < 0.00995:
		return fmt.Sprintf("%.1f ms", s*1000)
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 100:
		return fmt.Sprintf("%.2f s", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// formatCount prints a large number: 1234567 is "1.23 M".
func formatCount(n int64) string {
	if n > -1000 && n < 1000 {
		return strconv.FormatInt(n, 10)
	}
	v, unit := float64(n)/1000, 0
	for ; math.Abs(v) >= 1000 && unit < 3; unit++ {
		v /= 1000
	}
	return fmt.Sprintf("%.2f %c", v, "kMGT"[unit])
}

func formatShape(shape []int64) string {
	parts := make([]string, len(shape))
	for i, n := range shape {
		parts[i] = strconv.FormatInt(n, 10)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// plural prints a count with its noun, with an s unless the count is one.
func plural[N int | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// sizeFlag is a flag that takes a size.
type sizeFlag int64

func (f *sizeFlag) Type() string { return "size" }

func (f *sizeFlag) String() string {
	return strings.NewReplacer(" ", "", ".0", "").Replace(formatBytes(int64(*f)))
}

func (f *sizeFlag) Set(s string) error {
	n, err := size.Parse(s)
	*f = sizeFlag(n)
	return err
}

// progress shows the number of bytes that were moved. A nil progress shows
// nothing.
type progress struct {
	p   *mpb.Progress
	bar *mpb.Bar
}

// withProgress calls fn and shows the number of bytes that fn counts with moved.
func (o *output) withProgress(label string, total int64, fn func(moved func(bytes int64)) error) error {
	bar := o.progress(label, total)
	defer bar.done()
	return fn(bar.add)
}

// withPlanned calls fn and shows the number of bytes that fn counts with moved, of the total
// that it passes to planned before.
func (o *output) withPlanned(label string, fn func(planned, moved func(bytes int64)) error) error {
	var bar *progress
	defer func() { bar.done() }()
	return fn(func(total int64) { bar = o.progress(label, total) }, func(n int64) { bar.add(n) })
}

// progress begins a bar for total bytes, or an unknown number if total is zero.
// It returns nil if the output shows no bars. The caller must call done.
func (o *output) progress(label string, total int64) *progress {
	if !o.bars {
		return nil
	}
	start := time.Now()
	p := mpb.New(mpb.WithOutput(o.err), mpb.WithWidth(40))
	bar := p.New(total, mpb.BarStyle().Lbound("[").Filler("=").Tip(">").Padding(" ").Rbound("]"),
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(label, decor.WCSyncSpaceR)),
		mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
			return describeProgress(s.Current, s.Total, time.Since(start))
		})),
	)
	return &progress{p: p, bar: bar}
}

// describeProgress describes the number of bytes that were moved, the rate, and
// the remaining time. A total of zero is unknown.
func describeProgress(current, total int64, elapsed time.Duration) string {
	rate := float64(current) / max(elapsed.Seconds(), 1e-3)
	text := formatBytes(current)
	if total > 0 {
		text += " of " + formatBytes(total)
	}
	if current == 0 {
		return text
	}
	text += "  " + formatRate(rate)
	if left := total - current; left > 0 {
		text += "  " + time.Duration(float64(left)/rate*float64(time.Second)).Round(time.Second).String() + " left"
	}
	return text
}

// add counts bytes. It is safe for concurrent use.
func (p *progress) add(bytes int64) {
	if p != nil {
		p.bar.IncrInt64(bytes)
	}
}

func (p *progress) done() {
	if p != nil {
		p.bar.Abort(true)
		p.p.Wait()
	}
}

// sink is a writer that keeps its first error, so that a failed print is never
// taken for a success.
type sink struct {
	w   io.Writer
	err error
}

// Write implements [io.Writer]. After an error it writes nothing.
func (s *sink) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.w.Write(p)
	if err != nil {
		s.err = fmt.Errorf("print: %w", err)
	}
	return n, s.err
}

// terminal returns the file behind w if it is a terminal.
func terminal(w io.Writer) (*os.File, bool) {
	if s, ok := w.(*sink); ok {
		w = s.w
	}
	f, ok := w.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

func isTerminal(w io.Writer) bool {
	_, ok := terminal(w)
	return ok
}

// terminalWidth returns the number of columns of w, or zero if w is not a
// terminal or its width is unknown.
func terminalWidth(w io.Writer) int {
	f, ok := terminal(w)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}
