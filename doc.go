// Package cairn saves the state of a sharded training job and gives it back to a
// job of any other shape. Every rank calls Save or Load with its own part of the
// state; Open reads a checkpoint without a job. The packages behind it can be
// used and replaced one by one: docs/architecture.md is the map.
package cairn

// Version is the version of this program and library.
const Version = "0.1.0"
