package plot_test

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/inspect/plot"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

var update = flag.Bool("update", false, "write the golden files anew")

// gallery is every kind of picture, with small data. The pictures are compared with the
// files in testdata.
func gallery(t testing.TB) map[string]*plot.Picture {
	return map[string]*plot.Picture{
		"histogram":        plot.Histogram(normal("model.layers.0.mlp.up_proj.weight", 40, inspect.ScaleLinear)),
		"histogram-log":    plot.Histogram(normal("model.layers.0.mlp.up_proj.weight", 40, inspect.ScaleLinear), plot.LogCounts),
		"histogram-log2":   plot.Histogram(normal("model.layers.0.mlp.up_proj.weight", 40, inspect.ScaleLog2)),
		"histogram-equal":  plot.Histogram(equal(1)),
		"histogram-empty":  plot.Histogram(&inspect.TensorStats{FQN: "a", DType: "float32", Shape: []int64{0, 4}}),
		"histogram-nan":    plot.Histogram(&inspect.TensorStats{FQN: "a", DType: "float32", Shape: []int64{4}, Numbers: inspect.Numbers{Elements: 4, NaN: 3, PosInf: 1, Min: none, Max: none}}),
		"overlay":          plot.Overlay(overlaid(), "step-100", "step-200"),
		"heatmap":          plot.Heat(waves(24, 40)),
		"heatmap-abs":      plot.Heat(waves(24, 40), plot.Show(plot.ShowAbs)),
		"heatmap-cells":    plot.Heat(cells()),
		"heatmap-damaged":  plot.Heat(damaged()),
		"heatmap-row":      plot.Heat(row()),
		"heatmap-empty":    plot.Heat(&inspect.Heat{FQN: "a", DType: "float32", Shape: []int64{0, 3}, Low: none, High: none}),
		"sizes":            plot.Sizes(llama(6), plot.About("step-100")),
		"sizes-norm":       plot.Sizes(llama(6), plot.Shaded(shades(llama(6)))),
		"sizes-empty":      plot.Sizes(inspect.NewNames(nil, nil)),
		"shards-grid":      plot.Shards(item(4096, 1024), grid([]int64{4096, 1024}, 4, 2)),
		"shards-strip":     plot.Shards(item(1000), grid([]int64{1000}, 5)),
		"shards-projected": plot.Shards(item(8, 3, 256, 64), grid([]int64{8, 3, 256, 64}, 4, 1, 2, 1)),
		"shards-files":     plot.Shards(item(64, 64), withoutRanks(grid([]int64{64, 64}, 2, 1))),
		"shards-scalar":    plot.Shards(item(), grid([]int64{})),
		"shards-object":    plot.Shards(&inspect.Item{FQN: "config", Kind: inspect.KindObject}, nil),
		"timeline":         plot.Timeline(timeline(t, 8)),
		"changes":          plot.Changes(changed(4), plot.About("step-100 → step-200")),
		"changes-none":     plot.Changes([]inspect.Compared{{FQN: "a", Status: inspect.StatusIdentical, A: item(4), B: item(4)}}),
		"lines":            plot.Lines("Norm by layer", "L2 norm", []float64{100, 200, 300, 400}, names(5), series(5, 4)),
		"lines-one":        plot.Lines("Norm by layer", "L2 norm", []float64{100}, names(3), series(3, 1)),
		"lines-many":       plot.Lines("Norm by layer", "L2 norm", []float64{100, 200, 300, 400}, names(40), series(40, 4)),
		"lines-none":       plot.Lines("Norm by layer", "L2 norm", nil, nil, nil),
		"metrics":          plot.Metrics([]float64{100, 200, 300, 400}, []string{"eval_loss", "loss", "lr", "tokens"}, metrics()),
		"metrics-none":     plot.Metrics(nil, nil, nil),
		"over-time":        plot.HistogramOverTime("model.norm.weight", []string{"100", "200", "300"}, overTime(inspect.ScaleLinear, 3)),
		"over-time-log2":   plot.HistogramOverTime("model.norm.weight", []string{"100", "200", "300"}, overTime(inspect.ScaleLog2, 3), plot.LogCounts),
		"over-time-none":   plot.HistogramOverTime("model.norm.weight", []string{"100"}, nil),
		"run":              plot.Run(checkpoints(7)),
		"run-empty":        plot.Run(nil),
	}
}

