package reading

import (
	"context"
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
)

// The first element that differs is named, in whichever run of elements it is.
func TestCheckCopies(t *testing.T) {
	defer func(n int64) { slabElements = n }(slabElements)
	slabElements = 4
	shape := []int64{3, 7}
	for _, wrong := range []int{-1, 0, 5, 20} {
		s := new(mem.Store)
		var wide, half []byte
		for i := range 21 {
			f := float32(i) + 1.0/1024 // rounded in 16 bits
			wide = binary.LittleEndian.AppendUint32(wide, math.Float32bits(f))
			if i >= wrong && wrong >= 0 {
				f += 40
			}
			half = binary.LittleEndian.AppendUint16(half, uint16((math.Float32bits(f)+0x8000)>>16))
		}
		must.Get(blob.WriteAll(t.Context(), s, "wide", wide, nil))(t)
		must.Get(blob.WriteAll(t.Context(), s, "half", half, nil))(t)
		entry := func(fqn, file string, d tensor.DType, n int) meta.Entry {
			return meta.Entry{FQN: fqn, Tensor: &meta.Tensor{Properties: meta.Properties{DType: d}, Shape: shape, Chunks: []tensor.Box{tensor.Whole(shape)},
				Locs: []meta.Location{{File: file, Length: int64(n)}}}}
		}
		src := &Source{
			Metadata: &meta.Metadata{Entries: []meta.Entry{entry("w", "wide", tensor.Float32, len(wide))}},
			Files:    []storage.File{{Name: "wide", Size: int64(len(wide))}, {Name: "half", Size: int64(len(half))}},
			Copies:   []Copy{{FQN: "w", Entry: entry("w16", "half", tensor.BFloat16, len(half))}},
			Place: func(_ context.Context, e *meta.Entry, i int) (Place, error) {
				l := &e.Tensor.Locs[i]
				return Place{Region: &Region{File: l.File, End: l.Length, DType: e.Tensor.DType}}, nil
			},
		}
		c := Open(s, src)
		rep := must.Get(c.CheckCopies(t.Context(), nil, storage.ReadOptions{}))(t)
		verified := must.Get(c.Verify(t.Context(), nil))(t)
		if len(rep.Problems) != len(verified.Problems) || rep.Tensors != 1 {
			t.Errorf("CheckCopies = %+v, and Verify = %+v; want the same problems", rep, verified)
		}
		part := func(file string, rest bool) *storage.VerifyReport {
			return must.Get(c.VerifyPart(t.Context(), func(name string) bool { return name == file }, rest, nil))(t)
		}
		joined := storage.JoinReports([]*storage.VerifyReport{part("wide", true), part("half", false)})
		must.Do(t, storage.VerifyCopies(t.Context(), c, joined))
		if !reflect.DeepEqual(joined, verified) {
			t.Errorf("the parts of two processes are %+v; want %+v", joined, verified)
		}
		switch {
		case wrong < 0 && len(rep.Problems) > 0:
			t.Errorf("CheckCopies of equal copies = %+v; want no problems", rep)
		case wrong >= 0 && (len(rep.Problems) != 1 || rep.Problems[0].FQN != "w" || !strings.Contains(rep.Problems[0].Text, map[int]string{0: "[0 0]", 5: "[0 5]", 20: "[2 6]"}[wrong])):
			t.Errorf("CheckCopies with element %d changed = %+v; want one problem that names it", wrong, rep)
		}
	}
}
