package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/slime"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
)

// destination is the target of a conversion.
type destination struct {
	format  string
	address string
	// place is the path at which the checkpoint appears. It is nil if address is
	// not in a file system; then the conversion writes to the store directly.
	place *convert.Place
	opts  formats.Options
	write storage.WriteOptions
	// object is the name of the single object at address, if address names one and is
	// not a path in a file system.
	object string
	group  group.Group          // the ranks that convert together; nil: this process is alone
	since  func() *blob.Traffic // counts the requests to the store of the result; nil: it is not open
	// with are files to copy into the folder of the result unless it has its own, and made
	// are files that belong to the result. view is the view that is converted, if a recipe
	// is used: the result gets a manifest.
	with  map[string][]byte
	plain bool // weights are dequantised, and the configuration must not say that they are quantised
	// untied means that the configuration has to say that the output layer has a tensor of its own.
	untied bool
	made   map[string][]byte
	// common is the common state of a checkpoint for Megatron. Nil: there is none.
	common *torchdcp.Common
	view   storage.Checkpoint
	from   string     // the address of the source
	export manifest   // has the fields Export and Of of an export
	trial  blob.Store // replaces every other store in a dry run
}

// safetensorsFile is the file of a checkpoint of one file in the format hf.
const safetensorsFile = "model.safetensors"

func (f *conversionFlags) target(cmd *cobra.Command, from, dst string) (*destination, error) {
	d := &destination{address: dst}
	path, local, err := file.LocalPath(dst)
	if err != nil {
		return nil, usagef(cmd, "%v", err)
	}
	if d.format, err = f.format(cmd, from, path); err != nil {
		return nil, err
	}

	if local {
		path = behindLink(path)
	}
	d.opts = formats.Options{MaxFileBytes: int64(f.maxShard), Shards: f.shards, Distributed: f.resharded()}
	if err := f.delta(cmd, d); err != nil {
		return nil, err
	}

	if f.shards > storage.MaxFilesPerRank && d.format != formats.HF {
		return nil, usagef(cmd, "--shards %d: --to %s takes at most %d", f.shards, d.format, storage.MaxFilesPerRank)
	}
	d.write = storage.WriteOptions{FilesPerRank: min(f.shards, storage.MaxFilesPerRank), FailIfExists: !f.overwrite}
	if d.format == formats.Torch && f.resharded() {
		return nil, usagef(cmd, "--to torch is one file of whole tensors, without --world-size and --mesh")
	}

	if !local {
		return d, f.object(cmd, d)
	}

	d.place = &convert.Place{
		Path: path, Overwrite: f.overwrite, File: f.file(d, path), Look: checkpointFiles, Accept: d.accept, Record: describes,
	}
	if f.export.Export != "" { // the files beside an earlier result belong to it
		d.place.Look = func(path string) ([]string, error) {
			names, err := checkpointFiles(path)
			return slices.AppendSeq(names, maps.Keys(d.with)), err
		}
	}
	if d.place.File == "" {
		return d, nil
	}

	if f.shards > 1 || f.maxShard > 0 || f.resharded() {
		return nil, usagef(cmd, "%s is one file: --shards, --max-shard-size and shardings need a directory", dst)
	}
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		return nil, usagef(cmd, "%s is a directory: name the file, such as %s", dst, filepath.Join(dst, "model"+torchSuffixes[0]))
	}
	d.opts.File, d.opts.MaxFileBytes, d.opts.Shards, d.write.FilesPerRank = d.place.File, 0, 0, 0
	return d, nil
}

// delta sets the options of a delta version.
func (f *conversionFlags) delta(cmd *cobra.Command, d *destination) error {
	switch _, name := blob.SplitAddress(filepath.ToSlash(d.address)); {
	case d.format != formats.Slime && (f.encoding != "" || f.checksum != ""):
		return usagef(cmd, "--delta-encoding and --delta-checksum need --to %s", formats.Slime)
	case d.format != formats.Slime:
		return nil
	case f.shards > 0 || f.maxShard > 0 || f.resharded():
		return usagef(cmd, "--to %s holds whole tensors, in files of its own: leave out --shards, --max-shard-size and shardings", d.format)
	case f.overwrite:
		return usagef(cmd, "--to %s never replaces a version: leave out --overwrite", d.format)
	case !slime.IsFolder(name):
		return usagef(cmd, "--to %s: DST is the folder of a version, such as %s", d.format, slime.Folder(4))
	}
	d.opts.Base, d.opts.Encoding, d.opts.Checksum, d.opts.Folder = baseOf(cmd.Context()), f.encoding, f.checksum, d.address
	return nil
}