func TestPicturesMatchGoldenFiles(t *testing.T) {
	for name, p := range gallery(t) {
		file := filepath.Join("testdata", name+".svg")
		if *update {
			must.Do(t, os.WriteFile(file, p.SVG(), 0o644))
		}
		want, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(decoded(t, want), decoded(t, p.SVG())) {
			t.Errorf("%s differs (%v): look at the picture, then run go test ./inspect/plot -update", file, err)
		}
	}
}

// embedded finds the images in a picture.
var embedded = regexp.MustCompile(`data:image/png;base64,([^"]*)`)

// decoded replaces the images in a picture by their pixels, because versions of Go compress
// differently.
func decoded(t *testing.T, svg []byte) []byte {
	return embedded.ReplaceAllFunc(svg, func(uri []byte) []byte {
		data := must.Get(base64.StdEncoding.DecodeString(string(embedded.FindSubmatch(uri)[1])))(t)
		img := must.Get(png.Decode(bytes.NewReader(data)))(t)
		out := fmt.Appendf(nil, "%v", img.Bounds())
		for y := range img.Bounds().Dy() {
			for x := range img.Bounds().Dx() {
				out = fmt.Appendf(out, " %v", img.At(x, y))
			}
		}
		return out
	})
}

// The same result gives the same bytes, although trees and colours are made with maps.
func TestPicturesAreDeterministic(t *testing.T) {
	again := gallery(t)
	for name, p := range gallery(t) {
		if !bytes.Equal(p.SVG(), again[name].SVG()) {
			t.Errorf("%s: two pictures of the same data differ", name)
		}
	}
}

// A hostile name is only text.
func TestNamesAreText(t *testing.T) {
	for _, name := range hostileNames {
		s := equal(1)
		s.FQN = name
		svg := string(plot.Histogram(s).SVG())
		for _, bad := range []string{"<script", "onload=\"", "\x00", "\x1b", "\u202e", "<!", "<?", "\ufffe"} {
			if strings.Contains(svg, bad) {
				t.Errorf("the picture of %q contains %q", name, bad)
			}
		}
		if !utf8.ValidString(svg) || len(svg) > 64<<10 {
			t.Errorf("the picture of %q has %d bytes of text", name, len(svg))
		}
	}
}

func TestPicturesAreWellFormed(t *testing.T) {
	for name, p := range gallery(t) {
		check(t, name, p)
	}
}

// A picture with much data stays small enough for a browser and a document.
func TestLargeDataGivesBoundedPictures(t *testing.T) {
	for name, p := range large(t) {
		if dir := os.Getenv("PLOT_DIR"); dir != "" { // to look at them
			must.Do(t, os.WriteFile(filepath.Join(dir, name+".svg"), p.SVG(), 0o644))
		}
		check(t, name, p)
		t.Logf("%s: %d bytes, %d elements", name, len(p.SVG()), bytes.Count(p.SVG(), []byte("<")))
		if n := len(p.SVG()); n > 3<<20 {
			t.Errorf("%s has %d bytes; want at most 3 MiB", name, n)
		}
		if n := bytes.Count(p.SVG(), []byte("<rect")); n > 6000 {
			t.Errorf("%s has %d rectangles; want at most 6000", name, n)
		}
	}
}

