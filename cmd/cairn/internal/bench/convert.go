package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/inproc"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/shard"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

// ConvertOptions are the size and the formats of a conversion.
type ConvertOptions struct {
	// Dir is an existing directory on the medium to measure.
	Dir   string
	Bytes int64
	// From and To are formats of package storage/formats.
	From, To string
	// Ranks is the number of ranks that save the source, if its format allows
	// several. Zero: 4.
	Ranks int
	// Memory bounds the conversion's buffers. Zero: its default.
	Memory int64
	// Repeat is the number of measurements of copy and conversion, which
	// alternate. The best of each counts. Zero: 3.
	Repeat int
	// Recipe converts a model with experts from the form of Hugging Face to the form of
	// Megatron: q, k and v are joined, experts and layers stacked.
	Recipe bool
	// Processes, if not 0, measures one process and this number of processes instead of a
	// copy and a conversion in this process. Program is the command line of cairn.
	Processes int
	Program   []string
	Log       logFunc
	// Logger, if not nil, receives the phases of saves and loads.
	Logger *slog.Logger
}

// ConvertResult compares a conversion with a plain copy of the same files. Rates
// are in 10^9 bytes a second.
type ConvertResult struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Bytes  int64  `json:"bytes"`
	Files  int    `json:"source_files"`
	Repeat int    `json:"repeat"`

	Copy    float64 `json:"copy_gbs"`
	Convert float64 `json:"convert_gbs"`
	Ratio   float64 `json:"ratio"`
	PeakRSS int64   `json:"peak_rss_bytes"`

	// With Processes, Copy and PeakRSS are 0, Convert is the rate of one process, Job of
	// all processes together, and Ratio the second divided by the first.
	Processes int     `json:"processes,omitempty"`
	Job       float64 `json:"job_gbs,omitempty"`
}

