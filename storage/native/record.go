package native

import (
	"encoding/json"
	"time"
)

// maxRecordBytes bounds the commit record: room for some hundred thousand
// files.
const maxRecordBytes = 64 << 20

// formatName is the record's word for the format.
const formatName = "cairn"

// record is the commit record: what makes a set of files a checkpoint. Its bytes
// are described in docs/format/native.md.
type record struct {
	SaveID    string
	Step      *int64 // nil: unknown
	Time      time.Time
	WorldSize int
	Writer    string
	Tags      map[string]string
	// PlannerData is a JSON value in compact form, or nil.
	PlannerData json.RawMessage
	Totals      recordTotals
	// Files are the checkpoint's other files. The first is the index.
	Files []recordFile

	sizes map[string]int64 // of the files; set by decodeRecord
}

// recordTotals count what the checkpoint holds.
type recordTotals struct {
	Tensors, Values, Chunks int64
	// Bytes are those of the whole tensors and of the values.
	Bytes int64
}

// recordFile is one file of the checkpoint.
type recordFile struct {
	Name   string
	Size   int64
	CRC32C uint32
}

// size returns the size of the file of that name.
func (r *record) size(name string) (int64, bool) {
	if r.sizes == nil {
		for _, f := range r.Files {
			if f.Name == name {
				return f.Size, true
			}
		}
		return 0, false
	}
	n, ok := r.sizes[name]
	return n, ok
}

// wrapRecord returns the file that holds the record value: its bytes are the
// function of value and checksum alone, so that no change to them goes
// unnoticed.
func wrapRecord(crc string, value []byte) []byte {
	b := make([]byte, 0, len(value)+64)
	b = append(b, "{\n  \"crc32c\": \""+crc+"\",\n  \"record\": "...)
	b = append(b, value...)
	return append(b, "\n}\n"...)
}