func large(t testing.TB) map[string]*plot.Picture {
	var flat []*meta.Entry
	for i := range 200_000 {
		flat = append(flat, tensorEntry(fmt.Sprintf("t%06d", i), tensor.Uint8, int64(16+i%5)))
	}
	steps := make([]float64, 3000)
	for i := range steps {
		steps[i] = float64(i * 10)
	}
	return map[string]*plot.Picture{
		"large-sizes":       plot.Sizes(llama(22_000)),
		"large-sizes-80":    plot.Sizes(llama(80)),
		"large-sizes-flat":  plot.Sizes(inspect.NewNames(flat, nil)),
		"large-shards":      plot.Shards(item(100_000, 4096), grid([]int64{100_000, 4096}, 200, 100)),
		"large-shards-64":   plot.Shards(item(8192, 8192), grid([]int64{8192, 8192}, 8, 8)),
		"large-shards-3d":   plot.Shards(item(64, 64, 64), grid([]int64{64, 64, 64}, 4, 4, 4)),
		"large-timeline":    plot.Timeline(timeline(t, 10_000)),
		"large-timeline-64": plot.Timeline(timeline(t, 64)),
		"large-changes":     plot.Changes(changed(20_000)),
		"large-changes-80":  plot.Changes(changed(80)),
		"large-lines":       plot.Lines("Norm by layer", "L2 norm", steps, names(1000), series(1000, 3000)),
		"large-lines-12":    plot.Lines("Norm by layer", "L2 norm", steps[:60], names(12), series(12, 60)),
		"large-over-time":   plot.HistogramOverTime("w", names(3000), overTime(inspect.ScaleLinear, 3000)),
		"large-run":         plot.Run(checkpoints(3000)),
		"large-run-40":      plot.Run(checkpoints(40)),
		"large-histogram":   plot.Histogram(normal("w", 1<<16, inspect.ScaleLinear)),
		"large-heatmap":     plot.Heat(waves(1024, 1024)),
	}
}

// attribute finds attributes with their values.
var attribute = regexp.MustCompile(`[a-z-]+="([^"]*)"`)

// check reports a picture that is not well-formed XML or has numbers that are not finite.
func check(t tester, name string, p *plot.Picture) {
	t.Helper()
	if p == nil || len(p.SVG()) == 0 {
		t.Errorf("%s: no picture", name)
		return
	}
	d := xml.NewDecoder(bytes.NewReader(p.SVG()))
	depth, seen := 0, map[string]int{}
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		switch e := tok.(type) {
		case xml.StartElement:
			depth++
			seen[e.Name.Local]++
			checkElement(t, name, e)
		case xml.EndElement:
			depth--
		case xml.Directive, xml.ProcInst, xml.Comment:
			t.Errorf("%s has %v", name, tok)
		}
	}
	if depth != 0 || seen["svg"] != 1 || seen["title"] == 0 || seen["desc"] != 1 {
		t.Errorf("%s: depth %d at the end, elements %v", name, depth, seen)
	}
	for _, m := range attribute.FindAllSubmatch(p.SVG(), -1) {
		if v := string(m[1]); !strings.HasPrefix(v, "data:") && (strings.Contains(v, "NaN") || strings.Contains(v, "Inf")) {
			t.Errorf("%s: a value is %q", name, v)
		}
	}
	var out bytes.Buffer
	if n, err := p.WriteTo(&out); err != nil || n != int64(len(p.SVG())) || !bytes.Equal(out.Bytes(), p.SVG()) {
		t.Errorf("%s: WriteTo wrote %d bytes, %v", name, n, err)
	}
}

// elements are all elements that pictures may have.
var elements = map[string]bool{
	"svg": true, "title": true, "desc": true, "rect": true, "circle": true, "line": true, "path": true, "text": true, "g": true, "image": true,
}

func checkElement(t tester, name string, e xml.StartElement) {
	t.Helper()
	if !elements[e.Name.Local] {
		t.Errorf("%s has an element %s", name, e.Name.Local)
	}
	for _, a := range e.Attr {
		if strings.HasPrefix(a.Name.Local, "on") {
			t.Errorf("%s has an attribute %s", name, a.Name.Local)
		}
		if a.Name.Local == "href" && !strings.HasPrefix(a.Value, "data:image/png;base64,") {
			t.Errorf("%s refers to %q", name, a.Value)
		}
	}
}

var none = inspect.Number(math.NaN())

