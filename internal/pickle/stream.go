package pickle

import (
	"cmp"

	"github.com/cairn-ckpt/cairn/value"
)

// Stream writes a pickle part by part, for callers with too much data to build
// values of it first. It does not check that the parts form a valid pickle. After
// an error, which Bytes returns, it may still be used, to no effect.
type Stream struct {
	e   encoder
	err error
}

// Ref is a name or, if Module is empty, a string that a stream contains many
// times. It belongs to one stream.
type Ref struct {
	Module, Name string
	written      bool
	number       int
}

// NewStream begins a pickle. The options may be nil.
func NewStream(o *EncodeOptions) *Stream { return &Stream{e: *newEncoder(o)} }

// Ref writes r: in full the first time, as a reference to it afterwards.
func (s *Stream) Ref(r *Ref) {
	if r.written {
		s.e.get(r.number)
		return
	}
	if r.Module == "" {
		s.e.b = appendStr(s.e.b, r.Name, s.e.o.Protocol)
	} else {
		s.e.nameOf(r.Module, r.Name)
	}
	r.written, r.number = true, s.e.put()
}

// Fail makes Bytes return an error.
func (s *Stream) Fail(err error) { s.err = cmp.Or(s.err, err) }

// Str writes a string.
func (s *Stream) Str(v string) {
	defer Catch(&s.err)
	s.e.str(v)
}

// Int writes an integer.
func (s *Stream) Int(v int64) { s.e.b = appendInt(s.e.b, v) }

// Values writes values that Encode takes.
func (s *Stream) Values(list ...any) {
	defer Catch(&s.err)
	for _, v := range list {
		s.e.value(v, 0)
	}
}

// Ints writes a tuple of integers.
func (s *Stream) Ints(v []int64) {
	if len(v) == 0 {
		s.e.b = append(s.e.b, opEmptyTuple)
		return
	}
	if len(v) > 3 {
		s.e.b = append(s.e.b, opMark)
	}
	for _, n := range v {
		s.e.b = appendInt(s.e.b, n)
	}
	if len(v) > 3 {
		s.e.b = append(s.e.b, opTuple)
		return
	}
	s.e.b = append(s.e.b, opTuple1+byte(len(v)-1))
}

// Tuple writes a tuple that is not shared.
func (s *Stream) Tuple(t value.Tuple) {
	defer Catch(&s.err)
	s.e.tuple(t, identity{}, 0)
	if len(t) > 0 {
		s.e.put()
	}
}

// Call writes the call of a name with a tuple of integers as its only argument.
func (s *Stream) Call(r *Ref, v []int64) {
	s.Ref(r)
	s.Ints(v)
	s.e.b = append(s.e.b, opTuple1, opReduce)
}

// Begin begins items of a list or dict, which EndList or EndDict ends. A list or
// dict may have several such groups.
func (s *Stream) Begin() { s.e.b = append(s.e.b, opMark) }

// NewList writes an empty list.
func (s *Stream) NewList() { s.e.b = append(s.e.b, opEmptyList) }

// EndList ends items of a list.
func (s *Stream) EndList() { s.e.b = append(s.e.b, opAppends) }

// NewDict writes an empty dict.
func (s *Stream) NewDict() { s.e.b = append(s.e.b, opEmptyDict) }

// EndDict ends the keys and values of a dict.
func (s *Stream) EndDict() { s.e.b = append(s.e.b, opSetItems) }

// EndTuple makes a tuple of everything since Begin.
func (s *Stream) EndTuple() { s.e.b = append(s.e.b, opTuple) }

// New writes an instance of a class, without a state.
func (s *Stream) New(class *Ref) {
	s.Ref(class)
	s.e.b = append(s.e.b, opEmptyTuple, opNewObj)
}

// BeginState begins the state of an instance: names and values.
func (s *Stream) BeginState() { s.e.b = append(s.e.b, opEmptyDict, opMark) }

// EndState ends the state of an instance.
func (s *Stream) EndState() { s.e.b = append(s.e.b, opSetItems, opBuild) }

// Build sets the value before it as the state of an instance.
func (s *Stream) Build() { s.e.b = append(s.e.b, opBuild) }

// Bytes ends the pickle and returns it, or an error if a call failed.
func (s *Stream) Bytes() ([]byte, error) { return append(s.e.b, opStop), s.err }

// Grow makes room for n more bytes.
func (s *Stream) Grow(n int) { s.e.b = room(s.e.b, n) }
