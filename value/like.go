package value

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
)

// DecodeLike decodes data into a value of the type of like, so that a state
// that held an int gets an int back. Where the types do not fit, it returns
// what [Decode] returns: the stored value replaces the one that was there. A
// like whose type, or pointer to it, implements encoding.BinaryUnmarshaler gets
// Raw bytes by that; a non-nil pointer is filled in place.
func DecodeLike(codec string, data []byte, like any) (any, error) {
	if codec == Raw {
		if v, ok, err := unmarshalLike(data, like); ok {
			return v, err
		}
	}
	v, err := Decode(codec, data)
	if err != nil || v == nil || like == nil {
		return v, err
	}
	if c, ok := convert(reflect.ValueOf(v), reflect.TypeOf(like)); ok {
		return c.Interface(), nil
	}
	return v, nil
}

func unmarshalLike(data []byte, like any) (any, bool, error) {
	if like == nil {
		return nil, false, nil
	}
	rv := reflect.ValueOf(like)
	if u, ok := like.(encoding.BinaryUnmarshaler); ok && rv.Kind() == reflect.Pointer && !rv.IsNil() {
		return like, true, wrapUnmarshal(u, data)
	}
	p := reflect.New(rv.Type())
	if u, ok := p.Interface().(encoding.BinaryUnmarshaler); ok {
		err := wrapUnmarshal(u, data)
		return p.Elem().Interface(), true, err
	}
	return nil, false, nil
}

func wrapUnmarshal(u encoding.BinaryUnmarshaler, data []byte) error {
	if err := u.UnmarshalBinary(data); err != nil {
		return fmt.Errorf("%w: %T: %w", ErrEncoding, u, err)
	}
	return nil
}

// convert returns v as a t when that loses nothing.
func convert(v reflect.Value, t reflect.Type) (reflect.Value, bool) {
	out := reflect.New(t).Elem()
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	switch {
	case !v.IsValid():
		return out, t.Kind() == reflect.Interface
	case v.Type().AssignableTo(t):
		return v, true
	case out.CanInt() && v.CanInt() && !out.OverflowInt(v.Int()):
		out.SetInt(v.Int())
	case out.CanUint() && v.CanInt() && v.Int() >= 0 && !out.OverflowUint(uint64(v.Int())):
		out.SetUint(uint64(v.Int()))
	case out.CanUint() && v.CanUint() && !out.OverflowUint(v.Uint()):
		out.SetUint(v.Uint())
	case out.CanFloat() && v.CanFloat() && fitsFloat(out, v.Float()):
		out.SetFloat(v.Float())
	case t.Kind() == v.Kind() && (t.Kind() == reflect.String || t.Kind() == reflect.Bool):
		return v.Convert(t), true
	case t.Kind() == reflect.Slice && v.Kind() == reflect.Slice:
		return convertList(v, t)
	default:
		return out, false
	}
	return out, true
}

// fitsFloat reports whether f survives in out's type.
func fitsFloat(out reflect.Value, f float64) bool {
	return out.Kind() == reflect.Float64 || math.IsNaN(f) || float64(float32(f)) == f
}

func convertList(v reflect.Value, t reflect.Type) (reflect.Value, bool) {
	out := reflect.MakeSlice(t, v.Len(), v.Len())
	for i := range v.Len() {
		e, ok := convert(v.Index(i), t.Elem())
		if !ok {
			return out, false
		}
		out.Index(i).Set(e)
	}
	return out, true
}