// normal returns statistics of elements with a normal distribution.
func normal(fqn string, buckets int, scale string) *inspect.TensorStats {
	h := &inspect.Histogram{Scale: scale}
	lo, hi := -0.11, 0.12
	if scale == inspect.ScaleLog2 {
		lo, hi, buckets = -24, -3, 21
	}
	for i := range buckets + 1 {
		x := lo + (hi-lo)*float64(i)/float64(buckets)
		if scale == inspect.ScaleLog2 {
			x = math.Ldexp(1, int(math.Round(x)))
		}
		h.Edges = append(h.Edges, inspect.Number(x))
	}
	for i := range buckets {
		mid := float64(h.Edges[i]+h.Edges[i+1]) / 2
		h.Counts = append(h.Counts, int64(4e8*math.Exp(-mid*mid/2/0.0004)*float64(h.Edges[i+1]-h.Edges[i])))
	}
	return &inspect.TensorStats{
		FQN: fqn, DType: "bfloat16", Shape: []int64{4096, 11008}, NumBytes: 90177536, Histogram: h,
		Numbers: inspect.Numbers{Elements: 45088768, Min: -0.11, Max: 0.12, Mean: 1.2e-6, Std: 0.02, L2: 134, Zeros: 1210, NaN: 3, PosInf: 1},
	}
}

// equal returns statistics of a tensor. All its elements are v.
func equal(v inspect.Number) *inspect.TensorStats {
	return &inspect.TensorStats{
		FQN: "model.norm.weight", DType: "float32", Shape: []int64{4096}, NumBytes: 16384,
		Numbers:   inspect.Numbers{Elements: 4096, Min: v, Max: v, Mean: v, L2: 64 * v},
		Histogram: &inspect.Histogram{Scale: inspect.ScaleLinear, Edges: []inspect.Number{v, v}, Counts: []int64{4096}},
	}
}

func overlaid() *inspect.Overlaid {
	a, b := normal("model.layers.0.mlp.up_proj.weight", 60, inspect.ScaleLinear), normal("model.layers.0.mlp.up_proj.weight", 60, inspect.ScaleLinear)
	for i := range b.Histogram.Counts {
		x := float64(b.Histogram.Edges[i]) - 0.02
		b.Histogram.Counts[i] = int64(1.1e6 * math.Exp(-x*x/2/0.0007))
	}
	return &inspect.Overlaid{A: *a, B: *b}
}

// waves returns a heat map with values on both sides of zero.
func waves(h, w int) *inspect.Heat {
	out := &inspect.Heat{
		FQN: "model.layers.0.self_attn.q_proj.weight", DType: "bfloat16", Shape: []int64{2048, 4096}, Index: ":, :", Dims: [2]int{0, 1},
		Size: [2]int64{2048, 4096}, Rows: [2]int64{0, 2048}, Cols: [2]int64{0, 4096}, Height: h, Width: w,
		Read: int64(h * w * 16), Elements: 2048 * 4096, Low: -0.4, High: 0.3,
		NaN: make([]int32, h*w), PosInf: make([]int32, h*w), NegInf: make([]int32, h*w),
	}
	for i := range h * w {
		y, x := float64(i/w)/float64(h), float64(i%w)/float64(w)
		out.Mean = append(out.Mean, inspect.Number(0.03*math.Sin(9*x)*math.Cos(7*y)+0.01*y))
	}
	out.Mean[5*w+7], out.Mean[5*w+8] = 0.35, -0.4
	out.NaN[3*w+4], out.PosInf[4*w+4], out.NegInf[5*w+5] = 2, 1, 1
	out.Min, out.Max = out.Mean, out.Mean
	return out
}

