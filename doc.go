// Package cairn saves the state of a sharded training job and loads it into a job
// with any other number of ranks and any other sharding. Every rank calls Save or
// Load with its own part of the state; Open reads a checkpoint without a job. A Run
// keeps the checkpoints of one training in order. The packages that it consists of can
// be used and replaced one by one; docs/architecture.md describes them.
package cairn

// Version is the version of this program and library.
const Version = "0.1.0"
