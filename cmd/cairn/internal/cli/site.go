package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/view"
	"github.com/cairn-ckpt/cairn/web"
)

// siteFlags are the flags of commands that show a checkpoint or a run by package web.
type siteFlags struct {
	recipe  recipeFlags
	cache   string
	noCache bool
	// single is set if the first address must be a checkpoint, not a run.
	single bool
	// wait is set if the first address may be a run that has no checkpoints yet.
	wait bool
	// confined is set if links that lead out of the folders of the command line are not followed.
	confined bool
}

func (f *siteFlags) add(cmd *cobra.Command) {
	f.recipe.add(cmd, "compare the first checkpoint")
	cmd.Flags().StringVar(&f.cache, "cache", "", "keep statistics of checkpoints in this `folder` (default: cairn/explorer in the user's cache folder)")
	cmd.Flags().BoolVar(&f.noCache, "no-cache", false, "do not keep statistics of checkpoints")
}

// open returns a site for args: a checkpoint or a run, and other checkpoints, which get the
// ids "@1", "@2" and so on. It returns an error if one of them is not there.
func (f *siteFlags) open(cmd *cobra.Command, args []string) (*web.Site, error) {
	if f.noCache && f.cache != "" {
		return nil, usagef(cmd, "--cache and --no-cache do not go together")
	}
	if err := f.recipe.check(cmd); err != nil {
		return nil, err
	}

	if baseOf(cmd.Context()) != "" {
		f.noCache, f.cache = true, "" // the statistics depend on the base too
	}

	s := &siteStores{cmd: cmd, recipe: f.recipe.Options, explain: f.recipe.explain, confined: f.confined, wait: f.wait, addresses: map[string]string{}, given: map[string]bool{}}
	o := web.Options{Path: blob.Redact(args[0]), Open: s.open, Cache: f.folder(), Recipe: f.recipe.Recipe, Guess: f.recipe.Recipe == "", Version: readVersion().Version}
	if o.Guess {
		s.recipe.Recipe = "auto"
	}
	if r := secretsOf(args); r != nil {
		o.Redact = r.Replace
	}

	var isRun bool
	var err error
	if f.single {
		err = s.add(web.Self, args[0])
	} else {
		isRun, err = s.addFirst(args[0])
	}
	if err != nil {
		return nil, err
	}

	labels := labelsOf(args, isRun)
	if isRun {
		o.Run = s.list
		if _, local, err := file.LocalPath(args[0]); err != nil || !local || s.run.Remote != nil {
			o.WatchEvery = watchRemoteEvery
		}
	} else {
		o.Checkpoints = append(o.Checkpoints, web.Place{ID: web.Self, Label: labels[0]})
	}

	for i, address := range args[1:] {
		id := s.freeID(fmt.Sprintf("@%d", i+1))
		if err := s.add(id, address); err != nil {
			return nil, err
		}
		o.Checkpoints = append(o.Checkpoints, web.Place{ID: id, Label: labels[i+1], Other: true})
	}

	return web.NewSite(o), nil
}

// watchRemoteEvery is the least time between two lists of a run in object storage for a page that
// waits for new checkpoints: each list has a price.
const watchRemoteEvery = 20 * time.Second

// folder returns the folder for statistics, or "".
func (f *siteFlags) folder() string {
	if f.noCache || f.cache != "" {
		return f.cache
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "" // statistics are computed each time
	}
	return filepath.Join(dir, "cairn", "explorer")
}

// labelsOf returns the labels of checkpoints in the pages: the last parts of their addresses
// if they differ, and otherwise the whole addresses. The OTHERs beside a run have whole
// addresses, too, because the checkpoints of the run may have any name.
func labelsOf(addresses []string, isRun bool) []string {
	short, whole := make([]string, len(addresses)), make([]string, len(addresses))
	seen := map[string]bool{}
	for i, a := range addresses {
		short[i], whole[i] = labelOf(a), blob.Redact(a)
		seen[short[i]] = true
	}
	if isRun || len(seen) < len(short) {
		return whole
	}
	return short
}

// labelOf returns the last part of an address.
func labelOf(address string) string {
	if p, local, err := file.LocalPath(address); err == nil && local {
		if abs, err := filepath.Abs(p); err == nil {
			p = abs
		}
		return filepath.Base(p)
	}
	return path.Base(blob.Redact(address))
}

// siteStores opens the checkpoints of a site.
type siteStores struct {
	cmd     *cobra.Command
	recipe  view.Options // its stores are the folders that may have the model's config.json
	explain func(cmd *cobra.Command, err error) error
	// confined is siteFlags.confined.
	confined bool
	wait     bool // siteFlags.wait
	// run and settings are set if the first address is a run.
	run      *run.Run
	settings run.Settings

	mu        sync.Mutex
	addresses map[string]string // by id; guarded by mu
	given     map[string]bool   // ids of addresses of the command line; guarded by mu
	first     *run.Log          // until list is called first; guarded by mu
}