// damaged returns a heat map with a damaged chunk in sight.
func damaged() *inspect.Heat {
	out := cells()
	for i := range 8 {
		out.Mean[24+i], out.Text[24+i] = none, ""
	}
	problem := "checksum of rank-1.safetensors at 4096+1024"
	out.Damaged = []inspect.DamagedChunk{
		{Chunk: 1, Offsets: []int64{0, 13, 0}, Sizes: []int64{8, 1, 64}, File: "rank-1.safetensors", Problem: problem},
		{Chunk: 2, Offsets: []int64{0, 40, 0}, Sizes: []int64{8, 24, 64}, File: "rank-2.safetensors", Problem: problem}, // out of sight
	}
	return out
}

// cells returns a heat map of single elements.
func cells() *inspect.Heat {
	out := &inspect.Heat{
		FQN: "model.layers.0.mlp.gate.weight", DType: "float32", Shape: []int64{8, 64, 64}, Index: "3, :, :", Dims: [2]int{1, 2}, Exact: true,
		Size: [2]int64{64, 64}, Rows: [2]int64{10, 15}, Cols: [2]int64{20, 28}, Height: 5, Width: 8, Read: 40, Elements: 40, Low: 0.1, High: 4,
		NaN: make([]int32, 40), PosInf: make([]int32, 40),
	}
	for i := range 40 {
		v := 0.1 * float64(i+1)
		out.Mean, out.Text = append(out.Mean, inspect.Number(v)), append(out.Text, fmt.Sprintf("%.3g", v))
	}
	out.Mean[9], out.NaN[9], out.Text[9] = none, 1, "nan"
	out.Mean[20], out.PosInf[20], out.Text[20] = none, 1, "inf"
	out.Min, out.Max = out.Mean, out.Mean
	return out
}

// row returns the heat map of a tensor with one dimension.
func row() *inspect.Heat {
	out := &inspect.Heat{
		FQN: "model.norm.weight", DType: "float32", Shape: []int64{4096}, Index: ":", Dims: [2]int{-1, 0}, Exact: true,
		Size: [2]int64{1, 4096}, Rows: [2]int64{0, 1}, Cols: [2]int64{0, 4096}, Height: 1, Width: 256, Read: 4096, Elements: 4096, Low: 0.2, High: 1.4,
	}
	for i := range 256 {
		out.Mean = append(out.Mean, inspect.Number(0.8+0.5*math.Sin(float64(i)/9)))
	}
	out.Min, out.Max = out.Mean, out.Mean
	return out
}

// shades returns a number for each name. One has NaN, one infinities, one no number.
func shades(n *inspect.Names) *plot.Shades {
	out := &plot.Shades{Title: "root mean square of the elements", Log: true}
	for i := range n.Entries {
		out.Values = append(out.Values, 0.01*math.Pow(1.1, float64(i)))
		out.NaN, out.Inf = append(out.NaN, i == 20), append(out.Inf, i == 30)
	}
	out.Values[40] = math.NaN()
	return out
}

func tensorEntry(name string, d tensor.DType, shape ...int64) *meta.Entry {
	return &meta.Entry{FQN: name, Tensor: &meta.Tensor{Properties: meta.Properties{DType: d}, Shape: shape, Chunks: []tensor.Box{tensor.Whole(shape)}}}
}

// llama returns the names of a model with layers.
func llama(layers int) *inspect.Names {
	var all []*meta.Entry
	add := func(name string, d tensor.DType, shape ...int64) { all = append(all, tensorEntry(name, d, shape...)) }
	add("model.embed_tokens.weight", tensor.BFloat16, 32000, 4096)
	for l := range layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		for _, n := range []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"} {
			add(p+n+".weight", tensor.BFloat16, 4096, 4096)
		}
		for _, n := range []string{"gate_proj", "up_proj", "down_proj"} {
			add(p+"mlp."+n+".weight", tensor.BFloat16, 11008, 4096)
		}
		add(p+"input_layernorm.weight", tensor.Float32, 4096)
		add(p+"post_attention_layernorm.weight", tensor.Float32, 4096)
	}
	add("model.norm.weight", tensor.Float32, 4096)
	add("lm_head.weight", tensor.BFloat16, 32000, 4096)
	all = append(all, &meta.Entry{FQN: "step", Bytes: &meta.Bytes{Codec: "json", Size: 8}})
	slices.SortFunc(all, func(a, b *meta.Entry) int { return strings.Compare(a.FQN, b.FQN) })
	return inspect.NewNames(all, map[string]string{"model.embed_tokens.weight": "lm_head.weight"})
}

