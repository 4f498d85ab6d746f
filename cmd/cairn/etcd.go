//go:build etcd

package main

// With the tag etcd, ranks of a job can meet through etcd. Its client keeps the linker from
// removing unused methods, so it would make the program half as large again.
import (
	"github.com/cairn-ckpt/cairn/cmd/cairn/internal/cli"
	"github.com/cairn-ckpt/cairn/group/etcd"
)

func init() { cli.ParseRendezvous = etcd.ParseRendezvous }