// addFirst adds the first address. It reports whether the address is a run.
func (s *siteStores) addFirst(address string) (isRun bool, err error) {
	ctx := s.cmd.Context()
	store, err := openStore(ctx, checkpointAddress(ctx, address))
	if err != nil {
		return false, err
	}

	at, _, openErr := formats.Locate(ctx, store)
	_, single := store.(*blob.Single)
	if openErr == nil && at.String() == store.String() || openErr != nil && !errors.Is(openErr, cairn.ErrNotFound) || single {
		return false, s.add(web.Self, address)
	}

	var f settingsFlags // the settings of the run count
	if s.run, s.settings, err = f.openRun(s.cmd, address); err != nil {
		return false, err
	}
	if s.confined && s.run.Remote != nil && !s.run.OwnsRemote(ctx) {
		outputOf(s.cmd).warn("the remote run %s is not shown, because only a file of the run names it: 'cairn settings %s --remote %s' confirms it", clean(s.run.Remote.String()), quoteArg(s.run.String()), quoteArg(s.run.Remote.String()))
		s.run.Remote, s.settings.Remote = nil, ""
	}

	s.first, err = s.listNow(cache.Without(ctx))
	switch {
	case err != nil:
		return false, err
	case len(s.first.Checkpoints) == 0 && s.wait && maybeRun(ctx, address, openErr):
		outputOf(s.cmd).warn("%s has no checkpoints yet: the page shows them when they are saved; 'cairn runs' finds other runs", clean(blob.Redact(address)))
	case len(s.first.Checkpoints) == 0 && openErr != nil:
		return false, openError(ctx, store, address, openErr)
	case len(s.first.Checkpoints) == 0: // a run of verl: the models are in folders below the folders of steps
		s.run, s.settings, s.first = nil, run.Settings{}, nil
		return false, s.add(web.Self, address)
	}
	return true, nil
}

// maybeRun reports whether a folder without checkpoints can become a run: it holds neither a
// format that cairn does not read nor leftovers of a save, which err would be about.
func maybeRun(ctx context.Context, address string, err error) bool {
	_, unsupported := errors.AsType[*formats.UnsupportedError](err)
	return err != nil && !unsupported && leftoversAt(ctx, address) == nil
}

// add adds the address of a checkpoint. It returns an error if there is none. It reads the
// record of a native checkpoint only: to open another one may take long, and is done when the
// checkpoint is asked for.
func (s *siteStores) add(id, address string) error {
	ctx := s.cmd.Context()
	store, err := openStore(ctx, checkpointAddress(ctx, address))
	if err != nil {
		return err
	}
	_, format, err := formats.Locate(ctx, store)
	if err != nil {
		return openError(ctx, store, address, err)
	}
	if format == formats.Native {
		c, _, err := formats.OpenLocated(ctx, store, nil)
		if err != nil {
			return openError(ctx, store, address, err)
		}
		_ = c.Close() // it was only read
	}
	s.recipe.Beside = append(s.recipe.Beside, store)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addresses[id], s.given[id] = address, true
	return nil
}

// freeID returns an id that no checkpoint of the run has as its name: id, or a longer one.
func (s *siteStores) freeID(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.addresses[id] != "" {
		id = "@" + id
	}
	return id
}

// list lists the run.
func (s *siteStores) list(ctx context.Context) (*run.Log, error) {
	s.mu.Lock()
	first := s.first
	s.first = nil
	s.mu.Unlock()
	if first != nil {
		return first, nil
	}
	return s.listNow(cache.Without(s.logged(ctx)))
}

func (s *siteStores) listNow(ctx context.Context) (*run.Log, error) {
	all, err := s.run.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	log, err := s.run.Log(all, s.settings, false)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all {
		c := &all[i]
		copied := c.Local
		if copied == nil || copied.State != run.Complete && c.Remote != nil && c.Remote.State == run.Complete {
			copied = c.Remote
		}
		if !s.given[c.Name] {
			s.addresses[c.Name] = copied.Path
		}
	}
	return log, nil
}

// logged returns ctx with the logger of the command.
func (s *siteStores) logged(ctx context.Context) context.Context {
	return blob.WithLogger(ctx, outputOf(s.cmd).storeLogger())
}

// open opens the checkpoint with an id that was listed.
func (s *siteStores) open(ctx context.Context, id string, recipe bool) (*web.Opened, error) {
	s.mu.Lock()
	address, ok := s.addresses[id]
	s.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("%q: %w", id, cairn.ErrNotFound)
	}
	if err := s.checkLinks(id, address); err != nil {
		return nil, err
	}
	ctx = context.WithValue(s.logged(ctx), baseKey{}, baseOf(s.cmd.Context()))
	store, at, c, err := openSteady(ctx, address)
	if err != nil {
		return nil, err
	}
	if err := s.checkBases(address, c.Storage().Bases); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	out := &web.Opened{Path: blob.Redact(address), Version: versionOf(ctx, address, at, c), Stored: c}
	if recipe {
		if c, err = s.through(ctx, out, store, at, c); err != nil {
			return nil, &web.Error{Kind: web.KindRecipe, Err: s.explain(s.cmd, err)}
		}
	}
	out.Checkpoint = cairn.NewCheckpoint(at, c)
	return out, nil
}

