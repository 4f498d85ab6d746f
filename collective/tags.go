package collective

import "github.com/cairn-ckpt/cairn/group"

// The tags of a Comm's messages, all of them between [group.CollectiveTags] and
// [group.LoadTags].
const (
	firstTag  = group.CollectiveTags // of [Comm.Send], one for each tag
	noticeTag = 1 << 29              // a rank's Comm is broken
	callTag   = 1 << 30              // of collective calls, by their number

	// MaxTag is the highest tag of [Comm.Send] and [Comm.Recv].
	MaxTag = noticeTag - firstTag - 1
)

// lane tells apart what one call sends between two ranks.
type lane int

const (
	agreeLane lane = iota
	dataLane
	rowsLane
	fitLane
	passLane
	lanes
)

// numbers is how many calls have tags of their own. Calls so far apart are never
// in flight together.
const numbers = 1 << 22

func tagOf(seq uint64, l lane) int { return callTag + int(seq%numbers)*int(lanes) + int(l) }

const _ = uint(group.LoadTags - callTag - numbers*int(lanes)) // they fit
