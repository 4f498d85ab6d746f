package main

// The packages that open addresses. Paths and mem: are part of the command line.
import (
	_ "github.com/cairn-ckpt/cairn/blob/file"
)
