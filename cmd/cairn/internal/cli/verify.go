package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// verdict is the output of 'cairn verify --json'.
type verdict struct {
	Path   string `json:"path"`
	SaveID string `json:"save_id"`
	OK     bool   `json:"ok"`
	*storage.VerifyReport
	// Manifest is the number of tensors in the manifest that was compared. Nil: none was.
	Manifest *int `json:"manifest_tensors,omitempty"`
	// unchecked is the number of bytes without a checksum that have no digest in the manifest
	// either.
	unchecked int64
	Seconds   float64          `json:"seconds"`
	Leftovers *leftoverSummary `json:"leftovers,omitempty"`
}

func newVerifyCmd() *cobra.Command {
	var f jobFlags
	var against bool
	cmd := newCommand("verify", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return f.run(cmd, args, func(g group.Group) error { return runVerify(cmd, args, g, against) })
	})
	f.add(cmd)
	cmd.Flags().BoolVar(&against, "manifest", false, "also compare the tensors with "+manifestName+", which convert --recipe writes")
	return baseFlag(cmd)
}

func runVerify(cmd *cobra.Command, args []string, g group.Group, against bool) error {
	_, at, stored, err := openLocated(cache.Without(cmd.Context()), args[0])
	if errors.Is(err, cairn.ErrNotFound) && !against && g == nil && len(checkpointsBelow(cmd.Context(), args[0])) > 0 {
		return verifyRun(cmd, args[0])
	}
	if err != nil {
		return cannotVerify(cmd, args[0], err)
	}

	c := cairn.NewCheckpoint(at, stored)
	defer c.Close()

	o := outputOf(cmd)
	start := time.Now()
	var rep *storage.VerifyReport
	err = o.withPlanned(barLabel("verify", g), func(planned, moved func(int64)) (err error) {
		rep, err = c.VerifyTogether(cmd.Context(), g, planned, moved)
		return err
	})
	if rep == nil {
		return err
	}

	v := verdict{Path: args[0], SaveID: c.Info().SaveID, VerifyReport: rep, Leftovers: leftoversAt(cmd.Context(), args[0])}
	whole := err == nil && len(rep.Problems) == 0

	if against && err == nil {
		m, manifestErr := verifyManifestTogether(cmd, args[0], g)
		if manifestErr != nil {
			return manifestErr
		}
		v.Manifest, v.unchecked = &m.Tensors, rep.Unsummed-m.Bytes
		rep.Problems = append(rep.Problems, m.Problems...)
	}

	damaged := len(rep.Problems)
	if _, single := blob.As[*blob.Single](at); !single && err == nil {
		notes, notesErr := run.VerifyNotes(cmd.Context(), at, v.SaveID)
		if notesErr != nil {
			return notesErr
		}
		rep.Problems = append(rep.Problems, notes...)
	}

	if len(rep.Problems) > 0 {
		err = cairn.ErrCorrupt
	}

	v.OK, v.Seconds = err == nil, time.Since(start).Seconds()
	if outErr := o.result(v, func() { printVerdict(o, &v) }); outErr != nil {
		return outErr
	}

	if err == nil {
		return nil
	}

	err = fmt.Errorf("%s: %s: %w", args[0], plural(len(rep.Problems), "problem"), cairn.ErrCorrupt)
	if damaged == 0 {
		return withHint(err, fmt.Sprintf("the rest of it is whole: remove the file %s, and set its tags and metrics again with 'cairn tag'", run.NotesFile))
	}
	if whole {
		return withHint(err, "its files are whole, but the checkpoint is not the one that the manifest describes: convert again, or look for the manifest that belongs to it")
	}
	if hint := baseHint(cmd.Context(), args[0]); hint != "" {
		return withHint(err, hint)
	}
	if slices.ContainsFunc(rep.Problems, func(p storage.VerifyProblem) bool { return strings.Contains(p.Text, storage.ErrBaseGone.Error()) }) {
		return withHint(err, goneHint)
	}
	if hasRest(cmd.Context(), c, rep.Problems) {
		return withHint(err, "everything else in it can still be read; damaged files have to come from another copy")
	}
	return withHint(err, "nothing in it can be read; it has to come from another copy, or be saved again")
}

// runVerdict is the output of 'cairn verify RUN --json'.
type runVerdict struct {
	Path string `json:"path"`
	OK   bool   `json:"ok"`
	// Bytes are the bytes that were read.
	Bytes       int64          `json:"bytes"`
	Checkpoints []run.Verified `json:"checkpoints"`
	// Problems are the ones of the settings.
	Problems []storage.VerifyProblem `json:"problems"`
	Seconds  float64                 `json:"seconds"`
}

