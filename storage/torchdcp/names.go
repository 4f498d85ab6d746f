package torchdcp

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/cairn-ckpt/cairn/storage/dcpfiles"
)

// dataSuffix ends the names of data files.
const dataSuffix = ".distcp"

// files describes the names of PyTorch's files.
var files = &dcpfiles.Format{
	Maker: dcpfiles.PyTorch, Version: "torchdcp", Prefix: "__", Data: isData, Parse: parseDataFile,
	Rank: parseRankMetadata, RankName: func(rank int) string { return fmt.Sprintf("__%d.metadata", rank) },
}

var (
	rankMetadata = regexp.MustCompile(`^__(0|[1-9][0-9]{0,8})\.metadata$`)
	dataFile     = regexp.MustCompile(`^__(0|[1-9][0-9]{0,8})_(?:([0-9A-Za-z-]+)_)?(0|[1-9][0-9]{0,8})\.distcp$`)
)

// parseRankMetadata returns the rank from the name of the metadata of one rank.
func parseRankMetadata(name string) (rank int, ok bool) {
	m := rankMetadata.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	rank, err := strconv.Atoi(m[1])
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

// isData reports whether a file of that name is one of PyTorch's data files,
// including names that other programs use.
func isData(name string) bool {
	return strings.HasPrefix(name, "__") && strings.HasSuffix(name, dataSuffix) && !strings.Contains(name, "/")
}

// prefixOf returns the beginning of the names of a rank's data files: PyTorch's own
// if saveID is empty, otherwise with the id inside.
func prefixOf(rank int, saveID string) string {
	if saveID == "" {
		return fmt.Sprintf("__%d_", rank)
	}
	return fmt.Sprintf("__%d_%s_", rank, saveID)
}

// dataFileName returns the name of the n-th data file with that prefix.
func dataFileName(prefix string, n int) string {
	return prefix + strconv.Itoa(n) + dataSuffix
}
