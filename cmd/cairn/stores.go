package main

// These packages open addresses. Paths and mem: are part of the command line.
import (
	_ "github.com/cairn-ckpt/cairn/blob/azure"
	_ "github.com/cairn-ckpt/cairn/blob/gcs"
	_ "github.com/cairn-ckpt/cairn/blob/s3"
)
