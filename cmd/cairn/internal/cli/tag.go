package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
)

// tagResult is the output of 'cairn tag --json'.
type tagResult struct {
	Path    string      `json:"path"`
	SaveID  string      `json:"save_id"`
	Tags    []string    `json:"tags"`
	Metrics run.Metrics `json:"metrics"`
}

type tagFlags struct {
	removed, metrics []string
}

func newTagCmd() *cobra.Command {
	var f tagFlags
	cmd := newCommand("tag", wantArgs(1, -1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return f.run(cmd, args[0], args[1:])
	})
	cmd.Flags().StringArrayVar(&f.removed, "remove", nil, "remove this `tag` or metric; may be repeated")
	cmd.Flags().StringArrayVar(&f.metrics, "metric", nil, "set a metric, `NAME=NUMBER`; may be repeated")
	completeFlag(cmd, completeTags, "remove")
	completeFlag(cmd, choices(), "metric")
	return cmd
}

func (f *tagFlags) run(cmd *cobra.Command, address string, tags []string) error {
	ctx, o := cache.Without(cmd.Context()), outputOf(cmd)
	metrics, err := f.parse(cmd, tags)
	if err != nil {
		return err
	}

	dir, name, err := splitCheckpoint(ctx, address)
	if err != nil {
		return err
	}
	r, _, err := run.OpenSettings(ctx, dir, run.Settings{})
	if err != nil {
		return err
	}
	id, err := saveOf(ctx, r.Local, name)
	if err != nil {
		return err
	}
	store, err := r.Local.StoreOf(name)
	if err != nil {
		return err
	}

	if len(tags)+len(metrics)+len(f.removed) > 0 {
		there := map[string]bool{}
		if err := r.Note(ctx, name, func(n *run.Notes) error { f.change(n, tags, metrics, there); return nil }); err != nil {
			return err
		}
		for _, word := range f.removed {
			if !there[word] {
				o.warn("%s has no tag or metric %s", clean(blob.Redact(address)), clean(word))
			}
		}
	}

	n, err := run.ReadNotes(ctx, store, id)
	if err != nil {
		return err
	}

	res := tagResult{blob.Redact(address), id, append([]string{}, n.Tags...), n.Metrics}
	if res.Metrics == nil {
		res.Metrics = run.Metrics{}
	}

	return o.result(res, func() {
		t := newPlainRows(2)
		t.add("tags", clean(strings.Join(res.Tags, " ")))
		t.add("metrics", formatMetrics(res.Metrics))
		o.table(t)
	})
}

// parse checks the words of the command line and returns the metrics.
func (f *tagFlags) parse(cmd *cobra.Command, tags []string) (run.Metrics, error) {
	metrics := run.Metrics{}
	for _, word := range tags {
		if strings.Contains(word, "=") {
			return nil, withHint(usagef(cmd, "the tag %q has an equals sign", word), "a metric is set by --metric NAME=NUMBER")
		}
	}
	for _, text := range f.metrics {
		name, value, ok := strings.Cut(text, "=")
		v, err := strconv.ParseFloat(value, 64)
		if _, twice := metrics[name]; !ok || err != nil || twice {
			return nil, usagef(cmd, "--metric %q: want NAME=NUMBER, each name once", text)
		}
		metrics[name] = v
		tags = append(tags[:len(tags):len(tags)], name) // checked below
	}
	for _, word := range tags {
		if err := run.CheckLabel(word); err != nil {
			return nil, usagef(cmd, "%v", err)
		}
	}
	return metrics, nil
}

// change changes the notes of a copy. there receives the removed tags and metrics that the copy had.
func (f *tagFlags) change(n *run.Notes, tags []string, metrics run.Metrics, there map[string]bool) {
	for _, word := range f.removed {
		_, had := n.Metrics[word]
		delete(n.Metrics, word)
		there[word] = n.Untag(word) || had || there[word]
	}
	for _, t := range tags {
		n.Tag(t)
	}
	for name, v := range metrics {
		n.SetMetric(name, v)
	}
}

// saveOf returns the id of the save of a checkpoint in a folder of a run, which must be
// complete.
func saveOf(ctx context.Context, p *run.Place, name string) (string, error) {
	store, err := p.StoreOf(name)
	if err != nil {
		return "", err
	}
	address := p.AddressOf(name)
	c, at, err := formats.OpenLocated(ctx, store, nil)
	if err != nil {
		return "", withHint(&cairn.Error{Op: "open", Where: blob.Redact(address), Err: err}, openHint(ctx, address, err))
	}
	defer c.Close()
	if at.String() != store.String() { // the store of a checkpoint that refers to others is another one
		err := fmt.Errorf("%s is a run, whose newest checkpoint is %s: %w", blob.Redact(address), at, cairn.ErrNotFound)
		return "", withHint(err, fmt.Sprintf("'cairn log %s' lists its checkpoints", quoteArg(blob.Redact(address))))
	}
	missing, err := storage.MissingFiles(ctx, at, c.Files())
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("%s: %w: %s missing, such as %s", blob.Redact(address), cairn.ErrCorrupt, plural(len(missing), "file"), missing[0])
	}
	return c.Storage().SaveID, err
}

// completeTags completes the tags and metrics of the checkpoint given before.
func completeTags(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx := cmd.Context()
	dir, name, err := splitCheckpoint(ctx, args[0])
	var r *run.Run
	if err == nil {
		r, err = run.Open(ctx, dir, "")
	}
	var id string
	if err == nil {
		id, err = saveOf(ctx, r.Local, name)
	}
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	store, err := r.Local.StoreOf(name)
	n, notesErr := run.ReadNotes(ctx, store, id)
	if errors.Join(err, notesErr) != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	out := slices.Clone(n.Tags)
	for name := range n.Metrics {
		out = append(out, name)
	}
	slices.Sort(out)
	out = slices.DeleteFunc(slices.Compact(out), func(s string) bool { return !strings.HasPrefix(s, word) })
	return out, cobra.ShellCompDirectiveNoFileComp
}
