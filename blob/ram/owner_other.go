//go:build !unix

package ram

import (
	"errors"
	"io/fs"
)

// checkOwner returns an error if fi is not a folder.
func checkOwner(fi fs.FileInfo) error {
	if !fi.IsDir() {
		return errors.New("is not a folder")
	}
	return nil
}
