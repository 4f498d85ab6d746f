package platform

import (
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/wire"
)

// letter is what a rank brings to a round.
type letter struct {
	call  group.Call
	value []byte
	err   error // instead of a value
}

func (l letter) encode() []byte {
	var w wire.Writer
	w.String(string(l.call.Op))
	w.Varint(int64(l.call.Root))
	w.Bool(l.err == nil)
	if l.err != nil {
		// A message without the text is malformed, which is an error as well.
		l.value, _ = group.NewRemoteError(l.err).MarshalBinary()
	}
	w.B = append(w.B, l.value...)
	return w.B
}

func decodeLetter(b []byte) (letter, error) {
	r := wire.NewReader(b)
	l := letter{call: group.Call{Op: group.Op(r.String()), Root: int(r.Varint())}}
	good := r.Bool()
	body := r.Raw(r.Len())
	if err := r.Done(); err != nil {
		return letter{}, err
	}
	if good {
		l.value = body
		return l, nil
	}
	re := new(group.RemoteError)
	if err := re.UnmarshalBinary(body); err != nil {
		return letter{}, err
	}
	l.err = re
	return l, nil
}

func pack(vs [][]byte) []byte {
	var w wire.Writer
	w.Uvarint(uint64(len(vs)))
	for _, v := range vs {
		w.Bytes(v)
	}
	return w.B
}

// unpack returns what pack packed; the slices alias b.
func unpack(b []byte) ([][]byte, error) {
	r := wire.NewReader(b)
	vs := make([][]byte, r.Count(1))
	for i := range vs {
		vs[i] = r.Bytes()
	}
	return vs, r.Done()
}
