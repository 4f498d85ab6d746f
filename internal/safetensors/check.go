package safetensors

import (
	"cmp"
	"fmt"

	"github.com/cairn-ckpt/cairn/tensor"
)

// byOffset orders entries by their data. An empty one comes before the one that
// begins where it stands.
func byOffset(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
}

// checkEntries returns where the data of the entries ends, or an error unless
// they are sound and tile the data from its beginning.
func checkEntries(entries []Entry) (end int64, err error) {
	for i := range entries {
		e := &entries[i]
		if err := checkEntry(e); err != nil {
			return 0, fmt.Errorf("%w: tensor %q: %w", ErrHeader, e.Name, err)
		}
		if e.Begin != end {
			return 0, fmt.Errorf("%w: tensor %q begins at byte %d of the data, the one before ends at %d", ErrHeader, e.Name, e.Begin, end)
		}
		end = e.End
	}
	return end, nil
}

// checkEntry returns an error unless e's range is what its shape and type take.
func checkEntry(e *Entry) error {
	d, ok := TensorDType(e.DType)
	if !ok {
		return fmt.Errorf("%w: %q", tensor.ErrDType, e.DType)
	}
	n, err := tensor.NumBytes(d, e.Shape)
	if err != nil {
		return err
	}
	if e.Begin < 0 || e.End < e.Begin || e.End-e.Begin != n {
		return fmt.Errorf("data_offsets [%d, %d] for %d bytes of %s %v", e.Begin, e.End, n, e.DType, e.Shape)
	}
	return nil
}
