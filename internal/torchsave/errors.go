package torchsave

import (
	"errors"
	"fmt"
)

// ErrMalformed reports bytes that are no file of torch.save, or one that
// contradicts itself. Every error of this package about the bytes of a file
// wraps it; the others say which rule was broken. Errors of reading do not.
var ErrMalformed = errors.New("malformed torch.save file")

// ErrForeign reports a file that torch.save did not write, such as a zip archive of
// another program. It wraps ErrMalformed.
var ErrForeign error = foreign("not a file of torch.save")

// foreign is an ErrForeign that says what the file is.
type foreign string

func (f foreign) Error() string { return string(f) }
func (foreign) Unwrap() error   { return ErrMalformed }

func (foreign) Is(target error) bool { return target == ErrForeign }

// The rules that a file may break.
var (
	// ErrTruncated reports a file that ends too early.
	ErrTruncated = fmt.Errorf("%w: cut short", ErrMalformed)
	// ErrCompressed reports a record that is not stored as it is.
	ErrCompressed = fmt.Errorf("%w: compressed record", ErrMalformed)
	// ErrEncrypted reports a record that is encrypted.
	ErrEncrypted = fmt.Errorf("%w: encrypted record", ErrMalformed)
	// ErrBounds reports a record, or a part of the directory, that lies outside
	// of the file.
	ErrBounds = fmt.Errorf("%w: outside of the file", ErrMalformed)
	// ErrOverlap reports two records that share bytes.
	ErrOverlap = fmt.Errorf("%w: overlapping records", ErrMalformed)
	// ErrDuplicate reports two records of one name.
	ErrDuplicate = fmt.Errorf("%w: duplicate record", ErrMalformed)
	// ErrName reports the name of a record that leads out of the archive.
	ErrName = fmt.Errorf("%w: unsafe record name", ErrMalformed)
	// ErrContradiction reports a directory and a record's own header that say
	// different things.
	ErrContradiction = fmt.Errorf("%w: directory and record contradict each other", ErrMalformed)
	// ErrByteOrder reports tensors that are not little-endian.
	ErrByteOrder = fmt.Errorf("%w: unsupported byte order", ErrMalformed)
	// ErrVersion reports a version of the format that this package cannot read.
	ErrVersion = fmt.Errorf("%w: unsupported version", ErrMalformed)
	// ErrTar reports the tar form of PyTorch before 0.1.11, which is not read.
	ErrTar = fmt.Errorf("%w: tar archive of PyTorch before 0.1.11", ErrMalformed)
	// ErrLimit reports a file that takes more than this package allows.
	ErrLimit = fmt.Errorf("%w: limit exceeded", ErrMalformed)
	// ErrStorage reports a persistent id that is none of a storage, or one that
	// lies about the storage.
	ErrStorage = fmt.Errorf("%w: bad storage", ErrMalformed)
	// ErrView reports a tensor that does not lie inside of its storage.
	ErrView = fmt.Errorf("%w: bad tensor", ErrMalformed)
	// ErrChecksum reports bytes whose checksum is not the one in the directory.
	ErrChecksum = fmt.Errorf("%w: checksum does not match", ErrMalformed)
)

// ErrValue reports a value that cannot be written.
var ErrValue = errors.New("value cannot be written by torch.save")
