// Package platform is the seam between training code, or the checkpoint engine,
// and what they run on: ranks and groups of them, collectives on bytes and on
// tensors, tensor memory, state files, profiler regions. It knows no platform: a
// platform is a value, chosen by name from a list that its caller gives, of
// which only the core, [Platform], is owed and all else is found by [As]. The
// contracts are at the interfaces; package platformtest holds them as a test.
//
// # Ranks
//
// Lists of ranks, as for [Groups], are global: numbers in [Groups.World]. Roots
// and peers, as for [ObjectComm], are numbers in the group of the call, as in
// package group. [Group.GlobalRank] and [Group.LocalRank] lead from one to the
// other.
//
// # What is no method
//
// What needs no platform is a function, here or in package tensor: walking
// through nested values, cutting a batch, casting, joining and cutting tensors.
// docs/platform.md names the function or method for each of hyper_parallel's.
package platform
