package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/inspect"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/adapter"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/slime"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/tensor"
)

func newConvertCmd() *cobra.Command {
	f := &conversionFlags{Options: convert.Options{Memory: 512 << 20}}
	cmd := f.command("convert")
	fl := cmd.Flags()
	fl.IntVar(&f.WorldSize, "world-size", 0, "write for `N` ranks")
	fl.StringVar(&f.mesh, "mesh", "", "arrange the ranks as a mesh, such as `2x4`")
	fl.StringVar(&f.encoding, "delta-encoding", "", "of --to slime: `xor` (default) or overwrite")
	fl.StringVar(&f.checksum, "delta-checksum", "", "of --to slime: `xxh3-128` (default), blake3 or adler32")
	completeFlag(cmd, choices("xor", "overwrite"), "delta-encoding")
	completeFlag(cmd, choices("xxh3-128", "blake3", "adler32"), "delta-checksum")
	fl.StringArrayVar(&f.Placements, "placement", nil, "`rule` such as 'GLOB=S(0),R' for how the mesh cuts tensors (repeatable)")
	return cmd
}

func newMergeCmd() *cobra.Command {
	f := &conversionFlags{Options: convert.Options{Memory: 512 << 20}, merge: true}
	return f.command("merge")
}

// conversionFlags are the flags of convert and merge.
type conversionFlags struct {
	convert.Options
	to                            string
	shards                        int
	maxShard                      sizeFlag
	mesh                          string
	dryRun, overwrite, dequantize bool
	encoding, checksum            string
	recipe                        recipeFlags
	with                          []string
	adapter                       string
	limit                         work.Limiter // of the bytes that are written
	export                        manifest     // see destination
	step                          int64
	tags                          []string
	// merge writes whole tensors and makes the source's format the default.
	merge bool
	job   jobFlags
}

// command returns one of the commands, with the flags that both have.
func (f *conversionFlags) command(name string) *cobra.Command {
	cmd := newCommand(name, wantArgs(2, 2), completeConversion, func(cmd *cobra.Command, args []string) error {
		return f.job.run(cmd, args, func(g group.Group) error {
			if f.dryRun {
				g = nil // no work to share: each rank makes the plan, and rank 0 prints it
			}
			return f.run(cmd, args[0], args[1], g)
		})
	})

	f.job.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.to, "to", "", "`format` of DST")
	fl.StringArrayVar(&f.Select, "select", nil, "convert only names that match this `glob` (repeatable)")
	fl.StringArrayVar(&f.Exclude, "exclude", nil, "leave out names that match this `glob` (repeatable)")
	fl.StringArrayVar(&f.Rename, "rename", nil, "`rule` for names, FROM=TO or s/RE/TO/ (repeatable, one after the other)")
	fl.StringArrayVar(&f.DType, "dtype", nil, "`rule` for element types, DTYPE or GLOB=DTYPE (repeatable)")
	castFlag(cmd, &f.Cast)
	f.recipe.add(cmd, "convert")
	fl.IntVar(&f.shards, "shards", 0, "number of data files, `N`, of each rank")
	fl.Var(&f.maxShard, "max-shard-size", "begin a new data file beyond this `size` (default 5GB)")
	fl.Var((*sizeFlag)(&f.Memory), "memory", "bound of the buffers")
	fl.IntVar(&f.Parallel, "parallel", 0, "number of reads and of ranks that are written at the same time, `N` (default 4, or one for each processor)")
	fl.BoolVarP(&f.dryRun, "dry-run", "n", false, "only print the plan of the conversion")
	fl.BoolVar(&f.SkipObjects, "skip-objects", false, "leave out objects that the format cannot hold")
	fl.BoolVar(&f.SkipDamaged, "skip-damaged", false, "leave out names that cannot be read because a file is missing or damaged")
	fl.BoolVar(&f.overwrite, "overwrite", false, "replace a checkpoint at DST, once the new one is complete")
	fl.Int64Var(&f.step, "step", 0, "training step to record, `N` (default: the step of SRC)")
	fl.StringArrayVar(&f.tags, "tag", nil, "tag to record, `KEY=VALUE` (repeatable)")
	fl.StringArrayVar(&f.with, "with", nil, "copy these `files` into DST (repeatable; with --to hf: configuration and tokeniser)")
	fl.StringVar(&f.adapter, "adapter", "", "merge the LoRA adapter in this `folder` into SRC")
	fl.BoolVar(&f.dequantize, "dequantize", false, "read quantised weights of hf as the numbers they stand for")

	hideDefault(fl, "max-shard-size")
	completeFlag(cmd, choices(formats.Writable()...), "to")
	completeFlag(cmd, completeDTypes, "dtype")
	completeFlag(cmd, completeFlagNames, "select", "exclude")
	return baseFlag(cmd)
}

