package plot_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/inspect/plot"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// hostileNames try to end an element, to run a script, or to break the encoding.
var hostileNames = []string{
	"", ".", "..", "<script>alert(1)</script>", `"><svg onload="x"`, "]]>", "&amp;&", "a\x00b\x1b[31m", "\xff\xfe\xed\xa0\x80", "\u202eabc\u2066", "\ufffe\uffff",
	"模型.层.0.权重", "a\nb\tc", "'--><!--", "<!DOCTYPE x>", "<?xml?>", fmt.Sprint(make([]int, 5000)),
}

// extremes are numbers that are easily mistreated.
var extremes = []float64{
	0, math.Copysign(0, -1), 1, -1, math.NaN(), math.Inf(1), math.Inf(-1), 1e308, -1e308, math.MaxFloat64, -math.MaxFloat64,
	math.SmallestNonzeroFloat64, -math.SmallestNonzeroFloat64, 5e-310, 1e-300, math.Nextafter(1, 2), 1e15, 123456.789,
}

var (
	anyName   = rapid.OneOf(rapid.SampledFrom(hostileNames), rapid.String(), rapid.StringMatching(`(model\.)?layers\.[0-9]{1,3}\.[a-z]{1,9}(\.weight)?`))
	anyFloat  = rapid.OneOf(rapid.SampledFrom(extremes), rapid.Float64())
	anyNumber = rapid.Map(anyFloat, func(v float64) inspect.Number { return inspect.Number(v) })
	anyCount  = rapid.OneOf(rapid.SampledFrom([]int64{0, 1, math.MaxInt64}), rapid.Int64Range(0, 1<<40))
)

func anyStats(t *rapid.T) inspect.TensorStats {
	out := inspect.TensorStats{
		FQN: anyName.Draw(t, "name"), DType: anyName.Draw(t, "dtype"), Shape: rapid.SliceOfN(anyCount, 0, 4).Draw(t, "shape"),
		Numbers: inspect.Numbers{
			Elements: anyCount.Draw(t, "elements"), Min: anyNumber.Draw(t, "min"), Max: anyNumber.Draw(t, "max"), Mean: anyNumber.Draw(t, "mean"),
			Std: anyNumber.Draw(t, "std"), Zeros: rapid.Int64Range(0, 9).Draw(t, "zeros"), NaN: rapid.Int64Range(0, 9).Draw(t, "nan"),
		},
	}
	if rapid.Bool().Draw(t, "histogram") {
		out.Histogram = anyHistogram(t)
	}
	return out
}

func anyHistogram(t *rapid.T) *inspect.Histogram {
	n := rapid.IntRange(0, 20).Draw(t, "buckets")
	h := &inspect.Histogram{Scale: rapid.SampledFrom([]string{inspect.ScaleLinear, inspect.ScaleLog2}).Draw(t, "scale")}
	lo, hi := anyFloat.Draw(t, "lo"), anyFloat.Draw(t, "hi")
	for i := range n + 1 {
		e := lo/2 + (hi/2-lo/2)*float64(i)/float64(max(1, n))
		h.Edges = append(h.Edges, inspect.Number(e*2))
	}
	for range n {
		h.Counts = append(h.Counts, rapid.Int64Range(0, 1<<50).Draw(t, "count"))
	}
	return h
}

func anyHeat(t *rapid.T) *inspect.Heat {
	h, w := rapid.IntRange(0, 6).Draw(t, "height"), rapid.IntRange(0, 6).Draw(t, "width")
	rows, cols := anyCount.Draw(t, "rows"), anyCount.Draw(t, "cols")
	out := &inspect.Heat{
		FQN: anyName.Draw(t, "name"), DType: "float32", Shape: []int64{rows, cols}, Index: anyName.Draw(t, "index"), Dims: [2]int{rapid.IntRange(-1, 0).Draw(t, "dim"), 1},
		Size: [2]int64{rows, cols}, Rows: [2]int64{0, rows}, Cols: [2]int64{0, cols}, Height: h, Width: w, Elements: anyCount.Draw(t, "elements"),
		Low: anyNumber.Draw(t, "low"), High: anyNumber.Draw(t, "high"), Exact: rapid.Bool().Draw(t, "exact"),
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "damaged") {
		box := func(what string) []int64 {
			return rapid.SliceOfN(rapid.OneOf(anyCount, rapid.Just(int64(-1))), 0, 2).Draw(t, what)
		}
		out.Damaged = append(out.Damaged, inspect.DamagedChunk{Chunk: i, Offsets: box("offsets"), Sizes: box("sizes"), Problem: anyName.Draw(t, "problem")})
	}
	for range h * w {
		out.Mean = append(out.Mean, anyNumber.Draw(t, "mean"))
		out.Text = append(out.Text, anyName.Draw(t, "text"))
		out.NaN, out.PosInf = append(out.NaN, rapid.Int32Range(0, 1).Draw(t, "nan")), append(out.PosInf, rapid.Int32Range(0, 1).Draw(t, "inf"))
	}
	return out
}

