package collective

import (
	"fmt"
	"math"
	"strings"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The methods of [Comm] that no group has, as [group.Error] names them. The others
// have the names of package group.
const (
	OpAllReduce     group.Op = "all-reduce"
	OpReduceScatter group.Op = "reduce-scatter"
	OpAllToAll      group.Op = "all-to-all"
)

// kind numbers the collective methods between ranks.
type kind uint8

const (
	allReduce kind = iota
	reduceScatter
	allGather
	allToAll
	broadcast
)

var kinds = [...]group.Op{
	allReduce: OpAllReduce, reduceScatter: OpReduceScatter, allToAll: OpAllToAll,
	allGather: group.OpAllGather, broadcast: group.OpBroadcast,
}

// call is what the ranks of a collective call must agree on.
type call struct {
	kind      kind
	op        Op // of those that reduce
	dtype     tensor.DType
	count     int64 // elements: of the whole, of one rank or of one row
	root      int
	algorithm Algorithm
	piece     int // bytes, of a ring
}

// reduces reports whether op counts.
func (c call) reduces() bool { return c.kind == allReduce || c.kind == reduceScatter }

// String writes the call as in "all-reduce(sum of 6 float32)".
func (c call) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s(", kinds[c.kind])
	if c.reduces() {
		fmt.Fprintf(&b, "%v of ", c.op)
	}
	fmt.Fprintf(&b, "%d %v", c.count, c.dtype) // "0 invalid" where there is no tensor
	switch c.kind {
	case allToAll:
		b.WriteString(" a row")
	case broadcast:
		fmt.Fprintf(&b, " from rank %d", c.root)
	}
	if c.piece != 0 {
		fmt.Fprintf(&b, " by pieces of %d bytes", c.piece)
	}
	b.WriteString(")")
	return b.String()
}

func (c call) encode(w *wire.Writer) {
	w.Byte(byte(c.kind))
	w.Byte(byte(c.op))
	w.Byte(byte(c.dtype))
	w.Byte(byte(c.algorithm))
	w.Uvarint(uint64(c.count))
	w.Uvarint(uint64(c.piece))
	w.Varint(int64(c.root)) // may be any: it is checked by all
}

func decodeCall(r *wire.Reader) call {
	c := call{kind: kind(r.Byte()), op: Op(r.Byte()), dtype: tensor.DType(r.Byte()), algorithm: Algorithm(r.Byte())}
	c.count = r.Size()
	c.piece = r.CountMax(math.MaxInt)
	c.root = int(r.Varint())
	if int(c.kind) >= len(kinds) {
		r.Fail("collective of kind %d", c.kind)
		c.kind = 0
	}
	return c
}
