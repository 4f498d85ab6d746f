// Package shard says which boxes of a tensor a rank holds, from a device mesh
// with placements, hyper_parallel's layout, flat intervals, or boxes given
// outright. It is pure geometry: it refuses to know how ranks talk, where bytes
// lie or what a checkpoint is, and imports only package tensor. The contract is
// in the comments of Layout and Part.
package shard
