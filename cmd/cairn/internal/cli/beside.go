package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/convert"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/recipe"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/adapter"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/view"
)

// modelFiles are the files of a model in the form of Hugging Face that are not weights.
var modelFiles = []string{
	"config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json", "tokenizer*", "special_tokens_map.json",
	"added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.tiktoken", "spiece.model",
}

// configFile is the file with the configuration of a model.
const configFile = "config.json"

// hfFolder is the folder of a checkpoint of verl with the model's files.
const hfFolder = "huggingface"

// maxBeside bounds the size of a file that is copied beside the weights.
const maxBeside = 256 << 20

// beside finds the files to write beside the new checkpoint. --with names them. Without it,
// if the result has the form of Hugging Face, they are the model's files in the source and
// in the folder of --config. from is the format of the source. A result in the form of Megatron gets the files of its loader.
func (f *conversionFlags) beside(ctx context.Context, store blob.Store, src, from string, to *destination, c storage.Checkpoint) error {
	to.with = map[string][]byte{}
	to.from, to.plain = src, f.dequantize
	under := c
	for v, ok := under.(*view.Checkpoint); ok; v, ok = under.(*view.Checkpoint) {
		under = v.Source()
	}
	if a, ok := under.(*adapter.Checkpoint); ok {
		to.untied = a.Untied()
	}
	v, through := c.(*view.Checkpoint)
	if through {
		to.view = c
	}

	if to.place != nil && to.place.File != "" || to.object != "" {
		if len(f.with) > 0 {
			return errors.New("--with: DST is one file, so there is no folder for other files")
		}
		return nil
	}

	for _, name := range f.with {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("--with: %w", err)
		}
		to.with[filepath.Base(name)] = text
	}

	if through && to.format == formats.TorchDCP && v.Binding().To == "megatron" {
		md, err := v.Metadata(ctx)
		if err != nil {
			return err
		}
		if to.made, err = torchdcp.MegatronFiles(md.Names(), v.Storage().Step, to.common); err != nil {
			return err
		}
	}

	if r, ok := c.(interface{ Root() blob.Store }); ok && len(f.with) == 0 && to.format == formats.HF { // a version has no such files
		return to.copyBeside(ctx, r.Root())
	}

	isHF := from == formats.HF || from == formats.FSDP
	if through {
		isHF = v.Binding().To == "hf"
	}
	if len(f.with) > 0 || to.format != formats.HF || !isHF {
		return nil
	}

	if err := f.besideConfig(to); err != nil {
		return err
	}
	if from == formats.FSDP { // verl keeps them in a folder of their own
		at, err := blob.NewSub(store, hfFolder)
		if err != nil {
			return err
		}
		store = at
	}
	return to.copyBeside(ctx, store)
}

// copyBeside adds the model's files in a store.
func (to *destination) copyBeside(ctx context.Context, store blob.Store) error {
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return err
		}
		if !isModelFile(info.Name) || info.Size > maxBeside || to.with[info.Name] != nil {
			continue
		}
		text, err := blob.ReadAll(ctx, store, info.Name, maxBeside)
		if err != nil {
			return err
		}
		to.with[info.Name] = text
	}

	conf := to.with[configFile]
	if conf != nil && to.plain {
		conf = withoutQuantisation(conf)
	}
	if conf != nil && to.untied {
		conf = withoutTying(conf)
	}
	if conf != nil {
		to.with[configFile] = conf
	}
	return nil
}

// withoutQuantisation returns a configuration without the parts that say that weights are
// quantised. Text that is not a configuration, or has no such part, stays as it is.
func withoutQuantisation(text []byte) []byte {
	var conf map[string]json.RawMessage
	if json.Unmarshal(text, &conf) != nil {
		return text
	}
	changed := false
	for _, name := range []string{quantisation, "compression_config"} { // the second one is older
		changed = changed || conf[name] != nil
		delete(conf, name)
	}

	var inner map[string]json.RawMessage
	if json.Unmarshal(conf["text_config"], &inner) == nil && inner[quantisation] != nil {
		changed = true
		delete(inner, quantisation)
		conf["text_config"], _ = json.Marshal(inner) // made of JSON
	}
	if !changed {
		return text
	}
	out, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return text
	}
	return append(out, '\n')
}

// withoutTying returns a configuration that says that the output layer has a tensor of its own.
// Text that is not a configuration stays as it is.
func withoutTying(text []byte) []byte {
	var conf map[string]json.RawMessage
	if json.Unmarshal(text, &conf) != nil || conf == nil {
		return text
	}
	conf["tie_word_embeddings"] = json.RawMessage("false")
	out, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return text
	}
	return append(out, '\n')
}