// castFlag adds the flag for the casts that --dtype may make.
func castFlag(cmd *cobra.Command, p *tensor.CastPolicy) {
	cmd.Flags().TextVar(p, "cast", tensor.CastInRange, "`policy` for --dtype: in-range refuses casts that lose numbers; any, widen, none")
	completeFlag(cmd, choices("in-range", "any", "widen", "none"), "cast")
}

// hideDefault removes an empty default from the help of a flag.
func hideDefault(fl *pflag.FlagSet, name string) {
	f := fl.Lookup(name)
	if f.DefValue = ""; f.Value.Type() == "duration" {
		f.DefValue = "0s" // the help would show an empty one
	}
}

// conversionOf has the source and the target of a conversion, in JSON.
type conversionOf struct {
	Source string `json:"source"`
	Target string `json:"target"`
	From   string `json:"from"`
	To     string `json:"to"`
}

// conversionResult is the output of 'cairn convert --json'.
type conversionResult struct {
	conversionOf
	*convert.Report
	// Inexact are the tensors with elements that the recipe rounds.
	Inexact []recipe.Inexact `json:"inexact,omitempty"`
	Seconds float64          `json:"seconds"`
	// Read and Written count the requests to the stores of SRC and DST, if these
	// stores count them.
	Read    *blob.Traffic `json:"source_traffic,omitempty"`
	Written *blob.Traffic `json:"target_traffic,omitempty"`
}

// conversionPlan is the output of 'cairn convert --dry-run --json'.
type conversionPlan struct {
	conversionOf
	DryRun bool `json:"dry_run"`
	*convert.Summary
	// Recipe is the recipe, and Dropped are the names that it leaves out.
	Recipe  string           `json:"recipe,omitempty"`
	Dropped []recipe.Dropped `json:"dropped,omitempty"`
	// Inexact are the tensors with elements that the recipe rounds.
	Inexact []recipe.Inexact `json:"inexact,omitempty"`
	// Continues is set if an interrupted run would be continued. KeptFiles counts
	// its finished files.
	Continues bool `json:"continues,omitempty"`
	KeptFiles int  `json:"kept_files,omitempty"`
}

func (f *conversionFlags) run(cmd *cobra.Command, src, dst string, g group.Group) error {
	r, err := f.convert(cmd, src, dst, g)
	if r == nil || err != nil {
		return err
	}
	o := outputOf(cmd)
	return o.result(r, func() { printConverted(o, r) })
}