// checkLinks returns an error if the files of a checkpoint are not below the folder that the user
// has given: the run or its remote run, or the checkpoint itself.
func (s *siteStores) checkLinks(id, address string) error {
	if !s.confined {
		return nil
	}
	s.mu.Lock()
	given := s.given[id]
	s.mu.Unlock()
	root := address
	if !given {
		root, _ = splitRun(address)
	}
	return checkLinks(root, address)
}

// checkBases is checkLinks for the checkpoints to which one refers, which are beside it.
func (s *siteStores) checkBases(address string, bases []string) error {
	if !s.confined {
		return nil
	}
	root, _ := splitRun(address)
	for _, base := range bases {
		if err := checkLinks(root, blob.JoinAddress(root, base)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// openSteady is openLocated, and opens a native checkpoint again if its record was replaced
// meanwhile: its version must be that of the checkpoint that was opened.
func openSteady(ctx context.Context, address string) (store, at blob.Store, c storage.Checkpoint, err error) {
	for tries := 1; ; tries++ {
		if store, err = openStore(ctx, checkpointAddress(ctx, address)); err != nil {
			return nil, nil, nil, err
		}
		before, _ := store.Stat(ctx, recordName) // other formats have none
		if store, at, c, err = openLocated(ctx, address); err != nil {
			return nil, nil, nil, err
		}
		after, _ := store.Stat(ctx, recordName)
		if after.Size == before.Size && after.Version == before.Version && after.ModTime.Equal(before.ModTime) {
			return store, at, c, nil
		}
		if err := c.Close(); err != nil || tries == 10 {
			return nil, nil, nil, errors.Join(fmt.Errorf("%s: %w again and again", blob.Redact(address), cairn.ErrChanged), err)
		}
	}
}

// through returns the form of a checkpoint that the recipe describes. It closes the checkpoint
// if it returns an error.
func (s *siteStores) through(ctx context.Context, out *web.Opened, store, at blob.Store, c storage.Checkpoint) (storage.Checkpoint, error) {
	o := s.recipe
	o.Beside = append([]blob.Store{store}, o.Beside...)
	c, err := view.OpenAs(ctx, at, c, o)
	if err != nil {
		return nil, err
	}
	v, ok := c.(*view.Checkpoint)
	if !ok {
		return c, nil
	}
	if err := v.Check(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	out.Drops = func(ctx context.Context, other *web.Opened, md *meta.Metadata) ([]string, error) {
		names, err := droppedIn(ctx, v, other.Stored, md)
		if err != nil {
			return nil, &web.Error{Kind: web.KindRecipe, Err: s.explain(s.cmd, err)}
		}
		return names, nil
	}
	return c, nil
}

// droppedIn returns the names of a checkpoint that the recipe of v would drop on its way back.
func droppedIn(ctx context.Context, v *view.Checkpoint, other storage.Checkpoint, md *meta.Metadata) ([]string, error) {
	dropped, copies, err := v.Binding().Drops(md)
	if err != nil {
		return nil, err
	}
	if err := view.CheckContents(ctx, other, v.Binding().Recipe, copies); err != nil {
		return nil, err
	}
	var out []string
	for _, d := range dropped {
		out = append(out, d.Name)
	}
	return out, nil
}

// maxVersioned bounds the number of files that versionOf looks at. Files that describe the
// checkpoint come first.
const maxVersioned = 16

// versionOf returns a function that returns a text which identifies the content of a
// checkpoint: its address, and the sizes, times and versions of its first files.
func versionOf(ctx context.Context, address string, at blob.Store, c storage.Checkpoint) func(ctx context.Context) (string, error) {
	if path, local, err := file.LocalPath(address); err == nil && local {
		if abs, err := filepath.Abs(path); err == nil {
			address = abs
		}
	}
	stored := storage.StoredFiles(c)
	names := append([]string{}, stored[:min(len(stored), maxVersioned)]...)
	if _, err := at.Stat(ctx, recordName); err == nil {
		names = append(names, recordName)
	}
	return func(ctx context.Context) (string, error) {
		var b strings.Builder
		fmt.Fprintf(&b, "%q %q", address, c.Storage().SaveID)
		for _, name := range names {
			info, err := at.Stat(ctx, name)
			if errors.Is(err, fs.ErrNotExist) && len(names) > 1 && name != names[0] && name != recordName {
				fmt.Fprintf(&b, "\n%q is missing", name) // it may have been so from the beginning
				continue
			}
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "\n%q %d %d %q", name, info.Size, info.ModTime.UnixNano(), info.Version)
		}
		sum := sha256.Sum256([]byte(b.String())) // the address may hold secrets
		return hex.EncodeToString(sum[:]), nil
	}
}