// quantisation is the part of a configuration that describes quantised weights.
const quantisation = "quantization_config"

// lacksConfig reports whether the result has the form of Hugging Face, and a folder without
// a config.json, which transformers needs.
func (d *destination) lacksConfig() bool {
	v, ok := d.view.(*view.Checkpoint)
	if !ok || d.place == nil || d.place.File != "" || d.format != formats.HF || v.Binding().To != "hf" || d.with["config.json"] != nil {
		return false
	}
	_, err := os.Stat(filepath.Join(d.place.Path, "config.json"))
	return errors.Is(err, fs.ErrNotExist)
}

// besideConfig adds the model's files in the folder of --config.
func (f *conversionFlags) besideConfig(to *destination) error {
	if f.recipe.Config == "" {
		return nil
	}
	dir := f.recipe.Config
	if info, err := os.Stat(dir); err != nil {
		return err
	} else if !info.IsDir() {
		text, err := os.ReadFile(dir)
		if err != nil {
			return err
		}
		to.with[configFile] = text
		dir = filepath.Dir(dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxBeside || !isModelFile(e.Name()) || to.with[e.Name()] != nil {
			continue
		}
		if to.with[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func isModelFile(name string) bool {
	return slices.ContainsFunc(modelFiles, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// manifestName is the file that says how a checkpoint was made through a recipe.
const manifestName = "cairn-manifest.json"

// manifest describes the contents of a checkpoint, and the recipes that made it.
type manifest struct {
	Cairn  string `json:"cairn"`
	Source string `json:"source"`
	SaveID string `json:"save_id,omitempty"`
	// Export is what was asked for, and Of the checkpoint as the id of its run and its folder, if
	// this is an export. It is Unfinished before the checkpoint is there.
	Export     string           `json:"export,omitempty"`
	Of         string           `json:"of,omitempty"`
	Unfinished bool             `json:"unfinished,omitempty"`
	Recipes    []manifestRecipe `json:"recipes"`
	Tensors    int              `json:"tensors"`
	Objects    int              `json:"objects"`
	Bytes      int64            `json:"bytes"`
	// Compared is the number of elements whose sums and sums of squares were the same in
	// the source and in the result.
	Compared int64                `json:"elements_compared"`
	Digests  []convert.ItemDigest `json:"digests"`
}

type manifestRecipe struct {
	Name      string           `json:"name"`
	SHA256    string           `json:"sha256"`
	From      string           `json:"from"`
	To        string           `json:"to"`
	Variables map[string]any   `json:"variables"`
	Sources   int              `json:"sources"`
	Dropped   []recipe.Dropped `json:"dropped"`
	// Inexact are the tensors with elements that the recipe rounds.
	Inexact []recipe.Inexact `json:"inexact"`
}

// recipesOf returns the recipes of a view, the first one first.
func recipesOf(ctx context.Context, c storage.Checkpoint) ([]manifestRecipe, error) {
	v, ok := c.(*view.Checkpoint)
	if !ok {
		return nil, nil
	}
	out, err := recipesOf(ctx, v.Source())
	if err != nil {
		return nil, err
	}
	var md *meta.Metadata
	if md, err = v.Source().Metadata(ctx); err != nil {
		return nil, err
	}
	b := v.Binding()
	return append(out, manifestRecipe{
		Name: b.Recipe.Name, SHA256: b.Recipe.SHA256, From: b.From, To: b.To, Variables: b.Variables,
		Sources: len(md.Entries), Dropped: append([]recipe.Dropped{}, b.Dropped...), Inexact: b.Inexact(),
	}), nil
}

// droppedBy returns the names that the recipes of a view leave out.
func droppedBy(c storage.Checkpoint) []recipe.Dropped {
	v, ok := c.(*view.Checkpoint)
	if !ok {
		return nil
	}
	return append(droppedBy(v.Source()), v.Binding().Dropped...)
}

// inexactBy returns the tensors that the recipes of a view round.
func inexactBy(c storage.Checkpoint) []recipe.Inexact {
	v, ok := c.(*view.Checkpoint)
	if !ok {
		return nil
	}
	return append(inexactBy(v.Source()), v.Binding().Inexact()...)
}

// writeBeside writes the files that belong beside the new checkpoint, and the manifest.
func (d *destination) writeBeside(ctx context.Context, rep *convert.Report) error {
	files := map[string][]byte{}
	for name, text := range d.with {
		if d.place != nil && d.export.Export == "" {
			if _, err := os.Stat(filepath.Join(d.place.Path, name)); err == nil {
				continue // the folder has its own
			}
		}
		files[name] = text
	}
	for name, text := range d.made {
		if d.with[name] == nil {
			files[name] = text
		}
	}
	if d.view != nil {
		recipes, err := recipesOf(ctx, d.view)
		if err != nil {
			return err
		}
		text, err := json.MarshalIndent(&manifest{
			Cairn: cairn.Version, Source: blob.Redact(d.from), SaveID: d.view.Storage().SaveID, Export: d.export.Export, Of: d.export.Of, Recipes: recipes, Tensors: rep.Tensors, Objects: rep.Objects,
			Bytes: rep.Bytes, Compared: rep.Compared, Digests: rep.Digests,
		}, "", "  ")
		if err != nil {
			return err
		}
		files[manifestName] = append(text, '\n')
	}
	return d.writeFiles(ctx, files)
}

// writeFiles writes files into the folder of the new checkpoint; the manifest of a single
// file lies beside it.
func (d *destination) writeFiles(ctx context.Context, files map[string][]byte) error {
	if len(files) == 0 {
		return nil
	}

	var store blob.Store
	var err error
	prefix := ""
	switch {
	case d.place != nil && d.place.File != "":
		dir, name := filepath.Split(d.place.Path)
		prefix = name + "."
		store, err = blob.OpenAddress(ctx, filepath.Clean(dir))
	case d.object != "":
		dir, name := blob.SplitAddress(d.address)
		prefix = name + "."
		store, err = blob.OpenAddress(ctx, dir)
	default:
		store, err = d.store(ctx)
	}
	if err != nil {
		return err
	}

	last := func(name string) int { return map[bool]int{true: 1}[name == manifestName] } // it says that all is there
	for _, name := range slices.SortedFunc(maps.Keys(files), func(a, b string) int { return cmp.Or(last(a)-last(b), strings.Compare(a, b)) }) {
		text := files[name]
		if _, ok := d.with[name]; ok && d.place == nil && d.export.Export == "" {
			if _, err := store.Stat(ctx, prefix+name); !errors.Is(err, fs.ErrNotExist) {
				if err != nil {
					return err
				}
				continue // the folder has its own
			}
		}
		if _, err := blob.WriteAll(ctx, store, prefix+name, text, nil); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// maxManifest bounds the size of a manifest.
const maxManifest = 1 << 30

// manifestCheck is the result of a comparison of a checkpoint with its manifest.
type manifestCheck struct {
	Tensors  int // in the manifest
	Bytes    int64
	Problems []storage.VerifyProblem
}

// verifyManifestTogether is verifyManifest, on rank 0 of a job. All ranks receive its result.
func verifyManifestTogether(cmd *cobra.Command, address string, g group.Group) (*manifestCheck, error) {
	if g == nil {
		return verifyManifest(cmd, address)
	}
	return group.Broadcast(cmd.Context(), g, "manifest", 0, group.JSON[*manifestCheck](), func(context.Context) (*manifestCheck, error) {
		return verifyManifest(cmd, address)
	})
}

// verifyManifest compares a checkpoint with its manifest.
func verifyManifest(cmd *cobra.Command, address string) (*manifestCheck, error) {
	ctx := cmd.Context()
	store, err := openStore(ctx, checkpointAddress(ctx, address))
	if err != nil {
		return nil, err
	}
	if store, _, err = formats.Locate(ctx, store); err != nil {
		return nil, err
	}

	beside, name := store, manifestName
	if one, ok := store.(*blob.Single); ok {
		beside, name = one.Unwrap(), one.Name()+"."+manifestName
	}

	text, err := blob.ReadAll(ctx, beside, name, maxManifest)
	if err != nil {
		return nil, withHint(fmt.Errorf("%s: %w", address, err), "'cairn convert --recipe' writes a manifest")
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", cairn.ErrCorrupt, name, err)
	}

	if m.Unfinished {
		return nil, fmt.Errorf("%w: %s: the export is not finished", storage.ErrIncomplete, address)
	}

	c, err := formats.Open(ctx, store, nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()

	check := &manifestCheck{Tensors: m.Tensors}
	var read atomic.Int64
	err = outputOf(cmd).withProgress("manifest", m.Bytes, func(moved func(int64)) (err error) {
		check.Problems, err = convert.CheckDigests(ctx, c, m.Digests, func(n int64) {
			read.Add(n)
			moved(n)
		})
		return err
	})

	for i := range check.Problems {
		check.Problems[i].File = name
	}
	check.Bytes = read.Load()
	return check, err
}