// verifyRun verifies all checkpoints of a run.
func verifyRun(cmd *cobra.Command, address string) error {
	ctx, o := cache.Without(cmd.Context()), outputOf(cmd)
	r, err := run.Open(ctx, address, "")
	if err != nil {
		return err
	}

	start, v := time.Now(), runVerdict{Path: blob.Redact(address), OK: true}
	err = o.withPlanned("verify", func(_, moved func(int64)) (err error) {
		v.Checkpoints, err = r.Verify(ctx, func(n int64) {
			v.Bytes += n
			moved(n)
		})
		return err
	})
	if err != nil {
		return err
	}

	problems, err := r.VerifySettings(ctx)
	if err != nil {
		return err
	}
	v.Problems = append([]storage.VerifyProblem{}, problems...)

	damaged := 0
	for _, c := range v.Checkpoints {
		if len(c.Problems) > 0 {
			damaged++
		}
		for _, p := range c.Problems {
			p.File = blob.JoinAddress(c.Name, p.File)
			problems = append(problems, p)
		}
	}

	v.OK, v.Seconds = len(problems) == 0, time.Since(start).Seconds()
	err = o.result(v, func() {
		if !v.OK {
			printProblems(o, problems)
			return
		}
		o.remark("%s: %s: %s, %s in %s\n", clean(v.Path), o.good("ok"), plural(len(v.Checkpoints), "checkpoint"), formatBytes(v.Bytes), formatSeconds(v.Seconds))
	})

	if err != nil || v.OK {
		return err
	}

	if damaged == 0 {
		err = fmt.Errorf("%s: the settings of the run: %w", clean(v.Path), cairn.ErrCorrupt)
		return withHint(err, fmt.Sprintf("its checkpoints are whole; 'cairn settings %s --keep POLICY' writes the file again: add --remote if there was a remote run", quoteArg(v.Path)))
	}

	first := slices.IndexFunc(v.Checkpoints, func(c run.Verified) bool { return len(c.Problems) > 0 })
	err = fmt.Errorf("%s: %s of %d damaged: %w", clean(v.Path), plural(damaged, "checkpoint"), len(v.Checkpoints), cairn.ErrCorrupt)
	return withHint(err, fmt.Sprintf("'cairn verify %s' says what can be done; 'cairn rewind %s CHECKPOINT' makes jobs go on from a whole one",
		quoteArg(blob.JoinAddress(v.Path, v.Checkpoints[first].Name)), quoteArg(v.Path)))
}

func hasRest(ctx context.Context, c *cairn.Checkpoint, problems []storage.VerifyProblem) bool {
	md, err := c.Metadata(ctx)
	if err != nil {
		return false
	}
	lost := map[string]bool{}
	for _, p := range problems {
		for _, name := range append(p.FQNs, p.FQN) {
			lost[name] = true
		}
	}
	return slices.ContainsFunc(md.Entries, func(e meta.Entry) bool { return !lost[e.FQN] })
}

// cannotVerify reports a checkpoint that could not be opened. If its record or
// index is the cause, that is a result of the verification.
func cannotVerify(cmd *cobra.Command, path string, err error) error {
	kinds := []error{cairn.ErrVersion, cairn.ErrCorrupt, cairn.ErrIncomplete}
	i := slices.IndexFunc(kinds, func(k error) bool { return errors.Is(err, k) })
	if i <= 0 || errors.Is(err, cairn.ErrUnderWay) {
		return err
	}
	kind := kinds[i]
	problems := fileProblems(err)
	if len(problems) == 0 {
		p := storage.VerifyProblem{File: damagedFile(err, isNative(cmd.Context(), path)), Text: oneLine(err.Error())}
		if _, text, ok := strings.Cut(p.Text, kind.Error()+": "); ok {
			p.Text = text
		}
		problems = []storage.VerifyProblem{p}
	}
	v := verdict{Path: path, VerifyReport: &storage.VerifyReport{Problems: problems}, Leftovers: leftoversAt(cmd.Context(), path)}
	o := outputOf(cmd)
	if outErr := o.result(v, func() { printVerdict(o, &v) }); outErr != nil {
		return outErr
	}
	return withHint(fmt.Errorf("%s: %s: %w", path, plural(len(problems), "problem"), kind), openHint(cmd.Context(), path, err))
}

// fileProblems returns the problems with files that an error describes.
func fileProblems(err error) []storage.VerifyProblem {
	if f, ok := err.(*storage.FileError); ok {
		return []storage.VerifyProblem{f.Problem()}
	}
	var out []storage.VerifyProblem
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		out = fileProblems(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			out = append(out, fileProblems(part)...)
		}
	}
	return out
}

var indexName = regexp.MustCompile(`[0-9a-z-]+-index\.cairn`)

// damagedFile returns the file that prevents opening a checkpoint: for native the
// record, unless the error is about the index; for other formats the file that
// the error names, or "".
func damagedFile(err error, native bool) string {
	text := err.Error()
	if e, ok := errors.AsType[*cairn.Error](err); ok {
		text = e.Err.Error()
	}
	if !native {
		if b, ok := errors.AsType[*blob.Error](err); ok {
			return b.Name
		}
		return ""
	}
	index := indexName.FindString(text)
	if index == "" || strings.HasPrefix(text, recordName) || errors.Is(err, cairn.ErrIncomplete) {
		return recordName
	}
	return index
}

func printVerdict(o *output, v *verdict) {
	defer printLeftovers(o, v.Path, v.Leftovers)
	for _, note := range v.Notes {
		defer o.remark("note: %s\n", clean(note))
	}
	if v.OK {
		o.remark("%s: %s: %s in %s, %s in %s (%s)\n", clean(v.Path), o.good("ok"), plural(v.Chunks, "chunk"),
			plural(v.Files, "file"), formatBytes(v.Bytes), formatSeconds(v.Seconds), formatRate(float64(v.Bytes)/max(v.Seconds, 1e-9)))
		unchecked := v.Unsummed
		if v.Manifest != nil {
			o.remark("%s: as in %s\n", plural(*v.Manifest, "tensor"), manifestName)
			unchecked = v.unchecked
		}
		if unchecked > 0 {
			o.remark("%s of it have no checksum in this format: they could be read, and no more can be said\n", formatBytes(unchecked))
		}
		return
	}
	printProblems(o, v.Problems)
}

func printProblems(o *output, problems []storage.VerifyProblem) {
	t := newRows("FILE", "NAME", "PROBLEM")
	for _, p := range problems {
		name := clean(p.FQN)
		if len(p.FQNs) > 0 {
			name = clean(p.FQNs[0])
			if n := len(p.FQNs) - 1; n > 0 {
				name += fmt.Sprintf(" and %d more", n)
			}
		}
		t.add(clean(p.File), name, clean(oneLine(p.Text)))
	}
	o.table(t)
}
