package tree

import (
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// maxRank bounds the ranks that frames name.
const maxRank = 1<<20 - 1

// ops are the collective calls by the number that stands for them.
var ops = []group.Op{
	1: group.OpGather, 2: group.OpScatter, 3: group.OpBroadcast,
	4: group.OpAllGather, 5: group.OpBarrier, 6: group.OpSub,
}

func putOp(w *wire.Writer, op group.Op) {
	for i, o := range ops {
		if o == op {
			w.Byte(byte(i))
			return
		}
	}
	w.Byte(0)
}

func getOp(r *wire.Reader) group.Op {
	i := r.Byte()
	if i == 0 || int(i) >= len(ops) {
		r.Fail("call of number %d", i)
		return ""
	}
	return ops[i]
}

func getRank(r *wire.Reader) int { return r.CountMax(maxRank) }

func putRanks(w *wire.Writer, ranks []int) {
	w.Uvarint(uint64(len(ranks)))
	for _, rank := range ranks {
		w.Varint(int64(rank))
	}
}

func getRanks(r *wire.Reader) []int {
	n := r.Count(1)
	if n == 0 {
		return nil
	}
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = int(r.Varint())
	}
	return ranks
}

func putCall(w *wire.Writer, c group.Call) {
	putOp(w, c.Op)
	w.Varint(int64(c.Root))
	putRanks(w, c.Ranks)
}

func getCall(r *wire.Reader) group.Call {
	return group.Call{Op: getOp(r), Root: int(r.Varint()), Ranks: getRanks(r)}
}

func putValues(w *wire.Writer, vs []labelled) {
	w.Uvarint(uint64(len(vs)))
	for _, v := range vs {
		w.Uvarint(uint64(v.rank))
		w.Bytes(v.value)
	}
}

func getValues(r *wire.Reader) []labelled {
	n := r.Count(2)
	if n == 0 {
		return nil
	}
	vs := make([]labelled, n)
	for i := range vs {
		vs[i] = labelled{getRank(r), r.Bytes()}
	}
	return vs
}

// putError writes an error whose cause is a [*group.RemoteError], as remote
// makes it.
func putError(w *wire.Writer, e *group.Error) {
	putOp(w, e.Op)
	putRanks(w, e.Ranks)
	putCause(w, e.Err)
}

func getError(r *wire.Reader) *group.Error {
	return &group.Error{Op: getOp(r), Ranks: getRanks(r), Err: getCause(r)}
}

func putCause(w *wire.Writer, err error) {
	b, encodeErr := remote(err).MarshalBinary()
	if encodeErr != nil { // not one that NewRemoteError made
		b, _ = group.NewRemoteError(encodeErr).MarshalBinary()
	}
	w.Bytes(b)
}

func getCause(r *wire.Reader) *group.RemoteError {
	e := new(group.RemoteError)
	b := r.Bytes()
	if r.Err() != nil {
		return e
	}
	if err := e.UnmarshalBinary(b); err != nil {
		r.Fail("%w", err)
	}
	return e
}

// remote returns err in the form in which all ranks see it.
func remote(err error) *group.RemoteError {
	if e, ok := err.(*group.RemoteError); ok {
		return e
	}
	return group.NewRemoteError(err)
}
