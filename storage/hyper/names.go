package hyper

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
)

const (
	dataPrefix   = "_rank" // begins the names of the data files that cairn writes
	tensorSuffix = ".safetensors"
	valueSuffix  = ".bytes"
)

// files describes the names of hyper_parallel's files.
var files = &dcpfiles.Format{
	Maker: dcpfiles.HyperParallel, Version: "hyper_parallel", Data: isData, Parse: parseDataFile,
	Rank: parseRankMetadata, RankName: func(rank int) string { return fmt.Sprintf("%d.metadata", rank) },
}

var (
	// rankMetadata are the metadata files of single ranks, the older name first.
	rankMetadata = regexp.MustCompile(`^(?:\.rank(0|[1-9][0-9]{0,8})_metadata|(0|[1-9][0-9]{0,8})\.metadata)$`)
	// dataFile are the names of data files. Those that cairn writes may contain the
	// id of the save and a number.
	dataFile = regexp.MustCompile(`^_rank(0|[1-9][0-9]{0,8})_([0-9A-Za-z-]*)(?:\.[1-9][0-9]*)?\.(?:safetensors|bytes)$`)
	// valueFile are those of single values in the older dialect.
	valueFile = regexp.MustCompile(`^.+_rank(0|[1-9][0-9]{0,8})\.bytes$`)
)

// parseRankMetadata returns the rank from the name of the metadata of one rank.
func parseRankMetadata(name string) (rank int, ok bool) {
	m := rankMetadata.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	rank, err := strconv.Atoi(m[1] + m[2])
	return rank, err == nil
}

// parseDataFile returns the rank from the name of a data file, and the save's id if
// the name has one.
func parseDataFile(name string) (rank int, saveID string, ok bool) {
	m := dataFile.FindStringSubmatch(name)
	if m == nil {
		return 0, "", false
	}
	rank, err := strconv.Atoi(m[1])
	return rank, m[2], err == nil
}

// isData reports whether a file of that name is one of hyper_parallel's data
// files.
func isData(name string) bool {
	_, _, ok := parseDataFile(name)
	return ok || valueFile.MatchString(name)
}

// dataFileName returns the name of the n-th data file of a rank: that of
// hyper_parallel's only one if saveID is empty and n is 0, otherwise with the id and
// the number inside.
func dataFileName(rank int, saveID string, n int, suffix string) string {
	name := fmt.Sprintf("_rank%d_%s", rank, saveID)
	if n > 0 {
		name += "." + strconv.Itoa(n)
	}
	return name + suffix
}