func item(shape ...int64) *inspect.Item {
	bytes := int64(4)
	for _, n := range shape {
		bytes *= n
	}
	return &inspect.Item{FQN: "model.layers.0.mlp.up_proj.weight", Kind: inspect.KindTensor, DType: "float32", Shape: shape, NumBytes: bytes}
}

// grid cuts a shape into parts of equal size, one for each rank.
func grid(shape []int64, parts ...int64) []inspect.Chunk {
	total := int64(1)
	for _, n := range parts {
		total *= n
	}
	var out []inspect.Chunk
	for i := range total {
		c := inspect.Chunk{Chunk: int(i), Rank: new(int(i)), Offsets: []int64{}, Sizes: []int64{}, NumBytes: 4}
		rest := i
		for d := len(shape) - 1; d >= 0; d-- {
			at := rest % parts[d]
			rest /= parts[d]
			lo, hi := shape[d]*at/parts[d], shape[d]*(at+1)/parts[d]
			c.Offsets, c.Sizes, c.NumBytes = append([]int64{lo}, c.Offsets...), append([]int64{hi - lo}, c.Sizes...), c.NumBytes*(hi-lo)
		}
		c.File, c.Offset, c.Length = fmt.Sprintf("data-%05d.safetensors", i), 4096, c.NumBytes
		out = append(out, c)
	}
	return out
}

func withoutRanks(chunks []inspect.Chunk) []inspect.Chunk {
	for i := range chunks {
		chunks[i].Rank = nil
	}
	return chunks
}

// timeline returns a save in which one rank in 100 is slow.
func timeline(t testing.TB, ranks int) *inspect.Timeline {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	ms := time.Millisecond
	tl := make(meta.Timeline, ranks)
	for i := range tl {
		write := time.Duration(3000+r.IntN(400)) * ms
		if i%100 == 5 {
			write *= 2
		}
		tl[i] = []meta.Phase{
			{Name: meta.PhaseStage, End: 900 * ms, Bytes: 1 << 30},
			{Name: meta.PhasePlan, Start: 200 * ms, End: time.Duration(450+r.IntN(80)) * ms},
			{Name: meta.PhaseWrite, Start: 1200 * ms, End: 1200*ms + write, Bytes: 1 << 30},
		}
	}
	tl[0] = append(tl[0], meta.Phase{Name: meta.PhaseGlobalPlan, Start: 560 * ms, End: 1100 * ms}, meta.Phase{Name: meta.PhaseCommit, Start: 8000 * ms, End: 8300 * ms})
	return must.Get(inspect.NewTimeline(meta.Storage{SaveID: "2026-05-04T10-11-12", Step: new(int64(1200)), Timeline: tl}))(t)
}

// changed returns a comparison of the tensors of a model with layers.
func changed(layers int) []inspect.Compared {
	r := rand.New(rand.NewPCG(3, 4))
	var out []inspect.Compared
	add := func(name string, change float64) {
		v := &inspect.ValueDifference{Elements: 4096, Differing: 4000, MaxAbs: 0.25, MaxRel: 3, Change: &inspect.Change{RelL2: inspect.Number(change), Cosine: 0.99}}
		status := inspect.StatusDifferent
		if change == 0 {
			v.Differing, status = 0, inspect.StatusIdentical
		}
		out = append(out, inspect.Compared{FQN: name, Status: status, A: item(64, 64), B: item(64, 64), Values: v})
	}
	add("model.embed_tokens.weight", 2e-4)
	for l := range layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		grow := 1e-3 * (1 + float64(l%90)/8)
		for _, n := range []string{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"} {
			add(p+n+".weight", grow*math.Exp(r.NormFloat64()/3))
		}
		add(p+"input_layernorm.weight", grow/40*math.Exp(r.NormFloat64()/3))
		add(p+"post_attention_layernorm.weight", 0)
	}
	add("lm_head.weight", 0.03)
	add("lm_head.bias", math.Inf(1))
	add("model.odd", math.NaN())
	return append(out, inspect.Compared{FQN: "gone", Status: inspect.StatusMissing, A: item(4)},
		inspect.Compared{FQN: "step", Status: inspect.StatusDifferent, A: &inspect.Item{Kind: inspect.KindObject}, B: &inspect.Item{Kind: inspect.KindObject}})
}

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("model.layers.%d", i)
	}
	return out
}

