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

// files is how PyTorch calls its files.
var files = &dcpfiles.Format{Maker: dcpfiles.PyTorch, Version: "torchdcp", Prefix: "__", Rank: parseRankMetadata, Data: isData}

var (
	rankMetadata = regexp.MustCompile(`^__(0|[1-9][0-9]{0,8})\.metadata$`)
	dataFile     = regexp.MustCompile(`^__(0|[1-9][0-9]{0,8})_(?:([0-9A-Za-z-]+)_)?(0|[1-9][0-9]{0,8})\.distcp$`)
)

// parseRankMetadata returns the rank whose own metadata a file of that name is.
func parseRankMetadata(name string) (rank int, ok bool) {
	m := rankMetadata.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	rank, err := strconv.Atoi(m[1])
	return rank, err == nil
}

// parseDataFile takes the name of a data file apart: the rank, and the save's id
// where the name has one.
func parseDataFile(name string) (rank int, saveID string, ok bool) {
	m := dataFile.FindStringSubmatch(name)
	if m == nil {
		return 0, "", false
	}
	rank, err := strconv.Atoi(m[1])
	return rank, m[2], err == nil
}

// isData reports whether a file of that name is one of PyTorch's data files,
// also one that another program named in its own way.
func isData(name string) bool {
	return strings.HasPrefix(name, "__") && strings.HasSuffix(name, dataSuffix) && !strings.Contains(name, "/")
}

// prefixOf returns what the names of a rank's data files begin with: PyTorch's
// own way, or with the save's id inside, where those names may be taken.
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
