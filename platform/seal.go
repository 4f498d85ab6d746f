package platform

import (
	"fmt"

	"github.com/cairn-ckpt/cairn/group"
)

// A sealed value is a byte that says which, and the value's encoding or the
// error that there was instead: so that nobody waits for a value that there is
// not.
const sealedValue, sealedError = 0, 1

// seal returns v sealed, and the error where it could not be encoded.
func seal[T any](codec group.Codec[T], v T) ([]byte, error) {
	var b []byte
	err := group.Catch(func() (err error) {
		b, err = codec.Encode(v)
		return err
	})
	if err == nil {
		return append([]byte{sealedValue}, b...), nil
	}
	re := group.NewRemoteError(err) // of the same text here as elsewhere
	text, err := re.MarshalBinary()
	if err != nil {
		return []byte{sealedError}, re
	}
	return append([]byte{sealedError}, text...), re
}

// unsealBytes returns the encoding in a sealed value, or the error that is there
// instead.
func unsealBytes(msg []byte) ([]byte, error) {
	if len(msg) == 0 || msg[0] > sealedError {
		return nil, fmt.Errorf("value of %d bytes is not sealed: %w", len(msg), group.ErrDisagree)
	}
	if msg[0] == sealedValue {
		return msg[1:], nil
	}
	re := new(group.RemoteError)
	if err := re.UnmarshalBinary(msg[1:]); err != nil {
		return nil, err
	}
	return nil, re
}

func unseal[T any](step string, from int, codec group.Codec[T], msg []byte) (T, error) {
	v, err := decode(codec, msg)
	if err != nil {
		return v, stepError(step, from, err)
	}
	return v, nil
}

// unsealAll returns the values of all ranks; own is the error with which this
// one sealed its own.
func unsealAll[T any](step string, me int, own error, codec group.Codec[T], msgs [][]byte) ([]T, error) {
	values, failures := make([]T, len(msgs)), map[int]error{}
	for r, msg := range msgs {
		v, err := decode(codec, msg)
		if r == me && own != nil {
			err = own
		}
		if err != nil {
			failures[r] = err
		}
		values[r] = v
	}
	if len(failures) > 0 {
		return nil, &group.StepError{Step: step, Failures: failures}
	}
	return values, nil
}

func decode[T any](codec group.Codec[T], msg []byte) (v T, err error) {
	b, err := unsealBytes(msg)
	if err != nil {
		return v, err
	}
	err = group.Catch(func() (err error) {
		v, err = codec.Decode(b)
		return err
	})
	return v, err
}

// stepError returns the error of a step that failed on one rank, nil where it
// did not.
func stepError(step string, rank int, err error) error {
	if err == nil {
		return nil
	}
	return &group.StepError{Step: step, Failures: map[int]error{rank: err}}
}
