package native

import (
	"context"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

// EncodeIndex returns the index file for entries, which must be sorted by name
// and have their locations.
func EncodeIndex(entries []meta.Entry) ([]byte, error) { return encodeIndex(entries) }

// Sums returns how many checksums a chunk of these sizes and element size has in
// this format.
func Sums(sizes []int64, elem int) int64 { return gridOf(sizes, int64(elem)).tiles() }

// DataFileName returns the name of the n-th data file of a rank in a save.
func DataFileName(saveID string, rank, n int) string { return dataFileName(saveID, rank, n) }

// Commit writes index and record for data files that are in place: md describes
// them, with locations, and md.Storage the checkpoint. The record comes last and
// replaces whatever is there.
func Commit(ctx context.Context, s blob.Store, md *meta.Metadata, files []storage.File) error {
	index, err := encodeIndex(md.Entries)
	if err != nil {
		return err
	}
	rec := recordOf(md, files, index)
	b, err := encodeRecord(rec)
	if err != nil {
		return err
	}
	if _, err := blob.WriteAll(ctx, s, rec.Files[0].Name, index, nil); err != nil {
		return err
	}
	_, err = blob.WriteAll(ctx, s, recordName, b, nil)
	return err
}

// recordOf returns the record of a checkpoint with that index.
func recordOf(md *meta.Metadata, files []storage.File, index []byte) *record {
	s := md.Storage
	rec := &record{
		SaveID: s.SaveID, Step: s.Step, Time: s.Time, WorldSize: s.WorldSize, Writer: s.Writer, Tags: s.Tags,
		PlannerData: md.PlannerData, Totals: totalsOf(md.Entries),
	}
	rec.Files = append(rec.Files, recordFile{
		Name: indexFileName(s.SaveID), Size: int64(len(index)), CRC32C: crc32c.Checksum(index),
	})
	for _, f := range files {
		rec.Files = append(rec.Files, recordFile{Name: f.Name, Size: f.Size, CRC32C: f.CRC32C})
	}
	return rec
}
