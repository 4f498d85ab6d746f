// Package tcp makes groups of processes, on one host or many, over TCP or unix
// sockets. It knows how ranks meet, prove themselves and stay in touch; what they
// agree on is package tree's. The contract is that of [group.Group] and
// [group.Messenger]; the protocol is below.
//
// # Meeting
//
// Rank 0 listens where the [Rendezvous] says, or announces there where it
// listens. The others connect to it, say where they listen themselves, and wait.
// When all have come rank 0 draws a session, 16 random bytes, and tells each rank
// the session and where the rank above it in the tree listens; that connection
// ends. Ranks then connect to the rank above, and where all listen is the first
// thing that is broadcast. So no rank keeps more than the arity of connections
// downwards and one upwards. Ranks that come to rank 0 after the meeting, and
// connections with another session, are refused and told why.
//
// # Handshake
//
// Every connection begins with it, within ten seconds:
//
//	→ "cairngr1", the length of what follows (2 bytes), purpose (1: meet, 2: link,
//	  3: messages), ranks from and to, size (4 bytes each), session (16), job
//	  (length as a varint, text), nonce (32)
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
// connection until it was idle for a while. Messages of one group, sender and tag
// are a lane. At most 1 MiB of a lane is under way or waits to be received; the
// receiver grants more as messages are taken, or while somebody waits for the one
// that has begun. See letter.go for the frames.
//
// # Liveness
//
// Both ends of a connection send signs of life four times in a timeout. One that
// is silent for the timeout, or breaks, means that its rank is gone: package tree
// tells all.
package tcp
