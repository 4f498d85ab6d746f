//go:build !nocloud

package main

// These packages open addresses. Paths and mem: are part of the command line. Their SDKs
// are more than half of the compiled code, so the tag nocloud leaves them out.
import (
	_ "golang.org/x/crypto/x509roots/fallback" // for systems without certificates, such as an empty container

	_ "github.com/cairn-ckpt/cairn/blob/azure"
	_ "github.com/cairn-ckpt/cairn/blob/gcs"
	_ "github.com/cairn-ckpt/cairn/blob/s3"
)