// object sets the object of a checkpoint of one file, if address is not a path.
func (f *conversionFlags) object(cmd *cobra.Command, d *destination) error {
	_, name := blob.SplitAddress(d.address)
	suffix := strings.ToLower(filepath.Ext(name))
	switch {
	case d.format == formats.Torch && !slices.Contains(torchSuffixes, suffix):
		d.opts.File = "model.pt" // in a folder
		return nil
	case d.format != formats.Torch && (d.format != formats.HF || suffix != hfSuffix):
		return nil
	case d.format == formats.HF && name != safetensorsFile:
		return usagef(cmd, "%s: the single file of a URL is called %s", blob.Redact(d.address), safetensorsFile)
	case f.shards > 1 || f.maxShard > 0 || f.resharded():
		return usagef(cmd, "%s is one file: --shards, --max-shard-size and shardings need a directory", blob.Redact(d.address))
	}
	d.object, d.opts.File, d.opts.MaxFileBytes, d.opts.Shards, d.write.FilesPerRank = name, name, 0, 0, 0
	return nil
}

// behindLink returns the target of a symbolic link, so that the checkpoint is
// written there and the link stays.
func behindLink(path string) string {
	if fi, err := os.Lstat(path); err != nil || fi.Mode()&os.ModeSymlink == 0 {
		return path
	}
	if behind, err := filepath.EvalSymlinks(path); err == nil {
		return behind
	}
	return path
}

// torchSuffixes are the suffixes of files of torch.save.
var torchSuffixes = []string{".pt", ".pth", ".bin", ".ckpt"}

const hfSuffix = ".safetensors"

var formatAliases = map[string]string{
	"cairn": formats.Native, "dcp": formats.TorchDCP, "safetensors": formats.HF, "huggingface": formats.HF,
	"pt": formats.Torch, "pth": formats.Torch, "hyper_parallel": formats.Hyper, "miles": formats.Slime,
}

func (f *conversionFlags) format(cmd *cobra.Command, from, path string) (string, error) {
	suffix := strings.ToLower(filepath.Ext(path))
	switch to := f.named(); {
	case to != "":
		return to, nil
	case slices.Contains(torchSuffixes, suffix):
		return formats.Torch, nil
	case suffix == hfSuffix:
		return formats.HF, nil
	case f.merge && from == formats.Slime:
		return formats.HF, nil
	case f.merge && from != formats.Torch: // torch is one file, and the target is a directory
		return from, nil
	case f.merge:
		return formats.Native, nil
	}
	if to := f.recipe.format(from); to != "" {
		return to, nil
	}
	return "", usagef(cmd, "--to is missing: want one of %s", strings.Join(formats.Writable(), ", "))
}

// named returns the format that --to names, or "" without --to.
func (f *conversionFlags) named() string { return cmp.Or(formatAliases[strings.ToLower(f.to)], f.to) }

// checkFormat refuses a --to that names no format that cairn writes. It needs neither checkpoint.
func (f *conversionFlags) checkFormat(cmd *cobra.Command) error {
	to := f.named()
	isForm := func(n recipe.Name) bool { return n.To == to && to != formats.HF }
	switch {
	case slices.ContainsFunc(recipe.Names(), isForm):
		return usagef(cmd, "--to %s: it is a form of the weights, not a format: use --recipe hf-to-%s, and --to for one of %s", f.to, to, strings.Join(formats.Writable(), ", "))
	case to != "" && !slices.Contains(formats.Writable(), to):
		return usagef(cmd, "--to %s: want one of %s", f.to, strings.Join(formats.Writable(), ", "))
	}
	return nil
}

// file returns the writers' name for a checkpoint of one file, or "" if the
// checkpoint is a directory.
func (f *conversionFlags) file(d *destination, path string) string {
	switch {
	case d.format == formats.Torch:
		return filepath.Base(path)
	case d.format == formats.HF && strings.EqualFold(filepath.Ext(path), hfSuffix):
		return safetensorsFile
	}
	return ""
}

// begun reports whether the job would continue an interrupted run, and how many
// files that run has finished.
func (d *destination) begun(ctx context.Context, job *convert.Job) (int, bool, error) {
	if d.place != nil {
		if _, err := os.Stat(d.place.Staging()); err != nil {
			return 0, false, nil
		}
	}
	t, err := d.open(ctx, job)
	if err != nil {
		return 0, false, err
	}
	return convert.Begun(ctx, job, t)
}

