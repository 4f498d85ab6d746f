package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/launch"
)

// runFlags are the flags of 'cairn run'.
type runFlags struct {
	launch.Config
	secretFile string
	stdin      bool
	noPrefix   bool
	timeout    time.Duration
}

func (f *runFlags) add(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(flagFailure)
	fl := cmd.Flags()
	fl.SetInterspersed(false) // what follows the program is the program's
	fl.IntVarP(&f.N, "procs", "n", 1, "processes on this host")
	fl.IntVar(&f.Nodes, "nnodes", 1, "hosts, each with the same number of processes")
	fl.IntVar(&f.Node, "node-rank", 0, "the number of this host, from 0")
	fl.StringVar(&f.Addr, "master-addr", "", "the host on which rank 0 listens (default 127.0.0.1)")
	fl.IntVar(&f.Port, "master-port", 0, "the port on which rank 0 listens; 0 chooses a free port")
	fl.BoolVar(&f.Unix, "unix", false, "meet at a unix socket instead, in a new folder for this job")
	fl.StringVar(&f.secretFile, "secret-file", "", "take the job's secret from this `FILE`")
	fl.BoolVar(&f.stdin, "stdin", false, "let rank 0 read stdin")
	fl.BoolVar(&f.noPrefix, "no-prefix", false, "print the output of ranks without their numbers")
	fl.StringVar(&f.LogDir, "log-dir", "", "also write what ranks print to files RANK.out and RANK.err in `DIR`")
	fl.BoolVar(&f.Overwrite, "overwrite", false, "remove the logs of an earlier job from --log-dir")
	fl.BoolVar(&f.KeepGoing, "keep-going", false, "let the other ranks go on if one fails")
	fl.DurationVar(&f.Grace, "grace", 10*time.Second, "how long ranks have to end before they are killed")
	fl.DurationVar(&f.timeout, "timeout", 0, "end the job after this time; 0 for never")
	_ = cmd.MarkFlagDirname("log-dir") // these fail for unknown flags only
	_ = cmd.MarkFlagFilename("secret-file")
}

// flagFailure says in words what is wrong with the value of a flag.
func flagFailure(cmd *cobra.Command, err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return usagef(cmd, "%v", err)
	}
	want, ok := map[string]string{
		"int": "a whole number", "duration": "a time, as 10s, 5m or 2h", "bool": "true or false",
	}[bad.GetFlag().Value.Type()]
	if !ok {
		return usagef(cmd, "%v", err)
	}
	return usagef(cmd, "--%s %s: want %s", bad.GetFlag().Name, quoteArg(bad.GetValue()), want)
}

// check refuses flags that make no sense, by their names.
func (f *runFlags) check(cmd *cobra.Command) error {
	switch {
	case f.N < 1 || f.N > launch.MaxProcesses:
		return usagef(cmd, "-n %d: want 1 to %d processes", f.N, launch.MaxProcesses)
	case f.Port < 0 || f.Port > 65535:
		return usagef(cmd, "--master-port %d: want 1 to 65535, or 0 for one that is free", f.Port)
	case f.Unix && (f.Addr != "" || f.Port != 0):
		return usagef(cmd, "--unix is instead of --master-addr and --master-port: give one or the other")
	case f.Grace <= 0:
		return usagef(cmd, "--grace must be above zero")
	case f.timeout < 0:
		return usagef(cmd, "--timeout must not be below zero")
	case f.Overwrite && f.LogDir == "":
		return usagef(cmd, "--overwrite is for --log-dir")
	}
	return f.checkHosts(cmd)
}

func (f *runFlags) checkHosts(cmd *cobra.Command) error {
	switch {
	case f.Nodes < 1:
		return usagef(cmd, "--nnodes %d: want at least 1 host", f.Nodes)
	case f.Node < 0 || f.Node >= f.Nodes:
		return usagef(cmd, "--node-rank %d: with --nnodes %d it is 0 to %d", f.Node, f.Nodes, f.Nodes-1)
	case f.Nodes == 1:
		return nil
	case f.Unix:
		return usagef(cmd, "--unix is for one host: not with --nnodes %d", f.Nodes)
	case f.Addr == "" || f.Port == 0:
		return usagef(cmd, "--nnodes %d needs --master-addr and --master-port, the same on all hosts", f.Nodes)
	case f.secretFile == "" && os.Getenv("CAIRN_SECRET") == "":
		return usagef(cmd, "--nnodes %d needs a secret, the same on all hosts: --secret-file, or CAIRN_SECRET in the environment", f.Nodes)
	}
	return nil
}

// maxSecret bounds the file of a secret: it may be one without an end.
const maxSecret = 64 << 10

// readSecret reads the job's secret from a file, which may be a pipe.
func readSecret(cmd *cobra.Command, path string) (string, error) {
	name := quoteArg(path)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		err := usagef(cmd, "--secret-file %s: there is no such file", name)
		return "", withHint(err, fmt.Sprintf("make one, and copy it to all hosts: openssl rand -hex 32 > %s", name))
	}
	var b []byte
	if err == nil {
		defer f.Close()
		b, err = io.ReadAll(io.LimitReader(f, maxSecret+1))
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	secret := bytes.TrimSpace(b)
	switch {
	case err != nil:
		return "", usagef(cmd, "--secret-file %s: %v", name, err)
	case len(b) > maxSecret:
		return "", usagef(cmd, "--secret-file %s is too long for a secret: at most %s", name, formatBytes(maxSecret))
	case len(secret) == 0:
		return "", usagef(cmd, "--secret-file %s is empty", name)
	case bytes.IndexByte(secret, 0) >= 0:
		return "", usagef(cmd, "--secret-file %s holds a zero byte, which no environment can", name)
	}
	return string(secret), nil
}
