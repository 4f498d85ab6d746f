package value

import (
	"encoding"
	"fmt"
	"math/big"
	"reflect"
)

// DecodeLike decodes data into a value of the type of like, so that a state
// that held an int gets an int back. Where the stored value does not fit that
// type without loss, it returns what [Decode] returns: the stored value replaces
// the one that was there. A Tuple fits a slice or an array as a list does, and
// a Dict that promises no order a map whose key type holds all of its keys.
//
// A like whose type, or pointer to it, implements encoding.BinaryUnmarshaler
// gets Raw bytes by that; a non-nil pointer is filled in place.
func DecodeLike(codec string, data []byte, like any) (any, error) {
	if codec == Raw && like != nil {
		if u, v := unmarshaler(like); u != nil {
			if err := u.UnmarshalBinary(data); err != nil {
				return nil, fmt.Errorf("%w: %T: %w", ErrEncoding, u, err)
			}
			return v.Interface(), nil
		}
	}
	v, err := Decode(codec, data)
	if err != nil || v == nil || like == nil {
		return v, err
	}
	if c, ok := convert(reflect.ValueOf(v), reflect.TypeOf(like), 0); ok {
		return c.Interface(), nil
	}
	return v, nil
}

// unmarshaler returns what fills a value like like, and the value that is then
// filled; nil if its type has no such method.
func unmarshaler(like any) (encoding.BinaryUnmarshaler, reflect.Value) {
	rv := reflect.ValueOf(like)
	t := rv.Type()
	if u, ok := like.(encoding.BinaryUnmarshaler); ok && t.Kind() == reflect.Pointer {
		if rv.IsNil() {
			rv = reflect.New(t.Elem())
			u = rv.Interface().(encoding.BinaryUnmarshaler)
		}
		return u, rv
	}
	p := reflect.New(t)
	u, _ := p.Interface().(encoding.BinaryUnmarshaler)
	return u, p.Elem()
}

var (
	bigInt      = reflect.TypeFor[*big.Int]()
	byteSlice   = reflect.TypeFor[[]byte]()
	dictPointer = reflect.TypeFor[*Dict]()
)

// convert returns v as a t when that loses nothing.
func convert(v reflect.Value, t reflect.Type, depth int) (reflect.Value, bool) {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	none := reflect.Value{}
	switch {
	case depth > maxDepth: // a type of pointers to itself
		return none, false
	case !v.IsValid():
		return reflect.Zero(t), nilable(t)
	case t.Kind() == reflect.Interface:
		return v, v.Type().Implements(t)
	case v.Type().AssignableTo(t):
		return v.Convert(t), true
	case t == bigInt:
		return toBig(v)
	case t.Kind() == reflect.Pointer:
		return convertPointer(v, t, depth)
	case v.Type() == byteSlice && (t.Kind() != reflect.Slice || t.Elem().Kind() != reflect.Uint8):
		return none, false
	case t.Kind() == reflect.Slice && v.Kind() == reflect.Slice:
		out := reflect.MakeSlice(t, v.Len(), v.Len())
		return out, fillList(out, v, depth)
	case t.Kind() == reflect.Array && v.Kind() == reflect.Slice && t.Len() == v.Len():
		out := reflect.New(t).Elem()
		return out, fillList(out, v, depth)
	case t.Kind() == reflect.Map && v.Type() == dictPointer:
		return convertDict(v.Interface().(*Dict), t, depth)
	case t.Kind() == reflect.Map && v.Kind() == reflect.Map && t.Key().Kind() == reflect.String:
		return convertMap(v, t, depth)
	case t.Kind() == v.Kind() && (t.Kind() == reflect.String || t.Kind() == reflect.Bool):
		return v.Convert(t), true
	}
	return convertNumber(v, t)
}

func nilable(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Interface, reflect.Pointer, reflect.Map, reflect.Slice:
		return true
	}
	return false
}

func toBig(v reflect.Value) (reflect.Value, bool) {
	switch {
	case v.CanInt():
		return reflect.ValueOf(big.NewInt(v.Int())), true
	case v.CanUint():
		return reflect.ValueOf(new(big.Int).SetUint64(v.Uint())), true
	}
	return v, false
}

func convertPointer(v reflect.Value, t reflect.Type, depth int) (reflect.Value, bool) {
	e, ok := convert(v, t.Elem(), depth+1)
	if !ok {
		return v, false
	}
	out := reflect.New(t.Elem())
	out.Elem().Set(e)
	return out.Convert(t), true
}

// convertNumber returns the integer, float or complex number v as a t.
func convertNumber(v reflect.Value, t reflect.Type) (reflect.Value, bool) {
	out := reflect.New(t).Elem()
	switch {
	case out.CanInt() && v.CanInt() && !out.OverflowInt(v.Int()):
		out.SetInt(v.Int())
	case out.CanUint() && v.CanInt() && v.Int() >= 0 && !out.OverflowUint(uint64(v.Int())):
		out.SetUint(uint64(v.Int()))
	case out.CanUint() && v.CanUint() && !out.OverflowUint(v.Uint()):
		out.SetUint(v.Uint())
	case out.CanFloat() && v.CanFloat() && fitsFloat(t, v.Float()):
		out.SetFloat(v.Float())
	case out.CanFloat() && v.CanInt() && integral(v.Int()) && fitsFloat(t, float64(v.Int())):
		out.SetFloat(float64(v.Int()))
	case out.CanComplex() && v.CanComplex() && fitsComplex(t, v.Complex()):
		out.SetComplex(v.Complex())
	default:
		return out, false
	}
	return out, true
}

func fitsComplex(t reflect.Type, c complex128) bool {
	part := reflect.TypeFor[float64]()
	if t.Kind() == reflect.Complex64 {
		part = reflect.TypeFor[float32]()
	}
	return fitsFloat(part, real(c)) && fitsFloat(part, imag(c))
}

// integral reports whether a float64 holds n and all smaller integers.
func integral(n int64) bool { return -1<<53 <= n && n <= 1<<53 }

// fitsFloat reports whether f survives in the float type t.
func fitsFloat(t reflect.Type, f float64) bool {
	return t.Kind() == reflect.Float64 || f != f || float64(float32(f)) == f
}

func fillList(out, v reflect.Value, depth int) bool {
	for i := range v.Len() {
		e, ok := convert(v.Index(i), out.Type().Elem(), depth+1)
		if !ok {
			return false
		}
		out.Index(i).Set(e)
	}
	return true
}

func convertMap(v reflect.Value, t reflect.Type, depth int) (reflect.Value, bool) {
	out := reflect.MakeMapWithSize(t, v.Len())
	for k, e := range v.Seq2() {
		c, ok := convert(e, t.Elem(), depth+1)
		if !ok {
			return out, false
		}
		out.SetMapIndex(k.Convert(t.Key()), c)
	}
	return out, true
}

// convertDict returns d as the map t, whose keys must be of a basic type: those
// compare as Python's do.
func convertDict(d *Dict, t reflect.Type, depth int) (reflect.Value, bool) {
	k := t.Key().Kind()
	if d.Ordered || (k > reflect.Complex128 && k != reflect.String) {
		return reflect.Value{}, false
	}
	out := reflect.MakeMapWithSize(t, len(d.Pairs))
	for _, p := range d.Pairs {
		k, okKey := convert(reflect.ValueOf(p.Key), t.Key(), depth+1)
		e, ok := convert(reflect.ValueOf(p.Value), t.Elem(), depth+1)
		if !ok || !okKey {
			return out, false
		}
		out.SetMapIndex(k, e)
	}
	return out, out.Len() == len(d.Pairs)
}
