// Command cairn lists, inspects, converts, verifies and repairs checkpoints of
// sharded training state. Every command is a file in cmd/cairn/internal/cli, and
// docs/cli.md describes them all.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	os.Exit(cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