// convert converts src. A dry run prints the plan, and returns nil.
func (f *conversionFlags) convert(cmd *cobra.Command, src, dst string, g group.Group) (*conversionResult, error) {
	if err := f.checkFormat(cmd); err != nil {
		return nil, err
	}
	if err := f.recipe.check(cmd); err != nil {
		return nil, err
	}

	path, err := f.beginAdapter(cmd, src)
	if err != nil {
		return nil, err
	}
	ctx := cmd.Context() // with the base

	at := checkpointAddress(ctx, path)
	root, err := openStore(ctx, at)
	if err != nil {
		return nil, err
	}
	store, from, err := formats.Locate(ctx, root)
	if err != nil {
		return nil, withHint(&cairn.Error{Op: "open", Where: store.String(), Err: err}, openHint(ctx, src, err))
	}
	to, err := f.target(cmd, from, dst)
	if err != nil {
		return nil, err
	}
	opts, err := f.options(cmd, to)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(apart(at, dst), f.apartBase(ctx, dst)); err != nil {
		return nil, err
	}
	to.group, opts.Group, to.export = g, g, f.export
	if err := f.share(cmd, opts, g); err != nil {
		return nil, err
	}
	opts.Source = store
	read := blob.Since(store)
	c, err := f.open(ctx, store, from)
	if err != nil {
		return nil, withHint(&cairn.Error{Op: "open", Where: store.String(), Err: err}, openHint(ctx, src, err))
	}
	model, err := f.model(store, c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if model == store {
		f.modelOfFSDP(from, to, opts)
	}
	if c, err = f.recipe.open(cmd, root, store, c); err != nil {
		return nil, err
	}
	defer c.Close()
	if to.place != nil && isFirst(g) { // the other ranks must not look for files before rank 0 makes them
		if err := to.place.Check(); err != nil {
			return nil, f.explain(cmd, src, err)
		}
	}
	for _, note := range c.Storage().Notes {
		opts.Warn(fmt.Errorf("%s: %s", src, note))
	}
	if to.common, err = f.commonState(ctx, to, c, opts); err != nil {
		return nil, err
	}
	planned, moved := func(int64) {}, func(int64) {}
	opts.Planned, opts.Progress = func(n int64) { planned(n) }, func(n int64) {
		moved(n)
		_ = f.limit.Wait(ctx, int(n)) // the end of ctx ends the conversion
	}
	job, err := convert.Plan(ctx, c, opts)
	if err != nil {
		return nil, f.explain(cmd, src, err)
	}
	what := conversionOf{src, dst, from, to.format}
	if f.dryRun {
		p := &conversionPlan{conversionOf: what, DryRun: true}
		if v, ok := c.(*view.Checkpoint); ok {
			p.Recipe, p.Dropped, p.Inexact = v.Binding().Recipe.Name, droppedBy(c), inexactBy(c)
		}
		return nil, f.explain(cmd, src, f.plan(cmd, job, to, p))
	}
	if err := f.beside(ctx, model, at, from, to, c); err != nil {
		return nil, err
	}
	if to.lacksConfig() {
		opts.Warn(fmt.Errorf("%s gets no config.json, which transformers needs: --config and --with copy one", dst))
	}
	defer job.Confine()()
	o := outputOf(cmd)
	start := time.Now()
	var rep *convert.Report
	err = o.withPlanned(barLabel(cmd.Name(), g), func(total, add func(int64)) (err error) {
		planned, moved = total, add
		rep, err = to.convert(ctx, o, job)
		return err
	})
	if err != nil {
		return nil, f.explain(cmd, src, err)
	}
	return &conversionResult{what, rep, inexactBy(c), time.Since(start).Seconds(), read(), to.written()}, nil
}

func (f *conversionFlags) open(ctx context.Context, store blob.Store, format string) (storage.Checkpoint, error) {
	o := openOptions(ctx)
	o.Dequantize = f.dequantize
	from, err := formats.ByName(format, o)
	if err != nil {
		return nil, err
	}
	c, err := from.Open(ctx, store)
	if err != nil || !f.dequantize {
		return c, err
	}
	with := c
	if m, ok := c.(*adapter.Checkpoint); ok {
		with, store = m.Base().Checkpoint, m.Base().Store
	}
	quantised, err := hasQuantised(ctx, store, with)
	if err == nil && !quantised {
		err = errNotQuantised
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// beginAdapter returns the path of the checkpoint to open: the adapter's, with SRC as its base, or
// SRC.
func (f *conversionFlags) beginAdapter(cmd *cobra.Command, src string) (string, error) {
	ctx := cmd.Context()
	if f.adapter == "" {
		return src, nil
	}
	if baseOf(ctx) != "" {
		return "", usagef(cmd, "--adapter and --base contradict each other: SRC is the base of the adapter")
	}
	cmd.SetContext(context.WithValue(ctx, baseKey{}, checkpointAddress(ctx, src)))
	return f.adapter, nil
}

// apartBase returns an error if DST is in the base of an adapter, or the other way around.
func (f *conversionFlags) apartBase(ctx context.Context, dst string) error {
	if f.adapter == "" {
		return nil
	}
	return apart(baseOf(ctx), dst)
}

// model returns the store with the model's configuration: of the base, if c is an adapter merged
// into it. Otherwise it is store, the store of c.
func (f *conversionFlags) model(store blob.Store, c storage.Checkpoint) (blob.Store, error) {
	m, ok := c.(*adapter.Checkpoint)
	switch {
	case ok:
		f.recipe.Beside = append(f.recipe.Beside, m.Root())
		return m.Root(), nil
	case f.adapter != "":
		return nil, fmt.Errorf("--adapter: %w: %s holds no LoRA adapter: it has no %s", cairn.ErrNotFound, f.adapter, adapter.ConfigName)
	}
	return store, nil
}

// errNotQuantised reports a source without quantised weights.
var errNotQuantised = errors.New("--dequantize: it has no weights that are quantised in a supported way")

// hasQuantised reports whether c, which was opened with dequantisation, differs
// from the checkpoint without it.
func hasQuantised(ctx context.Context, store blob.Store, c storage.Checkpoint) (bool, error) {
	with, err := c.Metadata(ctx)
	if err != nil {
		return false, err
	}
	plain, err := formats.Open(ctx, store, nil)
	if err != nil {
		return false, err
	}
	defer plain.Close()
	without, err := plain.Metadata(ctx)
	if err != nil {
		return false, err
	}
	return len(with.Entries) != len(without.Entries), nil // scales are not entries in that case
}

func (f *conversionFlags) options(cmd *cobra.Command, to *destination) (*convert.Options, error) {
	o := &f.Options
	var err error
	if o.Mesh, err = parseMesh(f.mesh); err != nil {
		return nil, usagef(cmd, "--mesh: %v", err)
	}
	for name, n := range map[string]int{"world-size": f.WorldSize, "shards": f.shards, "parallel": f.Parallel} {
		if n < 0 || n == 0 && cmd.Flags().Changed(name) {
			return nil, usagef(cmd, "--%s %d: want 1 or more", name, n)
		}
	}
	if f.shards > 0 && f.maxShard > 0 {
		return nil, usagef(cmd, "--shards and --max-shard-size contradict each other")
	}
	o.Inline = formats.Inline(to.format)
	o.Merge = f.merge || formats.WholeTensors(to.format) && !f.resharded()
	if err := f.record(cmd, to, o); err != nil {
		return nil, err
	}
	out := outputOf(cmd)
	o.Logger = out.logger()
	o.Warn = func(err error) { out.warn("%s: %s", cmd.CommandPath(), clean(oneLine(err.Error()))) }
	return o, nil
}

// modelOfFSDP makes a conversion of ranked files of FSDP into the form of Hugging Face a
// conversion of the model, under its own names: that form has no place for the states of the
// optimizer. Options that say which names to convert, and a recipe, count instead.
func (f *conversionFlags) modelOfFSDP(from string, to *destination, o *convert.Options) {
	if from != formats.FSDP || to.format != formats.HF || len(o.Select)+len(o.Exclude)+len(o.Rename) > 0 || f.recipe.Recipe != "" {
		return
	}
	o.Select, o.Rename = []string{"model.*"}, []string{"model.*=*"}
}

// record sets the step and the tags of the flags.
func (f *conversionFlags) record(cmd *cobra.Command, to *destination, o *convert.Options) error {
	if cmd.Flags().Changed("step") {
		if f.step < 0 {
			return usagef(cmd, "--step %d: want 0 or more", f.step)
		}
		o.Step = &f.step
	}
	for _, tag := range f.tags {
		key, value, ok := strings.Cut(tag, "=")
		if _, twice := o.Tags[key]; !ok || key == "" || twice {
			return usagef(cmd, "--tag %q: want KEY=VALUE, each key once", tag)
		}
		if o.Tags == nil {
			o.Tags = map[string]string{}
		}
		o.Tags[key] = value
	}
	if (o.Step != nil || o.Tags != nil) && !formats.Records(to.format) {
		return usagef(cmd, "--step and --tag: the format %s has no place for them", to.format)
	}
	return nil
}

func (f *conversionFlags) resharded() bool { return f.WorldSize > 0 || f.mesh != "" }

func parseMesh(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var out []int
	for part := range strings.SplitSeq(strings.ToLower(text), "x") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is not a mesh: want sizes such as 2x4", text)
		}
		out = append(out, n)
	}
	return out, nil
}

func (f *conversionFlags) plan(cmd *cobra.Command, job *convert.Job, to *destination, p *conversionPlan) error {
	if to.place != nil {
		if err := to.place.Check(); err != nil {
			return err
		}
	}
	var err error
	if p.KeptFiles, p.Continues, err = to.begun(cmd.Context(), job); err != nil {
		return err
	}
	if to.place != nil {
		to.trial = &mem.Store{Name: "trial"} // hides the files of an interrupted run
	}
	t, err := to.open(cmd.Context(), job)
	if err != nil {
		return err
	}
	if p.Summary, err = convert.Check(cmd.Context(), job, t); err != nil {
		return err
	}
	o := outputOf(cmd)
	return o.result(p, func() { printConversionPlan(o, p) })
}

func (f *conversionFlags) explain(cmd *cobra.Command, src string, err error) error {
	names := f.recipe.listHint(src)
	refused, isRefused := errors.AsType[*convert.RefusedError](err)

	switch {
	case isOtherFormat(err):
		return err // it has its own advice
	case errors.Is(err, convert.ErrOption):
		return usagef(cmd, "%v", err)
	case isRefused && len(refused.Tensors) > 0:
		return withHint(err, "--dtype casts tensors to a type that the format has, and --exclude leaves names out")
	case isRefused:
		return withHint(err, "--skip-objects leaves them out, --select and --exclude choose names")
	case errors.Is(err, convert.ErrOccupied) && f.overwrite:
		return withHint(err, "--overwrite replaces a checkpoint and nothing else: remove what is there, or give DST another path")
	}

	if hint := baseHint(cmd.Context(), src); errors.Is(err, slime.ErrChain) && hint != "" {
		return withHint(err, hint)
	}

	exists := "--overwrite replaces it, once the new checkpoint is complete"
	if f.to == formats.Slime {
		exists = "a version is never replaced: DST is the folder of the next one"
	}

	for _, h := range []struct {
		err  error
		hint string
	}{
		{slime.ErrBase, "--base gives its path"},
		{slime.ErrBefore, "a version has the changes since the one before, which must be beside DST; --to hf writes a full version"},
		{storage.ErrNotRepresentable, "--skip-objects leaves it out"}, // about the whole checkpoint
		{storage.ErrExists, exists},
		{convert.ErrBusy, busyHint()},
		{convert.ErrOccupied, "give DST another path"},
		{cairn.ErrMissing, names},
		{convert.ErrEmpty, names},
		{storage.ErrCorrupt, "'cairn verify' lists all that is missing or damaged; --exclude leaves names out, --skip-damaged the names of files that cannot be read"},
		{convert.ErrCollision, "--exclude leaves one of them out, another --rename tells them apart"},
	} {
		if errors.Is(err, h.err) {
			return withHint(err, h.hint)
		}
	}
	return err
}

// busyHint returns advice on another conversion to the same place, which may be
// another rank.
func busyHint() string {
	if new(tcp.Env).Launched() {
		return "a launcher has started several ranks: --job makes them share the work"
	}
	return "wait for it to end, or give DST another path"
}

func printConverted(o *output, r *conversionResult) {
	o.remark("%s: %s: %s, %s, %s in %s (%s, %s)\n", clean(r.Target), o.good("complete"), plural(r.Tensors, "tensor"),
		plural(r.Objects, "object"), formatBytes(r.FileBytes), plural(r.Files, "file"), formatSeconds(r.Seconds),
		formatRate(float64(r.Bytes)/max(r.Seconds, 1e-9)))
	printTraffic(o, r.Source, r.Read)
	printTraffic(o, r.Target, r.Written)
	if r.KeptFiles > 0 {
		o.remark("%s were finished by an earlier run\n", plural(r.KeptFiles, "file"))
	}
	for _, name := range r.Skipped {
		o.printf("left out: %s\n", clean(name))
	}
	printDamaged(o, r.Damaged)
	printInexact(o, r.Inexact)
}

// printInexact prints the tensors that a recipe rounds.
func printInexact(o *output, inexact []recipe.Inexact) {
	for _, x := range recipe.Group(inexact) {
		o.printf("not exact: %s: %s\n", clean(x.Name), clean(x.Reason))
	}
}

// printDamaged prints names that a conversion leaves out because they cannot be read.
func printDamaged(o *output, names []inspect.Missing) {
	for _, m := range names {
		o.printf("left out, damaged: %s: %s: %s\n", clean(m.FQN), clean(m.File), clean(m.Problem))
	}
}

// printTraffic prints the requests to a store, if the store counts them.
func printTraffic(o *output, address string, t *blob.Traffic) {
	if t != nil {
		text := fmt.Sprintf("%s, %s sent, %s received", plural(t.Requests, "request"), formatBytes(t.Sent), formatBytes(t.Received))
		if t.Cached > 0 {
			text += fmt.Sprintf(", %s from the cache", formatBytes(t.Cached))
		}
		if t.Retries+t.Hedges > 0 {
			text += fmt.Sprintf("; %d of the requests repeated and %d hedged", t.Retries, t.Hedges)
		}
		o.remark("%s: %s\n", clean(blob.Redact(address)), text)
	}
}

// printRecipePlan prints the tensors that a conversion through a recipe would make,
// and the sources of each.
func printRecipePlan(o *output, p *conversionPlan) {
	t := newRows("NAME", "SHAPE", "FROM", "OPERATIONS", ">LINE")
	for _, it := range p.Items {
		from := strings.Join(it.Sources, ", ")
		if n := len(it.Sources); n > 3 {
			from = fmt.Sprintf("%s, %s, … %s (%d)", it.Sources[0], it.Sources[1], it.Sources[n-1], n)
		}
		line := ""
		if it.Rule > 0 {
			line = strconv.Itoa(it.Rule)
		}
		t.add(clean(it.Name), formatShape(it.Shape), clean(from), it.Operations, line)
	}
	o.table(t)
	for _, d := range recipe.Group(p.Dropped) {
		o.printf("dropped: %s: %s\n", clean(d.Name), clean(d.Reason))
	}
	printInexact(o, p.Inexact)
	printPlanned(o, p)
}

func printConversionPlan(o *output, p *conversionPlan) {
	if p.Recipe != "" {
		printRecipePlan(o, p)
		return
	}
	t := newRows("NAME", "FROM", "DTYPE", "SHAPE", ">CHUNKS", ">SIZE")
	for _, it := range p.Items {
		dtype := it.DType
		if it.FromDType != "" {
			dtype = it.FromDType + " → " + it.DType
		}
		if it.Kind == "object" {
			t.add(clean(it.Name), clean(it.From), "object", "", "", formatBytes(it.Bytes))
			continue
		}
		t.add(clean(it.Name), clean(it.From), dtype, formatShape(it.Shape), strconv.Itoa(it.Chunks), formatBytes(it.Bytes))
	}
	o.table(t)
	printPlanned(o, p)
}

// printPlanned prints the last lines of a plan.
func printPlanned(o *output, p *conversionPlan) {
	printDamaged(o, p.Damaged)
	o.remark("\n%s to %s: %s, %s, %s for %s", p.From, p.To, plural(p.Tensors, "tensor"),
		plural(p.Objects, "object"), formatBytes(p.Bytes), plural(p.Ranks, "rank"))
	if n := len(p.Skipped); n > 0 {
		o.remark("; %s that the format cannot hold skipped", plural(n, "object"))
	}
	if n := len(p.Dropped); n > 0 {
		o.remark("; %s dropped", plural(n, "name"))
	}
	if p.LeftOut > 0 {
		o.remark("; %s left out", plural(p.LeftOut, "name"))
	}
	if p.Continues {
		o.remark("; an interrupted run would be continued, with %s finished", plural(p.KeptFiles, "file"))
	}
	o.remark("; nothing was written\n")
}

func completeConversion(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// completeDTypes completes a dtype, also after a pattern.
func completeDTypes(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	glob := ""
	if i := strings.LastIndexByte(word, '='); i >= 0 {
		glob = word[:i+1]
	}
	var out []string
	for _, d := range tensor.DTypes() {
		out = append(out, glob+d.String())
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
