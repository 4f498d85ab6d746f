// Package tcp makes groups of processes, on one host or many, over TCP or unix
// sockets. It knows how ranks meet, prove themselves and stay in touch; what they
// agree on is package tree's. The contract is that of [group.Group] and
// [group.Messenger]; the protocol is below.
//
// # Meeting
//
// Rank 0 listens where the [Rendezvous] says, or announces there where it
// listens. Each of the others connects to it once, says where it listens itself,
// hears the terms (the session, 16 random bytes; the arity; the timeout) and hangs
// up. So nobody holds a connection while ranks are missing.
//
// Rank 0 calls the roll of those who are here, once in a second or, with thousands
// of ranks, in a few, and when all are here. It connects to as many ranks as the
// arity and gives each a part of the list; each calls the ranks of its part in the
// same way and answers with those whom it could not reach, who lose their seats.
// Where the first of a part is not there the next one takes its place. A call says
// who is missing, so that a rank whose context ends can tell; if no rank is known to
// be missing then, it asks rank 0 once more. A rank that is not called for three
// times as long registers again: rank 0 may be a new one. If it finds no rank 0
// within the timeout, at least 20 s, it gives up. A rank 0 whose context ends tells
// the ranks that are here, and those that are registering, which ranks it missed. When a
// call of all ranks has found all, the next one says that they have met, and where
// the rank above each of them in the tree listens. Ranks then connect to the rank
// above, and where all listen is the first thing that is broadcast.
//
// A rank is reached by all others at the address that it gives, rank 0 at the one
// by which it was found. A second process of a rank that is here, processes that
// come after the meeting, and connections with another session are refused and
// told why. One that did not hear that all have met asks again and is told.
//
// # Handshake
//
// Every connection begins with it, within ten seconds:
//
//	→ "cairngr1", the length of what follows (2 bytes), purpose (1: meet, 2: link,
//	  3: messages, 4: call of the roll), ranks from and to, size (4 bytes each),
//	  session (16; to meet, a name of the process), job (length as a varint,
//	  text), nonce (32)
//	← nonce (32)
//	→ proof (32): HMAC-SHA-256 with the secret of "dial", all above and, under TLS,
//	  bytes exported from it, each behind its length
//	← proof (32) of "accept", the same and the reason; length of the reason (2);
//	  reason. An empty one lets the connection in
//
// The accepting side proves itself only to who has done so, and believes nothing
// before. Integers are little-endian. What follows are frames: a length of 4 bytes
// and as many bytes, at most [tree.MaxFrame]. Frames are not encrypted: that is for
// TLS.
//
// # Messages
//
// A rank that sends messages dials the receiver when it first does, and keeps the
// connection until it was idle for a while or 64 others were used since. Messages
// of one group, sender and tag are a lane. At most 1 MiB of a lane is under way or
// waits to be received, 128 bytes for each message included; the receiver grants
// more as messages are taken, or while somebody waits for the one that has begun.
// What a rank has sent that nobody takes may be 256 MiB, as counted so, and lanes
// of 65,536 tags: whoever sends more is refused as broken, and named with the
// reason. What a rank sends itself is not bounded in this way.
// Large messages are written from where they are and read to where they go, but
// for what comes before anybody waits. See letter.go for the frames.
//
// # Liveness
//
// Both ends of a connection send signs of life four times in a timeout. One that
// is silent for the timeout, or breaks, means that its rank is gone: package tree
// tells all.
package tcp
