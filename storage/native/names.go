package native

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
)

const (
	// recordName is the name of the commit record, the only file that has the same name
	// in all saves. Each save replaces it atomically.
	recordName = "cairn.json"
	// indexSuffix and dataSuffix end the names of the other files, which begin
	// with the save's id, so that no save touches the files of another one.
	indexSuffix = "-index.cairn"
	dataSuffix  = ".safetensors"
	// deltaSuffix ends the names of delta files. A delta file holds the bytes of a data file
	// that changed since an earlier save, or the hashes of a data file.
	deltaSuffix = ".delta"
	// maxSaveID bounds a save's id, so that file names stay below the limits of file systems.
	maxSaveID = 64
)

// RecordName is the name of the file that makes a checkpoint complete.
const RecordName = recordName

// checkSaveID returns an error that wraps blob.ErrName unless id has 1 to maxSaveID
// lower-case letters, digits and dashes, and neither begins nor ends with a dash.
func checkSaveID(id string) error {
	odd := func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'z') && r != '-' }
	if id == "" || len(id) > maxSaveID || id[0] == '-' || id[len(id)-1] == '-' || strings.ContainsFunc(id, odd) {
		return fmt.Errorf("%w: save id %q: want 1 to %d of a-z, 0-9 and inner dashes", blob.ErrName, id, maxSaveID)
	}
	return nil
}

// Recognize reports whether a file of that name at the root of a store describes a
// checkpoint of this format, or holds data of one.
func Recognize(name string) (describes, holds bool) {
	_, holds = parseDataOrDelta(name)
	_, describes = parseIndexFileName(name)
	return describes || name == recordName, holds
}

// saveOf returns the id of the save that a data file or index of that name belongs to. ok is
// false for all other names, also for the record, because all saves share its name.
func saveOf(name string) (saveID string, ok bool) {
	if saveID, ok = parseDataOrDelta(name); ok {
		return saveID, true
	}
	return parseIndexFileName(name)
}

// indexFileName returns the name of a save's index.
func indexFileName(saveID string) string { return saveID + indexSuffix }

// DataFileName returns the name of the n-th data file of a rank in a save.
func DataFileName(saveID string, rank, n int) string {
	return fmt.Sprintf("%s-r%05d-%d%s", saveID, rank, n, dataSuffix)
}

// parseDataFileName is the inverse of DataFileName. It reports false for every
// name that DataFileName does not return.
func parseDataFileName(name string) (saveID string, rank, n int, ok bool) {
	rest, last := cutLast(strings.TrimSuffix(name, dataSuffix), "-")
	saveID, middle := cutLast(rest, "-r")
	rank, err1 := strconv.Atoi(middle)
	n, err2 := strconv.Atoi(last)
	if err1 != nil || err2 != nil || rank < 0 || n < 0 || checkSaveID(saveID) != nil || DataFileName(saveID, rank, n) != name {
		return "", 0, 0, false
	}
	return saveID, rank, n, true
}

// parseDataOrDelta returns the id of the save that a data file or delta file of that name
// belongs to.
func parseDataOrDelta(name string) (saveID string, ok bool) {
	if stem, isDelta := strings.CutSuffix(name, deltaSuffix); isDelta {
		name = stem + dataSuffix
	}
	saveID, _, _, ok = parseDataFileName(name)
	return saveID, ok
}

// parseIndexFileName is the inverse of indexFileName.
func parseIndexFileName(name string) (saveID string, ok bool) {
	saveID, ok = strings.CutSuffix(name, indexSuffix)
	return saveID, ok && checkSaveID(saveID) == nil
}

// cutLast cuts s around the last sep. If s has no sep, it returns empty strings.
func cutLast(s, sep string) (before, after string) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return "", ""
	}
	return s[:i], s[i+len(sep):]
}
