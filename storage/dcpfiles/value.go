package dcpfiles

import (
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
)

// keepValue is the largest encoding of a value that is kept between the moment
// its length is found out and the moment it is written; a larger one is made
// again.
const keepValue = 64 << 10

// LayValue returns a value as a part of a data file: what encode makes of the
// bytes of it. encode must make the same of them each time.
func LayValue(it *plan.WriteItem, data storage.Resolver, encode func(it *plan.WriteItem, data []byte) ([]byte, error)) (datafile.Part, error) {
	marshal := func() ([]byte, error) {
		b, err := datafile.Bytes(data, it)
		if err != nil {
			return nil, err
		}
		return encode(it, b)
	}
	b, err := marshal()
	if err != nil {
		return datafile.Part{}, err
	}
	part := datafile.Part{Length: int64(len(b)), Literal: b}
	if len(b) > keepValue {
		part.Literal, part.Tail = nil, marshal
	}
	return part, nil
}
