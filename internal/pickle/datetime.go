package pickle

import (
	"encoding/binary"
	"math/big"

	"github.com/cairn-ckpt/cairn/value"
)

// dateTime unpacks the classes of datetime.
func dateTime(o *value.Object) any {
	var n *value.Object
	switch o.Name {
	case "date":
		n = date(o)
	case "datetime":
		n = moment(o, 10)
	case "time":
		n = moment(o, 6)
	case "timedelta":
		n = delta(o)
	}
	if n == nil {
		return o
	}
	n.Module, n.Name, n.Call = o.Module, o.Name, true
	return n
}

// packed returns the state of the object as bytes.
func packed(o *value.Object, size int) ([]byte, bool) {
	if len(o.Args) == 0 || !bare(o, len(o.Args)) {
		return nil, false
	}
	b, ok := o.Args[0].([]byte)
	return b, ok && len(b) == size
}

func date(o *value.Object) *value.Object {
	b, ok := packed(o, 4)
	if !ok || len(o.Args) != 1 {
		return nil
	}
	return &value.Object{Args: value.Tuple{int64(binary.BigEndian.Uint16(b)), int64(b[2]), int64(b[3])}}
}

// moment unpacks a datetime of ten bytes or a time of six: year, month and day,
// then hour, minute, second and microsecond. The fold is the highest bit of the
// month, or of the hour if there is no month.
func moment(o *value.Object, size int) *value.Object {
	b, ok := packed(o, size)
	if !ok || len(o.Args) > 2 {
		return nil
	}
	fold := 2 // the month
	if size == 6 {
		fold = 0 // the hour
	}
	b = append([]byte{}, b...)
	n := &value.Object{}
	if b[fold]&0x80 != 0 {
		b[fold] &^= 0x80
		n.Kwargs = map[string]any{"fold": int64(1)}
	}
	if len(o.Args) == 2 && o.Args[1] != nil {
		if n.Kwargs == nil {
			n.Kwargs = map[string]any{}
		}
		n.Kwargs["tzinfo"] = o.Args[1]
	}
	if size == 10 {
		n.Args = value.Tuple{int64(binary.BigEndian.Uint16(b)), int64(b[2]), int64(b[3])}
		b = b[4:]
	}
	n.Args = append(n.Args, int64(b[0]), int64(b[1]))
	micro := int64(b[3])<<16 | int64(b[4])<<8 | int64(b[5])
	if b[2] != 0 || micro != 0 {
		n.Args = append(n.Args, int64(b[2]))
	}
	if micro != 0 {
		n.Args = append(n.Args, micro)
	}
	return n
}

func delta(o *value.Object) *value.Object {
	if !bare(o, 3) {
		return nil
	}
	n := &value.Object{}
	for i, name := range []string{"days", "seconds", "microseconds"} {
		v, ok := o.Args[i].(int64)
		if !ok {
			return nil
		}
		if v == 0 {
			continue
		}
		if n.Kwargs == nil {
			n.Kwargs = map[string]any{}
		}
		n.Kwargs[name] = v
	}
	if n.Kwargs == nil {
		n.Args = value.Tuple{int64(0)}
	}
	return n
}

// uuid turns the integer of a pickled UUID into its text.
func uuid(o *value.Object) any {
	state, ok := o.State.(map[string]any)
	if o.Name != "UUID" || !ok || len(state) != 1 || len(o.Args) != 0 || o.Kwargs != nil || o.Items != nil || o.Pairs != nil {
		return o
	}
	var n *big.Int
	switch v := state["int"].(type) {
	case int64:
		n = big.NewInt(v)
	case uint64:
		n = new(big.Int).SetUint64(v)
	case *big.Int:
		n = v
	default:
		return o
	}
	if n.Sign() < 0 || n.BitLen() > 128 {
		return o
	}
	return &value.Object{Module: o.Module, Name: o.Name, Call: true, Args: value.Tuple{uuidText(n)}}
}

func uuidText(n *big.Int) string {
	const hex = "0123456789abcdef"
	b := n.FillBytes(make([]byte, 16))
	out := make([]byte, 0, 36)
	for i, x := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			out = append(out, '-')
		}
		out = append(out, hex[x>>4], hex[x&15])
	}
	return string(out)
}

// packDateTime is the inverse of dateTime.
func packDateTime(o *value.Object) (*value.Object, error) {
	if len(o.Args) > 0 {
		if _, ok := o.Args[0].([]byte); ok {
			return o, nil // packed already
		}
	}
	if o.State != nil || o.Items != nil || o.Pairs != nil {
		return o, nil
	}
	switch o.Name {
	case "date", "datetime", "time":
		return packMoment(o)
	case "timedelta":
		return packDelta(o)
	}
	return o, nil
}

// momentFields are the largest values of year, month, day, hour, minute, second
// and microsecond.
var momentFields = [7]int64{9999, 12, 31, 23, 59, 59, 999999}

// packMoment packs a date, a datetime or a time into bytes.
func packMoment(o *value.Object) (*value.Object, error) {
	first, last := 0, 7 // the fields that the class has
	switch o.Name {
	case "date":
		last = 3
	case "time":
		first = 3
	}
	if len(o.Args) > last-first || o.Name != "time" && len(o.Args) < 3 {
		return nil, badForm(o)
	}
	var f [7]int64
	for i, a := range o.Args {
		v, ok := a.(int64)
		if !ok || v < 0 || v > momentFields[first+i] || first+i < 3 && v == 0 {
			return nil, badForm(o)
		}
		f[first+i] = v
	}
	b := []byte{byte(f[0] >> 8), byte(f[0]), byte(f[1]), byte(f[2]),
		byte(f[3]), byte(f[4]), byte(f[5]), byte(f[6] >> 16), byte(f[6] >> 8), byte(f[6])}
	fold := 2
	switch o.Name {
	case "date":
		b = b[:4]
	case "time":
		b, fold = b[4:], 0
	}
	return packNamed(o, b, fold)
}

// packNamed adds the time zone and the fold.
func packNamed(o *value.Object, b []byte, fold int) (*value.Object, error) {
	out := &value.Object{Module: o.Module, Name: o.Name, Call: true, Args: value.Tuple{b}}
	for k, v := range o.Kwargs {
		switch {
		case o.Name == "date":
			return nil, badForm(o)
		case k == "fold" && v == int64(1):
			b[fold] |= 0x80
		case k == "tzinfo" && v != nil:
			out.Args = append(out.Args, v)
		case k != "fold" && k != "tzinfo", k == "fold" && v != int64(0):
			return nil, badForm(o)
		}
	}
	return out, nil
}

func packDelta(o *value.Object) (*value.Object, error) {
	if len(o.Args) > 3 {
		return nil, badForm(o)
	}
	args := value.Tuple{int64(0), int64(0), int64(0)}
	copy(args, o.Args)
	for k, v := range o.Kwargs {
		switch k {
		case "days":
			args[0] = v
		case "seconds":
			args[1] = v
		case "microseconds":
			args[2] = v
		default:
			return nil, badForm(o)
		}
	}
	for _, a := range args {
		if _, ok := a.(int64); !ok {
			return nil, badForm(o)
		}
	}
	return &value.Object{Module: o.Module, Name: o.Name, Call: true, Args: args}, nil
}