func anyNames(t *rapid.T) *inspect.Names {
	texts := rapid.SliceOfNDistinct(anyName, 0, 30, func(s string) string { return s }).Draw(t, "names")
	slices.Sort(texts)
	var entries []*meta.Entry
	for _, name := range texts {
		bytes := rapid.OneOf(rapid.SampledFrom([]int64{0, 1 << 55}), rapid.Int64Range(0, 1<<30)).Draw(t, "bytes")
		e := &meta.Entry{FQN: name, Bytes: &meta.Bytes{Codec: "json", Size: bytes}}
		if rapid.Bool().Draw(t, "tensor") {
			e = tensorEntry(name, tensor.Uint8, bytes)
		}
		entries = append(entries, e)
	}
	out := inspect.NewNames(entries, nil)
	for i := range out.Forms {
		if out.Forms[i].Shape != nil {
			out.Forms[i].DType = anyName.Draw(t, "dtype")
		}
	}
	for i := 1; i < len(texts); i += 7 {
		out.Tied[i] = texts[0]
	}
	return out
}

func anyShades(t *rapid.T, n *inspect.Names) *plot.Shades {
	out := &plot.Shades{Title: anyName.Draw(t, "title"), Log: rapid.Bool().Draw(t, "log"), Share: rapid.Bool().Draw(t, "share")}
	for range n.Entries {
		out.Values = append(out.Values, anyFloat.Draw(t, "value"))
		out.NaN, out.Inf = append(out.NaN, rapid.Bool().Draw(t, "nan")), append(out.Inf, rapid.Bool().Draw(t, "inf"))
	}
	return out
}

func anyShards(t *rapid.T) (*inspect.Item, []inspect.Chunk) {
	shape := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 9), rapid.Just(int64(1)<<60)), 0, 4).Draw(t, "shape")
	it := &inspect.Item{FQN: anyName.Draw(t, "name"), Kind: inspect.KindTensor, Shape: shape}
	var chunks []inspect.Chunk
	for i := range rapid.IntRange(0, 12).Draw(t, "chunks") {
		c := inspect.Chunk{Chunk: i, File: anyName.Draw(t, "file"), Inline: rapid.Bool().Draw(t, "inline")}
		if rapid.Bool().Draw(t, "ranked") {
			c.Rank = new(rapid.IntRange(0, 20).Draw(t, "rank"))
		}
		for range shape {
			c.Offsets, c.Sizes = append(c.Offsets, rapid.Int64Range(0, 9).Draw(t, "offset")), append(c.Sizes, anyCount.Draw(t, "size"))
		}
		chunks = append(chunks, c)
	}
	return it, chunks
}

func anyTimeline(t *rapid.T) *inspect.Timeline {
	out := &inspect.Timeline{SaveID: anyName.Draw(t, "id"), Seconds: anyFloat.Draw(t, "seconds")}
	for i := range rapid.IntRange(0, 80).Draw(t, "ranks") {
		r := inspect.RankTimeline{Rank: i, Busy: anyFloat.Draw(t, "busy"), Slow: rapid.Bool().Draw(t, "slow")}
		for range rapid.IntRange(0, 3).Draw(t, "phases") {
			r.Phases = append(r.Phases, inspect.RankPhase{Name: anyName.Draw(t, "phase"), Start: anyFloat.Draw(t, "start"), End: anyFloat.Draw(t, "end"), Bytes: anyCount.Draw(t, "bytes")})
		}
		out.Ranks = append(out.Ranks, r)
	}
	for range rapid.IntRange(0, 5).Draw(t, "totals") {
		out.Phases = append(out.Phases, inspect.PhaseTotals{Name: anyName.Draw(t, "phase"), Median: anyFloat.Draw(t, "median"), Slowest: anyFloat.Draw(t, "slowest"), Bytes: anyCount.Draw(t, "bytes")})
	}
	return out
}

