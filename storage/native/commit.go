package native

import (
	"context"
	"slices"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/commit"
)

// lockFormat is the name of the format in the locks of saves.
const lockFormat = "native"

// Files describes the files of this format.
func Files() *commit.Format {
	return &commit.Format{Name: lockFormat, Records: []string{recordName}, First: true, IDFirst: true, Parse: saveOf, Read: readExisting, Needed: neededForSweeps}
}

// readExisting implements commit.Format.Read. If the record also names files of other
// saves, a save that replaces the checkpoint does not remove them.
func readExisting(ctx context.Context, s blob.Store) (*commit.Existing, error) {
	rec, version, err := readRecordVersion(ctx, s)
	if err != nil {
		return nil, err
	}
	e := &commit.Existing{SaveID: rec.SaveID, Version: version, Time: rec.Time, Step: rec.Step, Line: rec.Line}
	e.Referable = len(rec.Coded)+len(rec.Hashes) > 0
	for _, f := range append(slices.Clone(rec.Files), rec.Hashes...) {
		e.Files = append(e.Files, f.Name)
		if isOf(f.Name, rec.SaveID) {
			e.Replaced = append(e.Replaced, f.Name)
		}
	}
	return e, nil
}

// Sums returns the number of checksums that this format has for a chunk of the given
// sizes and element size.
func Sums(sizes []int64, elem int) int64 { return gridOf(sizes, int64(elem)).tiles() }

// Commit writes the index and the record for existing data files. md.Entries describes
// their content, with locations, and md.Storage the checkpoint. Commit writes the record
// last and replaces the existing record, if there is one.
func Commit(ctx context.Context, s blob.Store, md *meta.Metadata, files []storage.File) error {
	return commitIf(ctx, s, md, files, nil)
}

// commitIf is Commit with a condition of the record.
func commitIf(ctx context.Context, s blob.Store, md *meta.Metadata, files []storage.File, cond *blob.CreateOptions) error {
	index, rec, err := encode(md, &storage.WriteResults{Files: files}, nil, nil)
	if err != nil {
		return err
	}
	if _, err := blob.WriteAll(ctx, s, index.Name, index.Data, nil); err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, s, rec.Name, rec.Data, cond)
	return err
}

// encode returns the index and the record of a checkpoint with the files of written. c describes
// the checkpoints that it needs, or is nil. encode calls timeline, which may be nil, when the index is made.
func encode(md *meta.Metadata, written *storage.WriteResults, c *chain, timeline func() meta.Timeline) (index, rec commit.File, err error) {
	index.Name, rec.Name = indexFileName(md.Storage.SaveID), recordName
	if index.Data, err = EncodeIndex(md.Entries); err != nil {
		return index, rec, err
	}
	r := recordOf(md, written.Files, index.Data)
	r.addCoded(written.Coded)
	r.Chain = c
	if timeline != nil {
		r.Timeline = timeline()
	}
	rec.Data, err = encodeRecord(r)
	return index, rec, err
}

// recordOf returns the record of a checkpoint. index is the content of its index file.
func recordOf(md *meta.Metadata, files []storage.File, index []byte) *record {
	s := md.Storage
	rec := &record{
		Tied: len(md.Ties()) > 0, SaveID: s.SaveID, Step: s.Step, Time: s.Time, WorldSize: s.WorldSize, Writer: s.Writer, Tags: s.Tags, Line: s.Line,
		PlannerData: md.PlannerData, Totals: totalsOf(md.Entries), Timeline: s.Timeline,
	}
	rec.Files = append(rec.Files, storage.File{
		Name: indexFileName(s.SaveID), Size: int64(len(index)), CRC32C: crc32c.Checksum(index),
	})
	rec.Files = append(rec.Files, files...)
	return rec
}

// totalsOf counts the tensors, values, chunks and bytes of entries.
func totalsOf(entries []meta.Entry) recordTotals {
	var t recordTotals
	ties := (&meta.Metadata{Entries: entries}).Ties()
	for i := range entries {
		if ties[entries[i].FQN] == "" {
			t.Bytes += entries[i].NumBytes()
		}
		if e := &entries[i]; e.Tensor != nil {
			t.Tensors++
			t.Chunks += int64(len(e.Tensor.Chunks))
		} else {
			t.Values++
		}
	}
	return t
}
