// Package inspect answers read-only questions about a checkpoint: what is in
// it, how it is cut, what its bytes and its numbers add up to, and how it differs
// from another one. It prints nothing, writes nothing and knows no format: it
// asks a cairn.Checkpoint. The types carry the JSON names that the command line
// prints and docs/cli.md describes.
package inspect
