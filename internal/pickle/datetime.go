package pickle

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"slices"

	"github.com/cairn-ckpt/cairn/value"
)

// moments are the classes that pickle their fields as bytes: the number of bytes,
// and the range of their fields in momentFields.
var moments = map[string]struct{ size, first, last int }{"date": {4, 0, 3}, "time": {6, 3, 7}, "datetime": {10, 0, 7}}

// momentFields are the largest values of year, month, day, hour, minute, second
// and microsecond.
var momentFields = [7]int64{9999, 12, 31, 23, 59, 59, 999999}

// dateTime unpacks the classes of datetime.
func dateTime(o *value.Object) any {
	var n *value.Object
	switch o.Name {
	case "date", "datetime", "time":
		n = moment(o)
	case "timedelta":
		n = delta(o)
	}
	if n == nil {
		return o
	}
	n.Module, n.Name, n.Call = o.Module, o.Name, true
	return n
}

// moment unpacks a date, a time or a datetime. The fold is the highest bit of the
// month, or of the hour if there is no month.
func moment(o *value.Object) *value.Object {
	m := moments[o.Name]
	if len(o.Args) == 0 || len(o.Args) > 2 || len(o.Args) == 2 && o.Name == "date" || !bare(o, len(o.Args)) {
		return nil
	}
	b, ok := o.Args[0].([]byte)
	if !ok || len(b) != m.size {
		return nil
	}
	var all [10]byte // of a datetime
	copy(all[len(all)-m.size:], b)
	if o.Name == "date" {
		copy(all[:], b)
	}
	n := &value.Object{}
	kwargs := map[string]any{}
	if fold := foldByte(o.Name, all[:]); o.Name != "date" && *fold&0x80 != 0 {
		*fold &^= 0x80
		kwargs["fold"] = int64(1)
	}
	if len(o.Args) == 2 && o.Args[1] != nil {
		kwargs["tzinfo"] = o.Args[1]
	}
	if len(kwargs) > 0 {
		n.Kwargs = kwargs
	}
	micro := int64(all[7])<<16 | int64(all[8])<<8 | int64(all[9])
	fields := value.Tuple{int64(binary.BigEndian.Uint16(all[:])), int64(all[2]), int64(all[3]), int64(all[4]), int64(all[5]), int64(all[6]), micro}
	last := m.last
	for last > 5 && fields[last-1] == int64(0) {
		last-- // seconds and microseconds are optional
	}
	n.Args = fields[m.first:last]
	return n
}

// foldByte returns the byte with the fold among the bytes of a datetime.
func foldByte(class string, all []byte) *byte {
	if class == "time" {
		return &all[4]
	}
	return &all[2]
}

func delta(o *value.Object) *value.Object {
	if !bare(o, 3) {
		return nil
	}
	kwargs := map[string]any{}
	for i, name := range deltaFields {
		v, ok := o.Args[i].(int64)
		if !ok {
			return nil
		}
		if v != 0 {
			kwargs[name] = v
		}
	}
	if len(kwargs) == 0 {
		return &value.Object{Args: value.Tuple{int64(0)}}
	}
	return &value.Object{Kwargs: kwargs}
}

var deltaFields = []string{"days", "seconds", "microseconds"}

// uuid turns the integer of a pickled UUID into its text.
func uuid(o *value.Object) any {
	state, ok := o.State.(map[string]any)
	if o.Name != "UUID" || !ok || len(state) != 1 || len(o.Args) != 0 || o.Kwargs != nil || o.Items != nil || o.Pairs != nil {
		return o
	}
	n := new(big.Int)
	switch v := state["int"].(type) {
	case int64:
		n.SetInt64(v)
	case uint64:
		n.SetUint64(v)
	case *big.Int:
		n = v
	default:
		return o
	}
	if n.Sign() < 0 || n.BitLen() > 128 {
		return o
	}
	h := fmt.Sprintf("%032x", n)
	text := h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
	return &value.Object{Module: o.Module, Name: o.Name, Call: true, Args: value.Tuple{text}}
}

// packDateTime is the inverse of dateTime.
func packDateTime(o *value.Object) *value.Object {
	if len(o.Args) > 0 {
		if _, ok := o.Args[0].([]byte); ok {
			return o // packed already
		}
	}
	if o.State != nil || o.Items != nil || o.Pairs != nil {
		return o
	}
	switch o.Name {
	case "date", "datetime", "time":
		return packMoment(o)
	case "timedelta":
		return packDelta(o)
	}
	return o
}

// packMoment packs a date, a datetime or a time into bytes.
func packMoment(o *value.Object) *value.Object {
	m := moments[o.Name]
	if len(o.Args) > m.last-m.first || o.Name != "time" && len(o.Args) < 3 || o.Name == "date" && len(o.Kwargs) > 0 {
		badForm(o)
	}
	var f [7]int64
	for i, a := range o.Args {
		v, ok := a.(int64)
		if !ok || v < 0 || v > momentFields[m.first+i] || m.first+i < 3 && v == 0 {
			badForm(o)
		}
		f[m.first+i] = v
	}
	all := []byte{byte(f[0] >> 8), byte(f[0]), byte(f[1]), byte(f[2]),
		byte(f[3]), byte(f[4]), byte(f[5]), byte(f[6] >> 16), byte(f[6] >> 8), byte(f[6])}
	b := all[:m.size]
	if o.Name == "time" {
		b = all[4:]
	}
	out := &value.Object{Module: o.Module, Name: o.Name, Call: true, Args: value.Tuple{b}}
	for k, v := range o.Kwargs {
		switch {
		case k == "fold" && v == int64(1):
			*foldByte(o.Name, all) |= 0x80
		case k == "tzinfo" && v != nil:
			out.Args = append(out.Args, v)
		case k != "fold" && k != "tzinfo", k == "fold" && v != int64(0):
			badForm(o)
		}
	}
	return out
}

func packDelta(o *value.Object) *value.Object {
	if len(o.Args) > 3 {
		badForm(o)
	}
	args := value.Tuple{int64(0), int64(0), int64(0)}
	copy(args, o.Args)
	for k, v := range o.Kwargs {
		i := slices.Index(deltaFields, k)
		if i < 0 {
			badForm(o)
		}
		args[i] = v
	}
	for _, a := range args {
		if _, ok := a.(int64); !ok {
			badForm(o)
		}
	}
	return &value.Object{Module: o.Module, Name: o.Name, Call: true, Args: args}
}