// series returns values of n lines, with gaps.
func series(n, steps int) [][]float64 {
	out := make([][]float64, n)
	for i := range out {
		for j := range steps {
			v := 20 + 60*float64(i)/float64(n) + 5*math.Sin(float64(j)/4+float64(i)/3)
			if steps > 2 && i%7 == 2 && j%10 == 2 {
				v = math.NaN()
			}
			out[i] = append(out[i], v)
		}
	}
	return out
}

// metrics are two losses, of which one has gaps and one is NaN once, and two of other sizes.
func metrics() [][]float64 {
	nan, inf := math.NaN(), math.Inf(1)
	return [][]float64{{2.5, nan, 2.1, 2}, {2.4, 2.2, inf, 1.8}, {3e-4, 2e-4, 1e-4, 0}, {1e6, 2e6, 3e6, 4e6}}
}

// overTime is a histogram that becomes wider. The second checkpoint does not have the tensor.
func overTime(scale string, n int) *inspect.HistogramOverTime {
	all := make([]*inspect.TensorStats, n)
	for i := range all {
		if i != 1 {
			all[i] = normal("w", 40, scale)
			for k := range all[i].Histogram.Edges {
				all[i].Histogram.Edges[k] *= inspect.Number(1 + i)
			}
		}
	}
	return inspect.NewHistory(all, 40).Histogram
}

func checkpoints(n int) []plot.RunPoint {
	var out []plot.RunPoint
	for i := range n {
		p := plot.RunPoint{Label: fmt.Sprintf("step-%d", (i+1)*500), Step: new(int64(i+1) * 500), Local: 14<<30 + int64(i%3)<<28, LocalRemoved: i < n/2 && i%4 != 0}
		if i%2 == 0 {
			p.Remote = p.Local
		}
		if i == 3 {
			p.Local /= 9
		}
		out = append(out, p)
	}
	return out
}

// tester is a test of package testing or of package rapid.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
}

// The colours of many lines do not tell which one is which: the largest ones have names. Steps
// without any value are told.
func TestManyLinesNameTheLargest(t *testing.T) {
	all := names(32)
	values := make([][]float64, len(all))
	for i := range values {
		values[i] = []float64{0, 0, math.NaN()}
	}
	values[11][1] = 3e-5
	svg := string(plot.Lines("Share of NaN", "share", []float64{100, 200, 300}, all, values).SVG())
	if n := strings.Count(svg, ">"+all[11]+"</text>"); n == 0 {
		t.Errorf("the chart does not name %s, the only line that is not zero", all[11])
	}
	if strings.Contains(svg, ">"+all[10]+"</text>") {
		t.Errorf("the chart names %s, which is zero and not at a tick of the colours", all[10])
	}
	if !strings.Contains(svg, "Without values: step 300.") {
		t.Error("the chart does not say that step 300 has no values")
	}
}

// Counts are whole numbers, also if the largest is one.
func TestHistogramOfOneElement(t *testing.T) {
	s := equal(0)
	s.Elements, s.Zeros, s.Histogram.Counts[0] = 1, 1, 1
	svg := string(plot.Histogram(s).SVG())
	if strings.Count(svg, ">0.2</text>") > 1 { // one is on the axis of values
		t.Error("the axis of counts has fractions")
	}
	if !strings.Contains(svg, "1 of 1 element is zero (100%).") {
		t.Error("the note about zeros is missing")
	}
}
