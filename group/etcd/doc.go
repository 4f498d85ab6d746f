// Package etcd lets the processes of a job meet through an etcd cluster, which
// also gives them their ranks where nobody else does. It knows nothing of what
// ranks say to each other: once they have met they need etcd no more, and nothing
// of the job but where rank 0 listens is ever written there, its secret least of
// all. The contract is that of [tcp.Rendezvous]; what is in etcd is below.
//
// It is a module of its own, so that etcd's client reaches only those programs
// that import it. Such a program turns addresses of any kind into rendezvous with
// [ParseRendezvous]:
//
//	meet, err := etcd.ParseRendezvous("etcd://10.0.0.7:2379/job?size=8")
//	…
//	g, err := tcp.Join(ctx, tcp.Config{Meet: meet})
//
// # Keys
//
// Names of jobs are escaped as in a URL's path, so that no job's keys are among
// another's. Values are at most 4 KiB.
//
//	cairn/JOB/meeting                 {"generation":7,"size":8,"met":false}
//	cairn/JOB/meeting/GENERATION      where rank 0 listens, as text
//	cairn/JOB/seats/GENERATION/RANK   {"host":"n3","pid":4711}: who has the rank
//
// The last two are bound to the lease of the process that wrote them, and so go
// with it. Only the first one stays.
//
// # Seats
//
// A process takes a seat in a transaction that demands that nobody has it and that
// the record of the meeting is as it was read. Where its rank is not given that is
// the lowest free one, and after others were quicker one of the lowest few. A
// process that finds its seat taken, or none free, waits. When a process dies
// before the ranks have met its lease ends, and another process can have its seat.
//
// # Generations
//
// Rank 0 marks the record when it leaves the meeting: nobody sits down there any
// more. A new generation begins in one transaction, with the first seat in it, when
// no seat of the one before is left. So a job meets again under its name as soon as
// those who met, or did not, have left; those that died hold it up for the time of
// a lease at most. A process that was away for so long takes its seat again, unless
// that or the meeting is another's: then it can neither announce itself nor end a
// meeting, and is not found by anyone.
//
// # Liveness
//
// While ranks meet, leases tell who is alive; afterwards the ranks themselves do.
// Seats are given back when the ranks have met, unless [Rendezvous.Hold] is set:
// then they are kept as long as the group lives, and no other one of that job's name
// can come to be beside it.
package etcd
