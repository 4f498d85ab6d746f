package torchsave

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"
)

// checkBytes is how much Check reads at once.
const checkBytes = 1 << 20

// Check reads all records and compares their checksums with those of the
// directory. It tells problem of each that is wrong, with the key of the storage
// (empty where the record is none). The error is for what could not be read.
// read gives the bytes that Open got. A stream of PyTorch before 1.6 has no
// checksums, and nothing of it is read.
func (f *File) Check(ctx context.Context, read ReadFunc, problem func(key string, err error)) error {
	var most int64
	for i := range f.records {
		most = max(most, f.records[i].size)
	}
	buf := make([]byte, min(checkBytes, most))
	for i := range f.records {
		r := &f.records[i]
		crc := uint32(0)
		for at := r.data; at < r.end(); {
			p := buf[:min(checkBytes, r.end()-at)]
			if err := read(ctx, p, at); err != nil {
				return err
			}
			crc = crc32.Update(crc, crc32.IEEETable, p)
			at += int64(len(p))
		}
		if crc != r.crc {
			problem(f.keyOf(r), fmt.Errorf("%w: %q", ErrChecksum, r.name))
		}
	}
	return nil
}

// keyOf returns the key of the storage that a record is.
func (f *File) keyOf(r *record) string {
	key, _ := strings.CutPrefix(r.name, f.folder+"/"+recordStorages)
	if key == r.name {
		return ""
	}
	return key
}