func (d *destination) open(ctx context.Context, job *convert.Job) (*convert.Target, error) {
	ranks, size := job.Size()
	opts, write := formats.ForConversion(d.format, d.opts, d.write, ranks, size)
	if d.group != nil { // hosts may have different numbers of processors
		var err error
		write.FilesPerRank, err = group.Broadcast(ctx, d.group, "lay out", 0, group.JSON[int](), func(context.Context) (int, error) { return write.FilesPerRank, nil })
		if err != nil {
			return nil, err
		}
	}

	if d.place != nil {
		write.FailIfExists = false // it is in a directory of its own
	}
	f, err := formats.ByName(d.format, &opts)
	if err != nil {
		return nil, err
	}
	store, err := d.store(ctx)
	if err != nil {
		return nil, err
	}

	same := write
	same.FailIfExists = false // it does not change the files
	t := &convert.Target{Format: d.format, Details: fmt.Sprintf("%+v %+v", opts, same), Where: d.address}
	t.NewWriter = func(bufferBytes int64) (storage.Writer, error) {
		o := write
		o.BufferBytes = bufferBytes
		if d.place == nil { // the staging directory of a place is empty
			o.Others = formats.CheckOthers
		}
		return f.NewWriter(store, o)
	}

	if d.place != nil {
		t.Staging = store
		return t, nil
	}

	t.Committed = func(ctx context.Context, rep *convert.Report) error { return d.writeBeside(ctx, rep) }
	if d.opts.File == "" { // a single file has no place for a journal, so its conversion cannot continue
		t.Direct = store
		t.Leftovers = func(ctx context.Context, saveID string) ([]string, error) {
			left, err := leftoversOf(ctx, store, saveID)
			var names []string
			for _, l := range left {
				names = append(names, l.Name)
			}
			return names, err
		}
	}
	return t, nil
}

// leftoversOf returns the files of a save that no checkpoint needs.
func leftoversOf(ctx context.Context, store blob.Store, saveID string) ([]commit.Leftover, error) {
	left, err := formats.Leftovers(ctx, store)
	return slices.DeleteFunc(left, func(l commit.Leftover) bool { return saveID == "" || l.SaveID != saveID }), err
}

// convert runs a conversion and publishes its result. In a job, rank 0 does all that has to
// be done once.
func (d *destination) convert(ctx context.Context, o *output, job *convert.Job) (*convert.Report, error) {
	if d.place == nil {
		rep, err := d.run(ctx, job)
		if err != nil && isFirst(d.group) && d.unfinished(context.WithoutCancel(ctx)) {
			o.warn("%s keeps the files that are finished; the same command goes on from there", clean(blob.Redact(d.address)))
		}
		return rep, err
	}

	defer d.place.Unlock() // a remaining lock does not delay other conversions
	err := onFirst(ctx, d.group, "prepare", func() error {
		err := d.place.Lock()
		if errors.Is(err, errors.ErrUnsupported) {
			o.warn("the file system of %s has no locks: start no second conversion to it meanwhile", clean(d.address))
		} else if err != nil {
			return err
		}
		return d.place.Prepare()
	})
	if err != nil {
		return nil, err
	}

	rep, err := d.run(ctx, job)
	staging := d.place.Staging()
	if err != nil && !isFirst(d.group) {
		return nil, err
	}

	if err != nil {
		discardErr := d.place.Discard()
		if _, statErr := os.Stat(staging); discardErr == nil && statErr == nil {
			o.warn("%s keeps the files that are finished; the same command goes on from there", clean(staging))
		}
		return nil, err
	}

	err = onFirst(context.WithoutCancel(ctx), d.group, "publish", func() error {
		if err := d.writeBeside(ctx, rep); err != nil {
			return err
		}
		return d.place.Publish()
	})
	if err != nil {
		return nil, withHint(err, fmt.Sprintf("the new checkpoint is complete, in %s", quoteArg(staging)))
	}
	return rep, nil
}

func (d *destination) run(ctx context.Context, job *convert.Job) (*convert.Report, error) {
	t, err := d.open(ctx, job)
	if err != nil {
		return nil, err
	}
	return convert.Run(ctx, job, t)
}

// unfinished reports whether the place of the result has the journal of a conversion.
func (d *destination) unfinished(ctx context.Context) bool {
	if d.opts.File != "" {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, unfinishedTime)
	defer cancel()
	store, err := d.openURL(ctx)
	if err != nil {
		return false
	}
	u, err := convert.UnfinishedIn(ctx, store)
	return u != nil && err == nil
}

