// Package native stores checkpoints in cairn's own format: a commit record, a
// checksummed index and self-describing safetensors files under one prefix of a
// blob store. It knows nothing of groups or of how plans are made. The format is
// described byte by byte in docs/format/native.md.
package native
