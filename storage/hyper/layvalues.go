package hyper

import (
	"errors"
	"fmt"

	"github.com/cairn-ckpt/cairn/internal/pickle"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/datafile"
	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
	"github.com/cairn-ckpt/cairn/value"
)

// layValues lays out the files of a plan's values: one after the other in a
// single file, or each in its own in the older dialect. All values that cannot be
// written are in the error.
func (o *options) layValues(p *plan.SavePlan, data storage.Resolver, rank int, infix string) ([]*datafile.File, error) {
	var files []*valueFileLayout
	var refused []error
	for i := range p.Items {
		it := &p.Items[i]
		if it.Kind != plan.KindBytes {
			continue
		}
		part, err := dcpfiles.LayValue(it, data, encodeValue)
		if errors.Is(err, storage.ErrNotRepresentable) {
			refused = append(refused, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(files) == 0 || o.Old {
			files = append(files, &valueFileLayout{name: dataFileName(rank, infix, len(files), valueSuffix)})
		}
		files[len(files)-1].add(it, part)
	}
	if err := errors.Join(refused...); err != nil {
		return nil, err
	}
	out := make([]*datafile.File, len(files))
	for i, f := range files {
		out[i] = &datafile.File{Name: f.name, Parts: f.parts, Results: func() []storage.WriteResult { return f.results }}
	}
	return out, nil
}

// valueFileLayout is a file of values in the making.
type valueFileLayout struct {
	name    string
	parts   []datafile.Part
	results []storage.WriteResult
	size    int64
}

func (f *valueFileLayout) add(it *plan.WriteItem, part datafile.Part) {
	f.parts = append(f.parts, part)
	f.results = append(f.results, storage.WriteResult{
		Index: it.Index(), Loc: meta.Location{File: f.name, Offset: f.size, Length: part.Length},
	})
	f.size += part.Length
}

// encodeValue returns the pickle of the value that data encodes.
func encodeValue(it *plan.WriteItem, data []byte) ([]byte, error) {
	v, err := value.Decode(it.Info.Codec, data)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", it.FQN(), err)
	}
	b, err := pickle.Encode(v, nil)
	if err != nil {
		return nil, &storage.NotRepresentable{FQN: it.FQN(), Why: err.Error()}
	}
	return b, nil
}
