package ram

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Sum is the size and the checksum of a file of a run, as its saver has computed them while it wrote
// the file.
type Sum struct {
	Size   int64  `json:"size"`
	CRC32C uint32 `json:"crc32c"`
}

// sumsTail ends the name of the file with the sums of a run.
const sumsTail = ".sums"

// ReadSums returns the sums of files of a run on this host, by their names in the run. There are none if
// the file is missing. It has no checksum: a file whose sum is wrong looks damaged, and so do all of its
// copies.
func (r Root) ReadSums(run string) (map[string]Sum, error) {
	folder, err := r.Folder(run)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(folder + sumsTail)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]Sum{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]Sum{}
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("%s%s: %w", folder, sumsTail, err)
	}
	return out, nil
}

// WriteSums replaces the sums of the files of a run on this host, in one atomic step.
func (r Root) WriteSums(run string, sums map[string]Sum) error {
	folder, err := r.Folder(run)
	if err != nil {
		return err
	}
	data, err := json.Marshal(sums)
	if err != nil {
		return err
	}
	return replace(folder+sumsTail, data)
}
