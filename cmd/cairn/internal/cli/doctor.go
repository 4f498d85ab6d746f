package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/cache"
	"github.com/cairn-ckpt/cairn/blob/doctor"
	"github.com/cairn-ckpt/cairn/blob/file"
)

// errUnsafe reports a store to which saves are not safe.
var errUnsafe = errors.New("saves to it are not safe")

// errNoSpace reports a store without space.
var errNoSpace = errors.New("there is no space left: saves to it fail")

// doctorResult is the output of 'cairn doctor --json'.
type doctorResult struct {
	*doctor.Report
	// Memory is set for a run in memory: its hosts, and who keeps copies for whom.
	Memory *memoryRun `json:"memory,omitempty"`
}

func newDoctorCmd() *cobra.Command {
	var quick bool
	cmd := newCommand("doctor", wantArgs(1, 1), completePaths(1), func(cmd *cobra.Command, args []string) error {
		return runDoctor(cmd, args[0], quick)
	})
	cmd.Flags().BoolVar(&quick, "quick", false, "do not measure rates")
	return cmd
}

func runDoctor(cmd *cobra.Command, address string, quick bool) error {
	ctx, o := cmd.Context(), outputOf(cmd)
	var res doctorResult
	if blob.Scheme(address) == "memory" {
		var err error
		if res.Memory, err = memoryOf(ctx, address); err != nil {
			return err
		}
	}
	store, err := openStore(cache.Without(ctx), address)
	if err != nil {
		return err
	}
	if _, single := blob.As[*blob.Single](store); single {
		return usagef(cmd, "%s is a file: doctor takes a folder", clean(blob.Redact(address)))
	}
	opts := &doctor.Options{Quick: quick}
	if path, local, err := file.LocalPath(address); err == nil && local {
		opts.Folder = path
	}
	if !o.json && res.Memory != nil {
		printHosts(o, []memoryRun{*res.Memory}) // also if one of them does not answer
		o.printf("\n")
	}
	if !o.json {
		opts.Done = func(c doctor.Check) { printCheck(o, c) }
	}
	if res.Report, err = doctor.Examine(ctx, store, opts); err != nil {
		return err
	}
	return errors.Join(o.result(res, func() { printReport(o, res.Report) }), unsafe(res.Report))
}

// unsafe returns an error unless saves to the store are safe.
func unsafe(r *doctor.Report) error {
	if r.Safe {
		return nil
	}
	if r.Full {
		return withHint(fmt.Errorf("%s: %w", r.Store, errNoSpace), "'cairn clean' removes the files of unfinished saves")
	}
	var names []string
	for _, c := range r.Checks {
		if c.Result == doctor.Failed {
			names = append(names, c.Name)
		}
	}
	return fmt.Errorf("%s: %w: %s", r.Store, errUnsafe, strings.Join(names, ", "))
}

func printCheck(o *output, c doctor.Check) {
	if c.Result == doctor.OK || c.Result == doctor.Skipped {
		o.remark("%-8s %s: %s\n", c.Result, c.Name, clean(oneLine(c.Text)))
		return
	}
	o.printf("%s %s: %s\n", o.bad(fmt.Sprintf("%-8s", c.Result)), c.Name, clean(oneLine(c.Text)))
	o.printf("%-8s %s\n", "", c.Follows)
}

func printReport(o *output, r *doctor.Report) {
	if len(r.Rates) > 0 {
		t := newRows(">STREAMS", ">WRITE", ">READ")
		for _, rate := range r.Rates {
			t.add(fmt.Sprint(rate.Streams), formatRate(rate.Write), formatRate(rate.Read))
		}
		o.printf("\n")
		o.table(t)
		o.printf("\n")
	}
	if r.Safe {
		o.remark("%s: saves and loads are %s\n", clean(r.Store), o.good("safe"))
	}
}
