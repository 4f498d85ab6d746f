package pickle

import (
	"github.com/cairn-ckpt/cairn/value"
)

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