// Convert measures a conversion and its floor: a copy of the source's files with
// plain reads and writes, synced. It drops the source's page cache before each.
// The peak memory is measured while the process converts.
func Convert(ctx context.Context, o ConvertOptions) (*ConvertResult, error) {
	o.Repeat, o.Ranks = positive(o.Repeat, 3), positive(o.Ranks, 4)
	if formats.WholeTensors(o.From) || o.Recipe {
		o.Ranks = 1
	}
	if o.Bytes < 1<<20 {
		return nil, fmt.Errorf("%d bytes: want at least 1 MiB", o.Bytes)
	}
	dir, err := os.MkdirTemp(o.Dir, "cairn-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b := &convertBench{o: o, source: filepath.Join(dir, "source"), copied: filepath.Join(dir, "copy"), target: filepath.Join(dir, "target")}
	o.Log.printf("saving %d bytes as %s", o.Bytes, o.From)
	r := &ConvertResult{From: o.From, To: o.To, Repeat: o.Repeat}
	if r.Bytes, err = b.makeSource(ctx); err != nil {
		return nil, err
	}
	measure := b.measure
	if o.Processes > 0 {
		measure = b.measureJob
	}
	if err := measure(ctx, r); err != nil {
		return nil, err
	}
	return r, b.check(ctx)
}

// measureJob measures 'cairn convert' in one process, and in several that share the work.
// The target has 4 files for each process.
func (b *convertBench) measureJob(ctx context.Context, r *ConvertResult) error {
	src, err := file.Open(b.source, nil)
	if err != nil {
		return err
	}
	r.Processes = b.o.Processes
	line := append(b.o.Program, "convert", b.source, b.target, "--quiet", "--to", b.o.To,
		"--max-shard-size", fmt.Sprint(max(1<<20, r.Bytes/int64(4*r.Processes))))
	job := append([]string{"launch", "-n", fmt.Sprint(r.Processes), "--"}, append(line, "--job")...)
	fresh := func(ctx context.Context) error {
		if err := os.RemoveAll(b.target); err != nil {
			return err
		}
		return eachFile(ctx, src, coolFile)
	}
	start := func(line []string) func(context.Context) error {
		return func(ctx context.Context) error {
			out, err := exec.CommandContext(ctx, line[0], line[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, out)
			}
			return nil
		}
	}
	err = alternate(ctx, r.Bytes, b.o.Repeat, b.o.Log, [2]measurement{
		{&r.Convert, fresh, start(line)},
		{&r.Job, fresh, start(append(b.o.Program[:1:1], job...))},
	})
	r.Ratio = r.Job / r.Convert
	return err
}

type convertBench struct {
	o                      ConvertOptions
	source, copied, target string // directories
}

// measure measures the conversion and the copy.
func (b *convertBench) measure(ctx context.Context, r *ConvertResult) error {
	src, err := file.Open(b.source, nil)
	if err != nil {
		return err
	}
	fresh := func(dir string) func(context.Context) error {
		return func(ctx context.Context) error {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
			defer debug.FreeOSMemory() // start every round like a new process
			return eachFile(ctx, src, coolFile)
		}
	}
	err = alternate(ctx, r.Bytes, b.o.Repeat, b.o.Log, [2]measurement{
		{&r.Copy, fresh(b.copied), func(ctx context.Context) (err error) { r.Files, err = b.copy(ctx, src); return err }},
		{&r.Convert, fresh(b.target), func(ctx context.Context) error {
			resetPeakRSS()
			defer func() { r.PeakRSS = max(r.PeakRSS, peakRSS()) }()
			return b.convert(ctx)
		}},
	})
	if err != nil {
		return err
	}
	r.Ratio = r.Convert / r.Copy
	return os.RemoveAll(b.copied)
}

// makeSource saves a state whose matrices repeat one row, to save memory. It
// returns the bytes of the tensors.
func (b *convertBench) makeSource(ctx context.Context) (int64, error) {
	store, err := file.Open(b.source, nil)
	if err != nil {
		return 0, err
	}
	var total int64
	err = inproc.Run(ctx, b.o.Ranks, func(ctx context.Context, g group.Group) error {
		make := repeatedRows
		if b.o.Recipe {
			make = expertModel
		}
		state, size, err := make(b.o.Bytes, b.o.Ranks, g.Rank())
		if err != nil {
			return err
		}
		if g.Rank() == 0 {
			total = size
		}
		f, err := formats.ByName(b.o.From, &formats.Options{File: fileName, Distributed: b.o.Ranks > 1})
		if err != nil {
			return err
		}
		_, err = cairn.Save(ctx, store, state, &cairn.SaveOptions{Logger: b.o.Logger, Group: g, Format: f, BufferBytes: 64 << 20})
		return err
	})
	return total, err
}

// fileName is the file name for formats of one file.
const fileName = "model.pt"

// repeatedRows returns rank's part of a state in which all rows are equal, and
// the size of the whole state.
func repeatedRows(bytes int64, ranks, rank int) (cairn.State, int64, error) {
	layout := shard.Rows(ranks)
	s := cairn.State{}
	var total int64
	for w := range transformer(bytes) {
		local, err := layout.LocalShape(w.shape, rank)
		if err != nil {
			return nil, 0, err
		}
		row, err := tensor.New(w.dtype, append([]int64{1}, w.shape[1:]...))
		if len(w.shape) == 1 {
			row, err = tensor.New(w.dtype, local)
		}
		if err != nil {
			return nil, 0, err
		}
		fillRandom(row, uint64(total))
		if row, err = row.Expand(local); err != nil {
			return nil, 0, err
		}
		if s[w.name], err = shard.New(layout, w.shape, rank, row); err != nil {
			return nil, 0, err
		}
		total += w.bytes()
	}
	return s, total, nil
}

func fillRandom(t *tensor.Tensor, seed uint64) {
	mem, _ := t.Bytes()
	r := rand.NewPCG(seed, 2)
	for i := range mem {
		mem[i] = byte(r.Uint64())
	}
}

// copy copies the source's files with plain reads and writes, one for each
// processor at a time, and syncs them.
func (b *convertBench) copy(ctx context.Context, src *file.Store) (int, error) {
	if err := os.Mkdir(b.copied, 0o755); err != nil {
		return 0, err
	}
	g, _ := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	n := 0
	for info, err := range src.List(ctx, "") {
		if err != nil {
			return 0, err
		}
		n++
		g.Go(func() error {
			return copyFile(filepath.Join(b.copied, info.Name), filepath.Join(b.source, info.Name))
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return n, syncDir(b.copied)
}

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	defer w.Close()
	// Hide the optional methods of both, or the kernel would share the blocks.
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, floorPiece)); err != nil {
		return err
	}
	return w.Sync()
}

// convert converts the source with the defaults of 'cairn convert'.
func (b *convertBench) convert(ctx context.Context) error {
	src, err := file.Open(b.source, nil)
	if err != nil {
		return err
	}
	c, err := formats.Open(ctx, src, nil)
	if err != nil {
		return err
	}
	if c, err = b.through(ctx, src, c); err != nil {
		return err
	}
	defer c.Close()
	job, err := convert.Plan(ctx, c, &convert.Options{
		Memory: b.o.Memory, Merge: formats.WholeTensors(b.o.To), Inline: formats.Inline(b.o.To), Logger: b.o.Logger,
	})
	if err != nil {
		return err
	}
	defer job.Confine()()
	var opts formats.Options
	if b.o.To == formats.Torch {
		opts.File = fileName
	}
	ranks, size := job.Size()
	opts, write := formats.ForConversion(b.o.To, opts, storage.WriteOptions{}, ranks, size)
	f, err := formats.ByName(b.o.To, &opts)
	if err != nil {
		return err
	}
	store, err := file.Open(b.target, nil)
	if err != nil {
		return err
	}
	_, err = convert.Run(ctx, job, &convert.Target{
		Format: b.o.To, Staging: store, Where: b.target,
		NewWriter: func(bufferBytes int64) (storage.Writer, error) {
			write.BufferBytes = bufferBytes
			return f.NewWriter(store, write)
		},
	})
	return err
}

// check verifies the result: all tensors exist, and a few have the same digests
// on both sides.
func (b *convertBench) check(ctx context.Context) error {
	var digests [2]map[string]inspect.Digest
	var names [2]int
	for i, dir := range []string{b.source, b.target} {
		store, err := file.Open(dir, nil)
		if err != nil {
			return err
		}
		open, err := formats.Open(ctx, store, nil)
		if err == nil && i == 0 {
			open, err = b.through(ctx, store, open)
		}
		if err != nil {
			return err
		}
		defer open.Close()
		c := cairn.NewCheckpoint(store, open)
		md, err := c.Metadata(ctx)
		if err != nil {
			return err
		}
		names[i] = len(md.Entries)
		few := inspect.Select(md)[:min(6, len(md.Entries))]
		if digests[i], err = inspect.Digests(ctx, c, few, nil); err != nil {
			return err
		}
	}
	if names[0] != names[1] || inspect.Combine(digests[0]) != inspect.Combine(digests[1]) {
		return fmt.Errorf("the %s was not converted as it is: %d names became %d, or their bytes differ", b.o.From, names[0], names[1])
	}
	return nil
}

// through returns the form of the source that is converted.
func (b *convertBench) through(ctx context.Context, store blob.Store, c storage.Checkpoint) (storage.Checkpoint, error) {
	if !b.o.Recipe {
		return c, nil
	}
	return view.OpenAs(ctx, store, c, view.Options{Recipe: "hf-to-megatron/qwen3_moe", Set: map[string]any{
		"heads": modelHeads, "kv_heads": modelGroups, "head_dim": modelHead, "vocab": modelVocab, "tied": false,
	}})
}

// The sizes of the model that is converted through a recipe.
const (
	modelHidden, modelHeads, modelGroups, modelHead = 2048, 32, 4, 128
	modelExpert, modelVocab                         = 768, 8192
)

// expertModel returns a model with experts under the names of Hugging Face, in bfloat16,
// whose matrices repeat one row, and its size.
func expertModel(bytes int64, _, _ int) (cairn.State, int64, error) {
	s := cairn.State{}
	var total int64
	add := func(name string, shape ...int64) error {
		row, err := tensor.New(tensor.BFloat16, append([]int64{1}, shape[1:]...))
		if err != nil {
			return err
		}
		fillRandom(row, uint64(total))
		if s[name], err = row.Expand(shape); err != nil {
			return err
		}
		n, err := tensor.NumBytes(tensor.BFloat16, shape)
		total += n
		return err
	}
	layer := func(i, experts int64) error {
		p := fmt.Sprintf("model.layers.%d.", i)
		err := errors.Join(
			add(p+"input_layernorm.weight", modelHidden), add(p+"post_attention_layernorm.weight", modelHidden),
			add(p+"self_attn.q_proj.weight", modelHeads*modelHead, modelHidden),
			add(p+"self_attn.k_proj.weight", modelGroups*modelHead, modelHidden),
			add(p+"self_attn.v_proj.weight", modelGroups*modelHead, modelHidden),
			add(p+"self_attn.o_proj.weight", modelHidden, modelHeads*modelHead),
			add(p+"self_attn.q_norm.weight", modelHead), add(p+"self_attn.k_norm.weight", modelHead),
			add(p+"mlp.gate.weight", experts, modelHidden))
		for e := range experts {
			q := fmt.Sprintf("%smlp.experts.%d.", p, e)
			err = errors.Join(err, add(q+"gate_proj.weight", modelExpert, modelHidden), add(q+"up_proj.weight", modelExpert, modelHidden),
				add(q+"down_proj.weight", modelHidden, modelExpert))
		}
		return err
	}
	err := errors.Join(add("model.embed_tokens.weight", modelVocab, modelHidden), add("lm_head.weight", modelVocab, modelHidden), add("model.norm.weight", modelHidden))
	experts := int64(2)
	for experts < 64 && experts*(64<<20) < bytes/2 {
		experts *= 2
	}
	for i := int64(0); err == nil && (i == 0 || total < bytes); i++ {
		err = layer(i, experts)
	}
	return s, total, err
}