// unfinishedTime bounds how long a remark about an unfinished conversion may take.
const unfinishedTime = 10 * time.Second

// store returns the store that the writers write to.
func (d *destination) store(ctx context.Context) (blob.Store, error) {
	if d.trial != nil {
		return d.trial, nil
	}
	if d.place != nil {
		return file.Open(d.place.Staging(), nil)
	}
	s, err := d.openURL(ctx)
	if err == nil {
		d.since = blob.Since(s)
	}
	return s, err
}

// openURL opens a store that is not in a file system.
func (d *destination) openURL(ctx context.Context) (blob.Store, error) {
	if d.object == "" {
		return blob.OpenAddress(ctx, d.address)
	}
	dir, name := blob.SplitAddress(d.address)
	s, err := blob.OpenAddress(ctx, dir)
	if err != nil {
		return nil, err
	}
	return blob.NewSingle(s, name), nil
}

// written returns the count of requests to the store of the result, or nil.
func (d *destination) written() *blob.Traffic {
	if d.since == nil {
		return nil
	}
	return d.since()
}

// apart refuses a DST that equals SRC, is inside it or contains it: one would
// change while the other is read.
func apart(src, dst string) error {
	a, err := resolved(src)
	if err != nil {
		return err
	}
	b, err := resolved(dst)
	if err != nil {
		return fmt.Errorf("%s: %s", dst, reason(err)) // not an error about a checkpoint
	}
	switch {
	case a == b:
		err = fmt.Errorf("%s and %s are the same", src, dst)
	case within(a, b):
		err = fmt.Errorf("%s lies within %s", src, dst)
	case within(b, a):
		err = fmt.Errorf("%s lies within %s", dst, src)
	}
	return withHint(err, "a checkpoint is not converted in its own place: give DST another path")
}

// outside refuses an output file that would replace a file of the checkpoint c at
// the address src.
func outside(c *cairn.Checkpoint, src, out string) error {
	fi, err := os.Stat(out)
	path, local, pathErr := file.LocalPath(checkpointAddress(context.Background(), src))
	if err != nil || !local || pathErr != nil {
		return nil // there is no file to replace, or src is not a local path
	}
	names := []string{""} // the checkpoint may be one file
	if base := filepath.Base(behindLink(out)); describes(base) {
		names = append(names, base)
	}
	for _, f := range c.Files() {
		names = append(names, filepath.FromSlash(f.Name))
	}
	for _, n := range names {
		if own, err := os.Stat(filepath.Join(path, n)); err == nil && !own.IsDir() && os.SameFile(fi, own) {
			return withHint(fmt.Errorf("%s is part of the checkpoint %s", out, src), "write to another file")
		}
	}
	return nil
}

// within reports whether path is below dir.
func within(path, dir string) bool {
	return strings.HasPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
}

// resolved returns an address in a canonical form. The path need not exist.
func resolved(address string) (string, error) {
	path, local, err := file.LocalPath(address)
	if err != nil || !local {
		return strings.TrimSuffix(address, "/"), err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	rest := ""
	for {
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if !os.IsNotExist(err) || path == filepath.Dir(path) {
			return "", err
		}
		path, rest = filepath.Dir(path), filepath.Join(filepath.Base(path), rest)
	}
}

// checkpointFiles returns the files of the checkpoint at a path, for
// convert.Place.
func checkpointFiles(path string) ([]string, error) {
	ctx := context.Background()
	store, err := blob.OpenAddress(ctx, path)
	if err != nil {
		return nil, err
	}
	c, err := formats.Open(ctx, store, nil)
	if e, ok := errors.AsType[*formats.UnsupportedError](err); ok { // still a checkpoint
		return nil, fmt.Errorf("it is one of %s, by its file %s", e.Format, e.File)
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	out := []string{recordName, piecesRecord, manifestName} // formats do not list them
	for _, f := range c.Files() {
		out = append(out, f.Name)
	}
	if slices.Contains(out, torchdcp.CommonName) {
		out = append(out, torchdcp.ConfigName)
	}
	return out, nil
}

// accept refuses a folder that has files of another format, which a reader would
// take for the checkpoint.
func (d *destination) accept(dir string) error {
	store, err := blob.OpenAddress(context.Background(), dir)
	if err != nil {
		return err
	}
	found, err := formats.Detect(context.Background(), store)
	if err != nil {
		return err
	}
	if found != d.format {
		return fmt.Errorf("%s also holds files of the format %s, which would be taken for the new checkpoint", d.address, found)
	}
	return nil
}