func anyCompared(t *rapid.T) []inspect.Compared {
	statuses := []string{inspect.StatusIdentical, inspect.StatusDifferent, inspect.StatusMissing, inspect.StatusExtra, inspect.StatusClose, inspect.StatusMatching}
	var out []inspect.Compared
	for range rapid.IntRange(0, 30).Draw(t, "items") {
		c := inspect.Compared{FQN: anyName.Draw(t, "name"), Status: rapid.SampledFrom(statuses).Draw(t, "status"), A: item(4)}
		if rapid.Bool().Draw(t, "values") {
			c.Values = &inspect.ValueDifference{MaxAbs: anyNumber.Draw(t, "abs"), Differing: anyCount.Draw(t, "differing"), Elements: anyCount.Draw(t, "elements")}
			if rapid.Bool().Draw(t, "change") {
				c.Values.Change = &inspect.Change{RelL2: anyNumber.Draw(t, "change"), Cosine: anyNumber.Draw(t, "cosine")}
			}
		}
		out = append(out, c)
	}
	return out
}

func anyLines(t *rapid.T) *plot.Picture {
	steps := rapid.SliceOfN(anyFloat, 0, 6).Draw(t, "steps")
	names := rapid.SliceOfN(anyName, 0, 20).Draw(t, "names")
	var values [][]float64
	for range names {
		values = append(values, rapid.SliceOfN(anyFloat, 0, 6).Draw(t, "values"))
	}
	return plot.Lines(anyName.Draw(t, "title"), anyName.Draw(t, "label"), steps, names, values)
}

func anyMetrics(t *rapid.T) *plot.Picture {
	var values [][]float64
	names := rapid.SliceOfN(anyName, 0, 9).Draw(t, "names")
	for range names {
		values = append(values, rapid.SliceOfN(anyFloat, 0, 6).Draw(t, "values"))
	}
	return plot.Metrics(rapid.SliceOfN(anyFloat, 0, 6).Draw(t, "steps"), names, values)
}

func anyOverTime(t *rapid.T) *plot.Picture {
	any := anyHistogram(t)
	h := &inspect.HistogramOverTime{Scale: any.Scale, Edges: any.Edges}
	labels := rapid.SliceOfN(anyName, 0, 5).Draw(t, "labels")
	for range labels {
		h.Shares = append(h.Shares, rapid.SliceOfN(rapid.Float32Range(0, 1), 0, 20).Draw(t, "shares"))
	}
	return plot.HistogramOverTime(anyName.Draw(t, "title"), labels, h)
}

func anyRun(t *rapid.T) []plot.RunPoint {
	var out []plot.RunPoint
	for range rapid.IntRange(0, 9).Draw(t, "points") {
		p := plot.RunPoint{Label: anyName.Draw(t, "label"), Local: anyCount.Draw(t, "local"), Remote: anyCount.Draw(t, "remote"), LocalRemoved: rapid.Bool().Draw(t, "removed")}
		if rapid.IntRange(0, 9).Draw(t, "stepped") > 0 {
			p.Step = new(rapid.OneOf(rapid.Int64Range(0, 9), rapid.SampledFrom([]int64{math.MaxInt64, math.MinInt64})).Draw(t, "step"))
		}
		out = append(out, p)
	}
	return out
}

// Whatever a checkpoint contains, pictures are well-formed and coordinates are finite.
func TestPicturesOfAnythingAreWellFormed(t *testing.T) {
	kinds := map[string]func(t *rapid.T) *plot.Picture{
		"histogram": func(t *rapid.T) *plot.Picture { s := anyStats(t); return plot.Histogram(&s) },
		"logarithmic": func(t *rapid.T) *plot.Picture {
			s := anyStats(t)
			return plot.Histogram(&s, plot.LogCounts)
		},
		"overlay": func(t *rapid.T) *plot.Picture {
			return plot.Overlay(&inspect.Overlaid{A: anyStats(t), B: anyStats(t)}, anyName.Draw(t, "a"), anyName.Draw(t, "b"))
		},
		"heat":     func(t *rapid.T) *plot.Picture { return plot.Heat(anyHeat(t)) },
		"sizes":    func(t *rapid.T) *plot.Picture { return plot.Sizes(anyNames(t)) },
		"shades":   func(t *rapid.T) *plot.Picture { n := anyNames(t); return plot.Sizes(n, plot.Shaded(anyShades(t, n))) },
		"shards":   func(t *rapid.T) *plot.Picture { it, c := anyShards(t); return plot.Shards(it, c) },
		"timeline": func(t *rapid.T) *plot.Picture { return plot.Timeline(anyTimeline(t)) },
		"changes":  func(t *rapid.T) *plot.Picture { return plot.Changes(anyCompared(t)) },
		"lines":    anyLines,
		"metrics":  anyMetrics,
		"overtime": anyOverTime,
		"run":      func(t *rapid.T) *plot.Picture { return plot.Run(anyRun(t)) },
	}
	for name, draw := range kinds {
		t.Run(name, func(t *testing.T) {
			deep.Check(t, func(t *rapid.T) { check(t, name, draw(t)) })
		})
	}
}
